"""`stillframe eval --engine` on the real engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(os.environ.get("STILLFRAME_LONG") != "1", reason="starts an engine: STILLFRAME_LONG=1"),
]


def test_the_engine_answers_as_the_plain_model_and_computes_as_much(tmp_path: Path) -> None:
    file = tmp_path / "eval.json"
    options = ["--questions", "2", "--ratios", "0.05", "0.3", "--donors", "other_images", "reordered", "--timed", "0"]
    # With an engine the command ends its process at once.
    command = [sys.executable, "-m", "app.cli", "eval", "--engine", *options, "--every", "--json", str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "The same on the embedded engine" in ended.stdout
    made = json.loads(file.read_text())
    plain = {(row["method"], row["ratio"], row["donor"]): row for row in made["rows"]}
    rows = made["engine_rows"]
    assert [row["method"] for row in rows if row["donor"] == "reordered"] == [
        "prefix",
        *["head"] * 2,
        *["per_layer"] * 2,
    ]
    assert len(rows) == 1 + 2 * 5
    for row in rows:
        other = plain[row["method"], row["ratio"], row["donor"]]
        # Another order of sums may turn an answer that hangs by a thread.
        assert row["as_plain"] >= 3 / 4, row
        assert row["ttft_seconds"] > 0
        if row["method"] == "prefix":
            # In whole blocks.
            assert other["computed_token_share"] - 1e-6 <= row["computed_token_share"] <= 1
        else:
            assert row["computed_token_share"] == pytest.approx(other["computed_token_share"], abs=1e-4)
            assert row["computed_image_share"] == pytest.approx(other["computed_image_share"], abs=1e-4)
