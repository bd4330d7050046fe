"""`stillframe eval`: what is asked for, what is refused, and what is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.cli import main
from engine.demo_model import bundled_folder
from engine.demo_model.evaluate import weights_digest
from engine.reference.profile import read_profile
from metrics.eval.base import MEANINGS, METHODS

FEW = ["--questions", "1", "--ratios", "0.1", "--donors", "reordered", "--timed", "0"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error."""
    with pytest.raises(SystemExit) as ended:
        main(["eval", *arguments])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def test_an_evaluation_writes_table_json_and_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    json_file, picture = tmp_path / "eval.json", tmp_path / "eval.png"
    status, out, _ = run(capsys, *FEW, "--json", str(json_file), "--plot", str(picture))
    assert status == 0
    made = json.loads(json_file.read_text())
    methods = [row["method"] for row in made["rows"]]
    assert methods[:3] == ["full", "prefix", "head"]
    assert {"per_layer", "suffix", "random", "no_rotation", "kv_deviation", "attention_deviation"} <= set(methods)
    assert made["weights_sha256"] == weights_digest(bundled_folder())
    assert (made["questions"], made["seeds"]) == (1, [1])
    assert all(f"\n {method} " in out for method in methods)
    assert "head against random, donor reordered, r = 0.1" in out
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_rows_go_to_standard_output_alone_where_asked(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, error = run(capsys, *FEW, "--methods", "full", "--json", "-")
    assert status == 0
    assert [row["method"] for row in json.loads(out)["rows"]] == ["full"]
    assert "Reuse of image KV" in error
    # How far it is, although nobody sees a terminal.
    assert "eval: questions are drawn\nquestion 1 of 2, 1 way each\n" in error


def test_the_help_says_in_a_line_what_each_method_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    status, out, _ = run(capsys, "--help")
    assert status == 0
    words = " ".join(out.partition("methods, which take")[2].split())
    assert [method for method in METHODS if f"{method} {MEANINGS[method]}" not in words] == []
    assert max(map(len, out.splitlines())) <= 90


def test_a_profile_is_measured_and_then_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "profile.json"
    status, out, _ = run(capsys, "--calibrate", str(file), "--questions", "1", "--donors", "reordered", "--seeds", "4")
    assert status == 0
    assert "S(0.05)" in out
    made = read_profile(file)
    assert (made.seed, made.questions) == (4, 2)
    status, out, _ = run(capsys, *FEW, "--methods", "per_layer", "--profile", str(file))
    assert status == 0
    assert "per_layer" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--questions", "0"], "flag: --questions: takes a whole number from 1"),
        (["--timed", "-1"], "flag: --timed"),
        (["--seeds", "1", "1"], "flag: --seeds"),
        (["--ratios", "1.5"], "flag: --ratios: takes shares from 0 to 1"),
        (["--plot", "eval.pdf"], "must end in .png"),
        (["--json", "/none/eval.json"], "cannot be written"),
        (["--calibrate", "new.json", "--donors", "same"], "--donors: names none from which KV differs"),
        (["--model", "/none"], "config.json: is not there"),
        (["--profile", "/none/profile.json"], "cannot be read"),
    ],
)
def test_what_cannot_be_is_refused_before_the_work(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, error = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert said in error.replace("\n", " ")
    assert list(tmp_path.iterdir()) == []


def test_the_bundled_profile_is_of_the_bundled_model() -> None:
    profile = read_profile(bundled_folder().parent / "reuse_profile.json")
    assert (profile.weights_sha256, profile.layers) == (weights_digest(bundled_folder()), 6)
    assert sum(profile.ratios(0.05)) == pytest.approx(0.3, abs=0.02)
