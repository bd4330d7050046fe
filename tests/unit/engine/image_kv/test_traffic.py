"""Whatever comes, waits, loses its blocks and goes: no exact request reads what is approximate, and figures sum up."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from engine import torchvision_ops
from tests.unit.engine.image_kv.traffic import Traffic

pytestmark = pytest.mark.vllm
SEEDS = 1000 if os.environ.get("STILLFRAME_LONG") == "1" else 40


def test_nothing_approximate_is_read_as_exact_or_captured_and_figures_sum_up() -> None:
    torchvision_ops.declare_missing()
    seen, wrong = Counter[str](), dict[int, dict[str, int]]()
    for seed in range(SEEDS):
        traffic = Traffic(seed)
        traffic.run(120)
        seen += traffic.seen
        if traffic.wrong:
            wrong[seed] = dict(traffic.wrong)
    assert wrong == {}
    # Or it would say nothing.
    least = {
        "exact tokens read": 1000,
        "loaded": 1000,
        "captured": 1000,
        "preempted": 100,
        "waited for an answer": 1000,
        "told after a preemption": 10,
    }
    assert {what: seen[what] for what in least if seen[what] < least[what]} == {}
