"""What the pool of images' KV tells, from its message to the metrics."""

from __future__ import annotations

import re
from dataclasses import astuple, replace
from typing import Any, cast

import msgspec
import pytest

from engine.base import Engine, EventBatch, ImagePoolState, ImageReuse
from engine.vllm.telemetry import read_image_message
from metrics.engine_log import EngineLog
from metrics.prometheus import GatewayMetrics
from tests.unit.metrics.telling import Telling

REUSE = ["request", 3, 2, 1, 960, 48, 320]
POOL = [1, 2, 3, 4, 5000, 6, 7, 8, 9, 10, 11, 12, 13, 14_000, 15, 16, 17, 1]


def message(kind: str, values: list[Any]) -> EventBatch:
    return read_image_message([msgspec.msgpack.encode([5, 1.5, kind, values])])


def test_a_message_is_read_in_its_order() -> None:
    batch = message("request", REUSE)
    assert (batch.stream, batch.sequence, batch.seconds) == ("images", 5, 1.5)
    assert batch.events == (ImageReuse("request", 3, 2, 1, 960, 48, 320),)
    (pool,) = message("pool", POOL).events
    assert isinstance(pool, ImagePoolState)
    assert (pool.requests, pool.holds, pool.capturing, pool.memory_entries, pool.memory_bytes) == (1, 2, 3, 4, 5000)
    assert (pool.file_entries, pool.file_bytes, pool.writing) == (13, 14_000, 1)


async def test_tokens_are_counted_apart_from_those_of_usage_and_the_pool_is_shown() -> None:
    metrics = GatewayMetrics()
    engine = cast("Engine", Telling(message("request", REUSE), message("pool", POOL), message("request", REUSE)))
    await EngineLog(metrics).follow(engine)
    text = metrics.exposition(engine_ready=True).decode()
    found = dict(re.findall(r"^(stillframe_image_pool_\S+|stillframe_prompt_tokens_total\S+) (\S+)$", text, re.M))
    expected = {
        'stillframe_image_pool_images_total{result="hit"}': 4.0,
        'stillframe_image_pool_images_total{result="miss"}': 2.0,
        'stillframe_image_pool_tokens_total{disposition="loaded"}': 1920.0,
        'stillframe_image_pool_tokens_total{disposition="computed"}': 96.0,
        'stillframe_image_pool_tokens_total{disposition="reread"}': 640.0,
        'stillframe_image_pool_bytes{tier="memory"}': 5000.0,
        'stillframe_image_pool_bytes{tier="files"}': 14_000.0,
        'stillframe_image_pool_entries{tier="memory"}': 4.0,
        'stillframe_image_pool_entries{tier="files"}': 13.0,
    }
    assert {name: float(value) for name, value in found.items() if name in expected} == expected
    assert all(float(value) == 0 for name, value in found.items() if name.startswith("stillframe_prompt_tokens"))


async def shown(*states: ImagePoolState) -> dict[str, float]:
    metrics = GatewayMetrics()
    told = [message("pool", list(astuple(state))) for state in states]
    await EngineLog(metrics).follow(cast("Engine", Telling(*told)))
    text = metrics.exposition(engine_ready=True).decode()
    found = re.findall(r"^stillframe_((?:image_pool_events|kv_file)\S+) (\S+)$", text, re.M)
    return {name: float(value) for name, value in found if "_created" not in name}


async def test_what_left_and_what_the_disk_refused_is_counted_once() -> None:
    state = ImagePoolState(memory_evicted=5, refused_entries=4, file_evicted=3, file_refused=2, file_faults=1)
    assert await shown(replace(state, writing=1), replace(state, memory_evicted=7, file_faults=2)) == {
        'image_pool_events_total{event="evicted",tier="memory"}': 7.0,
        'image_pool_events_total{event="refused",tier="memory"}': 4.0,
        'image_pool_events_total{event="evicted",tier="files"}': 3.0,
        'image_pool_events_total{event="refused",tier="files"}': 2.0,
        'kv_file_faults_total{store="image_pool"}': 2.0,
        'kv_file_faults_total{store="block_tiers"}': 0.0,
        'kv_files_stopped{store="image_pool"}': 1.0,
    }


@pytest.mark.parametrize(
    ("faults", "writing", "stopped"),
    [
        pytest.param(0, 0, 0, id="no folder"),
        pytest.param(3, 1, 0, id="a read failed"),
        pytest.param(1, 0, 1, id="full"),
    ],
)
async def test_files_have_stopped_where_a_fault_ended_the_writing(faults: int, writing: int, stopped: int) -> None:
    found = await shown(ImagePoolState(file_faults=faults, writing=writing))
    assert found['kv_files_stopped{store="image_pool"}'] == stopped


async def test_an_engine_that_was_started_again_counts_on_and_writes_again() -> None:
    found = await shown(ImagePoolState(memory_evicted=5, file_faults=1), ImagePoolState(memory_evicted=2, writing=1))
    assert found['image_pool_events_total{event="evicted",tier="memory"}'] == 7.0
    assert found['kv_files_stopped{store="image_pool"}'] == 0.0
