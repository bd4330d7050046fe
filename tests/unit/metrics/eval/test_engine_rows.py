"""What the embedded engine answered: rows, table, JSON and picture."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from metrics.eval.base import FULL, HEAD, PER_LAYER, Cell, EngineOutcome, Outcome
from metrics.eval.engine_rows import engine_rows
from metrics.eval.findings import Findings
from metrics.eval.plot import plot
from metrics.eval.report import as_json, engine_table
from metrics.eval.run import Result
from tests.unit.metrics.eval.test_report import ROW, WHOLE

FIRST = EngineOutcome(0, "single_hop", True, True, 1.0, 1.0, 0.4)
SECOND = replace(FIRST, case=1, hop="multi_hop", ttft_seconds=0.2)
THIRD = replace(SECOND, case=2, right=False)
HEAD_CELL, LAYER_CELL = Cell(HEAD, 0.05, "reordered"), Cell(PER_LAYER, 0.05, "reordered")
FOUND = {
    Cell(FULL): [FIRST, SECOND, THIRD],
    HEAD_CELL: [
        replace(FIRST, image_share=0.1, token_share=0.4, ttft_seconds=0.1),
        replace(SECOND, image_share=0.2, token_share=0.6, ttft_seconds=0.1, top1=False, right=False),
        replace(THIRD, image_share=0.3, token_share=0.8, ttft_seconds=0.4),
    ],
    LAYER_CELL: [FIRST, SECOND, THIRD],
}
PLAIN = Outcome(0, "single_hop", 0.0, 0.0, 0.0, True, 1, 1, True, 1.0, 1.0, 100)


def test_a_row_sums_up_the_questions_and_says_how_often_the_plain_model_agrees() -> None:
    plain = {HEAD_CELL: [PLAIN, replace(PLAIN, case=1), replace(PLAIN, case=2, right=False)]}
    whole, head, by_layer = engine_rows(FOUND, plain)
    assert (head.method, head.ratio, head.donor, head.questions) == (HEAD, 0.05, "reordered", 3)
    assert (head.computed_image_share, head.computed_token_share) == pytest.approx((0.2, 0.6))
    # Medians: of 100, 100 and 400 ms, and of 4, 2 and .5 times.
    assert (head.ttft_seconds, head.speedup) == (0.1, 2.0)
    assert head.top1_agreement == pytest.approx(2 / 3)
    assert head.accuracy_single_hop is not None
    assert head.accuracy_multi_hop is not None
    assert (head.accuracy_single_hop.mean, head.accuracy_multi_hop.mean) == (1.0, 0.0)
    assert head.as_plain == pytest.approx(2 / 3)
    assert (whole.speedup, whole.as_plain) == (1.0, None)
    assert by_layer.accuracy_multi_hop is not None
    assert by_layer.accuracy_multi_hop.mean == 0.5


def test_they_stand_in_a_table_of_their_own_and_in_the_json_where_the_engine_was_asked() -> None:
    rows = engine_rows(FOUND, {HEAD_CELL: [PLAIN]})
    console = Console(width=150, record=True, file=io.StringIO())
    console.print(engine_table(rows))
    lines = [line.split() for line in console.export_text().splitlines()]
    shown = [
        "0.200",
        "0.600",
        "100",
        "ms",
        "2.00",
        "(3",
        "timed)",
        "0.667",
        "100.0",
        "[100-100]",
        "0.0",
        "[0-0]",
        "1.000",
    ]
    assert ["head", "reordered", "0.05", *shown] in lines
    made = json.loads(json.dumps(as_json(Result([ROW], Findings([], []), rows), {})))
    assert [row["method"] for row in made["engine_rows"]] == [FULL, HEAD, PER_LAYER]
    assert (made["engine_rows"][1]["accuracy_multi_hop"], made["engine_rows"][1]["accuracy_multi_hop_95"]) == (
        0,
        [0, 0],
    )
    assert "engine_rows" not in as_json(Result([ROW], Findings([], [])), {})


def test_they_are_crosses_in_the_picture(tmp_path: Path) -> None:
    rows = [WHOLE, ROW, replace(ROW, method=PER_LAYER)]
    plot(rows, tmp_path / "without.png")
    plot(rows, tmp_path / "with.png", engine_rows(FOUND, {}))
    without, drawn = Image.open(tmp_path / "without.png"), Image.open(tmp_path / "with.png")
    assert without.size == drawn.size
    assert without.tobytes() != drawn.tobytes()
