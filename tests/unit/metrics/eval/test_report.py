"""An evaluation's tables, JSON and picture."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console
from rich.table import Table

from engine.reference.profile import ReuseProfile
from metrics.eval.base import FULL, HEAD, MEANINGS, METHODS, PREFIX, RANDOM, EngineRow, Interval, Row
from metrics.eval.findings import Comparison, Findings, Loss
from metrics.eval.plot import plot
from metrics.eval.report import as_json, engine_table, profile_table, table, told
from metrics.eval.run import Result

ROOT = Path(__file__).parents[4]
ROW = Row(
    method=HEAD,
    ratio=0.05,
    donor="reordered",
    questions=40,
    image_tokens=223.0,
    computed_image_share=0.0561,
    computed_token_share=0.452,
    ttft_seconds=0.0123,
    speedup=2.345,
    timed_questions=3,
    logit_mse=0.000012345678,
    kl=0.25,
    reply_kl=0.5,
    top1_agreement=0.875,
    greedy_match_tokens=1.5,
    reply_tokens=2.4,
    accuracy_single_hop=Interval(0.8125, 0.75, 0.9),
    accuracy_multi_hop=None,
    loss_single_hop=Interval(0.1, 0.05, 0.15),
    loss_multi_hop=None,
)
WHOLE = replace(ROW, method=FULL, ratio=None, donor=None, kl=0.0, reply_kl=0.0, ttft_seconds=None, speedup=None)
ENGINE_ROW = EngineRow(
    method=HEAD,
    ratio=0.05,
    donor="reordered",
    questions=40,
    computed_image_share=0.0561,
    computed_token_share=0.452,
    ttft_seconds=0.0123,
    speedup=2.345,
    timed_questions=40,
    top1_agreement=0.875,
    accuracy_single_hop=Interval(0.8125, 0.75, 0.9),
    accuracy_multi_hop=None,
    as_plain=1.0,
)
LOSS = Loss("reordered", "single_hop", 0.01, Interval(0.1, 0.05, 0.15), 0.5)
COMPARISON = Comparison(HEAD, RANDOM, "reordered", 0.1, Interval(-0.02, -0.1, 0.05), None, Interval(0.01, 0, 0.02))


def test_a_table_has_a_line_for_each_way_and_cuts_no_figure() -> None:
    console = Console(width=150, record=True, file=io.StringIO())
    console.print(table([WHOLE, replace(ROW, method=PREFIX, ratio=None), ROW]))
    lines = [line.split() for line in console.export_text().splitlines()]
    assert ["full", "0.056", "0.452", "0", "1e-05", "0.875", "1.50/2.40", "81.2", "[75-90]"] in lines
    shown = [
        "0.056",
        "0.452",
        "12",
        "ms",
        "2.35",
        "(3",
        "timed)",
        "0.2500",
        "1e-05",
        "0.875",
        "1.50/2.40",
        "81.2",
        "[75-90]",
    ]
    assert ["head", "reordered", "0.05", *shown] in lines
    assert ["prefix", "reordered", *shown] in lines


def _shown(made: Table) -> list[str]:
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(made)
    return [line.strip() for line in console.export_text().splitlines()]


@pytest.mark.parametrize(("timed", "shown"), [(1, "~2.35 (1 timed)"), (2, "~2.35 (2 timed)"), (3, "2.35 (3 timed)")])
def test_a_speed_up_says_how_many_questions_were_timed_and_of_few_that_it_is_no_result(timed: int, shown: str) -> None:
    row, of_engine = replace(ROW, timed_questions=timed), replace(ENGINE_ROW, timed_questions=timed)
    for lines in (_shown(table([WHOLE, row])), _shown(engine_table([of_engine]))):
        (line,) = [line for line in lines if line.startswith("head ")]
        assert f"12 ms {shown} " in " ".join(line.split())
        assert "with ~, from fewer than 3, it is indicative" in " ".join(lines)
    made = as_json(Result([WHOLE, row], Findings([], []), [of_engine]), {})
    for found in (made["rows"][1], made["engine_rows"][0]):
        assert (found["timed_questions"], found["speedup_indicative"]) == (timed, timed < 3)
    assert made["rows"][0]["speedup_indicative"] is False


def test_a_table_says_below_what_each_of_its_methods_does_and_of_no_other() -> None:
    words = " ".join(_shown(table([WHOLE, replace(ROW, method=PREFIX, ratio=None)])))
    assert {method for method in METHODS if f" {method}: {MEANINGS[method]}." in words} == {FULL, PREFIX}
    assert f" {HEAD}: {MEANINGS[HEAD]}." in " ".join(_shown(engine_table([ENGINE_ROW])))


def test_every_method_has_its_line_in_the_docs_that_the_readme_names() -> None:
    docs = (ROOT / "docs" / "eval.md").read_text()
    assert [method for method in METHODS if f"| `{method}` |" not in docs] == []
    assert "(docs/eval.md)" in (ROOT / "README.md").read_text()


def test_the_picture_names_full_recompute_prefix_and_the_engine_s_answers(tmp_path: Path) -> None:
    file, rows = tmp_path / "all.svg", [WHOLE, replace(ROW, method=PREFIX, ratio=None, kl=0.0, reply_kl=0.0), ROW]
    plot(rows, file)
    # What is written stands in comments: letters are drawn.
    assert "<!-- full recompute -->" in file.read_text()
    assert "<!-- prefix, reordered -->" in file.read_text()
    assert "<!-- the engine's answers -->" not in file.read_text()
    plot([*rows, replace(ROW, method=RANDOM)], file, [ENGINE_ROW])
    assert "<!-- prefix -->" in file.read_text()
    assert "<!-- the engine's answers -->" in file.read_text()
    plot(rows[:2], file)
    assert "<!-- prefix, reordered -->" in file.read_text()


def test_json_has_the_rows_with_figures_as_numbers_and_their_intervals_beside_them() -> None:
    made = as_json(Result([ROW], Findings([LOSS], [COMPARISON])), {"questions": 20})
    (row,) = json.loads(json.dumps(made))["rows"]
    contract = "method ratio donor image_tokens computed_token_share ttft_seconds speedup logit_mse kl top1_agreement"
    assert set(contract.split()) | {"accuracy_single_hop", "accuracy_multi_hop"} <= row.keys()
    assert (row["accuracy_single_hop"], row["accuracy_single_hop_95"]) == (0.8125, [0.75, 0.9])
    assert row["accuracy_multi_hop"] is None
    assert "accuracy_multi_hop_95" not in row
    assert row["logit_mse"] == 1.23457e-05
    assert made["questions"] == 20
    (loss,) = made["losses"]
    assert (loss["at_small"], loss["at_small_95"], loss["met"], loss["least_ratio"]) == (0.1, [0.05, 0.15], False, 0.5)
    assert made["comparisons"][0]["loss_single_hop"] == -0.02


def test_what_the_rows_say_is_said_in_points() -> None:
    first, second = told([LOSS], [COMPARISON])
    assert "donor reordered, single-hop: loses +10.0 points [+5.0, +15.0] at r = 0.05 (more than 1)" in first
    assert "stays within: r = 0.5" in first
    assert "head against random" in second
    assert "single-hop -2.0 points [-10.0, +5.0], multi-hop not asked more; reply's kl +0.0100" in second
    met = told([replace(LOSS, at_small=Interval(0.01, 0, 0.02), least_ratio=None)], [])[0]
    assert "(within 1)" in met
    assert "none that was tried" in met


def test_layers_are_shown_with_what_they_compute_under_a_budget() -> None:
    console = Console(width=150, record=True, file=io.StringIO())
    profile = ReuseProfile("ab" * 32, (0.0, 0.5, 1.0), ((1.0, 0.5, 0.0), (0.0, 0.0, 0.0)), 0.1, 8, 1)
    console.print(profile_table(profile, (0.2, 1.0)))
    lines = [line.split() for line in console.export_text().splitlines()]
    assert ["1", "1.0000", "0.5000", "0.40", "1.00"] in lines
    assert ["2", "0.0000", "0.0000", "0.00", "1.00"] in lines


def test_the_picture_shows_every_method_and_donor(tmp_path: Path) -> None:
    rows = [WHOLE]
    for method, donors in ((HEAD, ("same", "reordered")), (RANDOM, ("reordered",))):
        for donor in donors:
            rows += [replace(ROW, method=method, donor=donor, computed_image_share=r) for r in (0.0, 0.5, 1.0)]
    plot(rows, tmp_path / "both.png")
    plot(rows[:-3], tmp_path / "head.png")
    with Image.open(tmp_path / "both.png") as both, Image.open(tmp_path / "head.png") as head:
        assert both.width == head.width
        # A row of panels for the donor that two methods were tried on, and one for the donors.
        assert both.height > 1.9 * head.height
        colours = {colour for _, colour in both.convert("RGB").getcolors(1 << 20) or ()}
    assert {(0x1D, 0x35, 0x57), (0x8D, 0x99, 0xAE)} <= colours
