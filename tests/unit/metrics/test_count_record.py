"""Prometheus is a view of the records."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import get_args

import pytest

from context.plan import Actor, Cause
from metrics.catalogue import CATALOGUE, HEALED
from metrics.kv_mirror import MirrorCounts
from metrics.prometheus import GatewayMetrics
from metrics.records.record import TurnRecord

_RECORD = TurnRecord(
    id=1_700_000_000_000_000_000,
    request_id="r1",
    tenant="alice",
    conversation="c1",
    number=3,
    model="m",
    policy="stable",
    policy_version="1",
    stream=True,
    outcome="completed",
    visual_tokens=40,
    prompt_tokens=100,
    completion_tokens=7,
    read_tokens=64,
    write_tokens=32,
    uncached_tokens=4,
    expected_read=96,
    lost_tokens=32,
    cause="client_edit",
    actor="client",
    first_token_seconds=0.3,
    total_seconds=0.7,
)


def _shown(metrics: GatewayMetrics) -> dict[str, float]:
    """Samples by name and labels, without those of prometheus_client about itself."""
    found = re.findall(r"^(stillframe_\S+) (\S+)$", metrics.exposition(engine_ready=True).decode(), re.M)
    return {name: float(value) for name, value in found if "_created" not in name}


async def test_a_completed_turn() -> None:
    metrics = GatewayMetrics()
    metrics.count_record(_RECORD)
    metrics.count_record(replace(_RECORD, cause=None, actor=None, lost_tokens=None))
    shown = _shown(metrics)
    assert shown['stillframe_requests_total{outcome="completed",stream="true"}'] == 2
    assert shown['stillframe_prompt_tokens_total{disposition="read"}'] == 128
    assert shown['stillframe_prompt_tokens_total{disposition="write"}'] == 64
    assert shown['stillframe_prompt_tokens_total{disposition="uncached"}'] == 8
    assert shown["stillframe_visual_tokens_total"] == 80
    assert shown["stillframe_completion_tokens_total"] == 14
    assert shown["stillframe_expected_read_tokens_total"] == 192
    assert shown['stillframe_lost_tokens_total{actor="client",cause="client_edit"}'] == 32
    assert shown['stillframe_turns_total{cause="client_edit"}'] == 1
    assert shown['stillframe_turns_total{cause="none"}'] == 1
    assert shown["stillframe_first_byte_seconds_count"] == 2
    assert shown["stillframe_total_seconds_sum"] == pytest.approx(1.4)
    assert shown["stillframe_unreported_requests_total"] == 0


@pytest.mark.parametrize("outcome", ["aborted", "failed", "refused"])
async def test_what_was_not_completed_counts_no_tokens(outcome: str) -> None:
    metrics = GatewayMetrics()
    metrics.count_record(replace(_RECORD, outcome=outcome, image_eviction=True))  # pyright: ignore[reportArgumentType]
    shown = _shown(metrics)
    assert shown[f'stillframe_requests_total{{outcome="{outcome}",stream="true"}}'] == 1
    assert shown["stillframe_policy_evictions_total"] == 1
    assert shown['stillframe_prompt_tokens_total{disposition="read"}'] == 0
    assert not any(name.startswith(("stillframe_turns_total", "stillframe_lost_tokens_total")) for name in shown)


async def test_unreported_is_not_zero() -> None:
    metrics = GatewayMetrics()
    unknown = replace(_RECORD, read_tokens=None, write_tokens=None, uncached_tokens=None, expected_read=None)
    metrics.count_record(replace(unknown, cause="engine_unreported", actor="engine", lost_tokens=None))
    shown = _shown(metrics)
    assert shown["stillframe_unreported_requests_total"] == 1
    assert shown['stillframe_turns_total{cause="engine_unreported"}'] == 1
    assert not any(name.startswith("stillframe_lost_tokens_total") for name in shown)


async def test_labels_are_bounded_by_the_catalogue() -> None:
    metrics = GatewayMetrics()
    for cause in get_args(Cause):
        for actor in get_args(Actor):
            metrics.count_record(replace(_RECORD, cause=cause, actor=actor))
    metrics.count_healed([*HEALED, "a word that nobody knows"])
    metrics.count_summary(True)
    metrics.count_summary(False)
    # Sums since the mirror began: they count once, however often they are asked for.
    counts = MirrorCounts({"text": 16, "image": 48}, {"mixed": 4}, {("image", "one"): 32}, 1, {"mixed": 2})
    for _ in range(3):
        metrics.count_kv(counts)
    shown = _shown(metrics)
    assert shown['stillframe_kv_resident_tokens{modality="image"}'] == 48
    assert shown['stillframe_kv_resident_blocks{modality="mixed"}'] == 4
    assert shown['stillframe_kv_evicted_tokens_total{modality="image",users="one"}'] == 32
    assert shown['stillframe_kv_evicted_tokens_total{modality="text",users="several"}'] == 0
    assert shown['stillframe_kv_evicted_blocks_total{modality="mixed"}'] == 2
    assert shown["stillframe_kv_event_gaps_total"] == 1
    assert shown['stillframe_healed_total{what="other"}'] == 1
    assert shown['stillframe_summaries_total{result="failed"}'] == 1
    for entry in CATALOGUE.values():
        for label, words in entry.labels.items():
            used = {
                match[1]
                for name in shown
                if name.startswith(entry.exposed + "{") and (match := re.search(rf'{label}="([^"]*)"', name))
            }
            assert used <= set(words.split(", ")), entry.name


async def test_every_word_for_what_is_healed_is_known() -> None:
    """The words of `context/alignment/heals.py`, which says them in its docstring, and of the plan."""
    from context.alignment.heals import heals

    words = re.findall(r"`(\w+)`", (heals.__doc__ or "").partition("Words, in this order:")[2].partition("Args:")[0])
    assert {word for word in words if word not in ("type", "index")} <= set(HEALED)
