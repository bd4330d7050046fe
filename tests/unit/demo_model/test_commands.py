"""The commands of the demo model say what is wrong, where, and what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.demo_model import evaluate
from engine.demo_model.training import __main__ as training


def refused(capsys: pytest.CaptureFixture[str], call: object) -> str:
    assert callable(call)
    with pytest.raises(SystemExit) as left:
        call()
    assert left.value.code not in (0, None)
    return f"{left.value.code} {capsys.readouterr().err}"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give --url, --folder or both"),
        (["--url", "http://127.0.0.1:1/v1", "--questions", "0"], "takes a whole number from 1 up"),
        (["--url", "http://127.0.0.1:1/v1", "--questions", "1"], "There is no chat server at http://127.0.0.1:1/v1."),
        (["--url", "http://127.0.0.1:1/v1", "--json", "/nowhere/x.json"], "/nowhere/x.json cannot be written"),
    ],
)
def test_evaluate(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in refused(capsys, lambda: evaluate.main(arguments))


def test_training_exports_only_what_was_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "model.safetensors"
    kept.write_bytes(b"weights")
    arguments = [str(tmp_path / "new"), "--export", str(tmp_path)]
    assert "there is no training in" in refused(capsys, lambda: training.main(arguments))
    assert kept.read_bytes() == b"weights"


def test_training_refuses_scores_that_compare_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "checkpoint.pt").write_bytes(b"")
    scores = tmp_path / "scores.json"
    scores.write_text(json.dumps({"groups": {}, "kinds": {}, "yardsticks": [], "agreement": 1.0, "compared": 1}))
    arguments = [str(tmp_path), "--export", str(tmp_path / "to"), "--scores", str(scores)]
    assert "holds no scores of both" in refused(capsys, lambda: training.main(arguments))
    assert not (tmp_path / "to").exists()
    assert "--scores goes with --export" in refused(
        capsys, lambda: training.main([str(tmp_path), "--scores", str(scores)])
    )
