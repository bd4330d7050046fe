"""What the tiers for blocks tell, from their message to the metrics."""

from __future__ import annotations

import re
from dataclasses import astuple, replace
from typing import cast

import msgspec

from engine.base import BlockTierState, Engine, EventBatch
from engine.vllm.telemetry import read_image_message
from metrics.engine_log import EngineLog
from metrics.prometheus import GatewayMetrics
from tests.unit.metrics.telling import Telling

STATE = BlockTierState(
    block_bytes=1000,
    text_blocks=5,
    image_blocks=3,
    mixed_blocks=1,
    memory_stored=20,
    memory_loaded=7,
    memory_evicted=11,
    memory_dropped=2,
    file_blocks=4,
    file_bytes=4336,
    file_stored=18,
    file_loaded=6,
    file_evicted=14,
    file_dropped=3,
    file_refused=1,
)


def message(state: BlockTierState) -> EventBatch:
    batch = read_image_message([msgspec.msgpack.encode([5, 1.5, "tiers", astuple(state)])])
    assert (batch.stream, batch.events) == ("images", (state,))
    return batch


async def shown(*states: BlockTierState) -> dict[str, float]:
    metrics = GatewayMetrics()
    await EngineLog(metrics).follow(cast("Engine", Telling(*map(message, states))))
    text = metrics.exposition(engine_ready=True).decode()
    found = re.findall(r"^stillframe_block_tier_(\S+) (\S+)$", text, re.M)
    return {name: float(value) for name, value in found if "_created" not in name}


async def test_what_the_tiers_hold_is_shown_and_what_happened_is_counted_once() -> None:
    found = await shown(STATE, replace(STATE, memory_loaded=9, image_blocks=2, file_refused=2))
    assert found == {
        'bytes{tier="memory"}': 8000.0,
        'bytes{tier="files"}': 4336.0,
        'memory_blocks{modality="text"}': 5.0,
        'memory_blocks{modality="image"}': 2.0,
        'memory_blocks{modality="mixed"}': 1.0,
        'blocks_total{event="stored",tier="memory"}': 20.0,
        'blocks_total{event="loaded",tier="memory"}': 9.0,
        'blocks_total{event="evicted",tier="memory"}': 11.0,
        'blocks_total{event="dropped",tier="memory"}': 2.0,
        'blocks_total{event="stored",tier="files"}': 18.0,
        'blocks_total{event="loaded",tier="files"}': 6.0,
        'blocks_total{event="evicted",tier="files"}': 14.0,
        'blocks_total{event="dropped",tier="files"}': 3.0,
        'blocks_total{event="refused",tier="files"}': 2.0,
    }


async def test_an_engine_that_was_started_again_counts_on() -> None:
    found = await shown(STATE, BlockTierState(memory_stored=4), BlockTierState(memory_stored=6))
    assert found['blocks_total{event="stored",tier="memory"}'] == 26.0
    assert found['blocks_total{event="loaded",tier="memory"}'] == 7.0


async def test_a_disk_that_ended_the_writing_is_shown() -> None:
    metrics = GatewayMetrics()
    states = STATE, replace(STATE, file_faults=2, writing=0)
    await EngineLog(metrics).follow(cast("Engine", Telling(*map(message, states))))
    text = metrics.exposition(engine_ready=True).decode()
    assert 'stillframe_kv_file_faults_total{store="block_tiers"} 2.0' in text
    assert 'stillframe_kv_files_stopped{store="block_tiers"} 1.0' in text
