"""`stillframe eval --engine` on the real engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(os.environ.get("STILLFRAME_LONG") != "1", reason="starts an engine: STILLFRAME_LONG=1"),
]

QUESTIONS = 2
# Of the CPU build.
BLOCK_TOKENS = 32


def not_in_shared_blocks(model: Path, donor: str, seeds: list[int]) -> float:
    """The share of a prompt's tokens that are in no full block which a donor begins with, over all questions."""
    from metrics.eval.cases import draw_cases
    from metrics.eval.held import common_prefix
    from metrics.eval.run import load_subject

    shares: list[float] = []
    for case in draw_cases(load_subject(model).encoder, QUESTIONS, seeds):
        tokens = len(case.prompt.ids)
        shared = max(common_prefix(case.prompt, context) for context in case.donors[donor])
        shares.append(1 - min(shared, tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS / tokens)
    assert min(shares) < 1, "some question reads at least a block"
    return fmean(shares)


def test_the_engine_answers_as_the_plain_model_and_computes_as_much(tmp_path: Path, demo_checkpoint: Path) -> None:
    file = tmp_path / "eval.json"
    options = [
        "--questions",
        str(QUESTIONS),
        "--ratios",
        "0.05",
        "0.3",
        "--donors",
        "other_images",
        "reordered",
        "--timed",
        "0",
    ]
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
            # In whole blocks. Behind a picture the engine's donors end where the plain model's go on.
            whole_blocks = not_in_shared_blocks(demo_checkpoint, row["donor"], made["seeds"])
            if row["donor"] == "reordered":
                assert row["computed_token_share"] == pytest.approx(whole_blocks, abs=1e-4)
            else:
                assert whole_blocks - 1e-4 <= row["computed_token_share"] < 1
        else:
            assert row["computed_token_share"] == pytest.approx(other["computed_token_share"], abs=1e-4)
            assert row["computed_image_share"] == pytest.approx(other["computed_image_share"], abs=1e-4)
