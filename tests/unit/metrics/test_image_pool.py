"""What the pool of images' KV tells, from its message to the metrics."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec

from engine.base import Engine, EventBatch, ImagePoolState, ImageReuse
from engine.vllm.telemetry import read_image_message
from metrics.encoder_log import EncoderLog
from metrics.prometheus import GatewayMetrics

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


class Telling:
    """As much of an engine as tells events."""

    def __init__(self, *batches: EventBatch) -> None:
        self._batches = batches

    @asynccontextmanager
    async def events(self) -> AsyncGenerator[AsyncIterator[EventBatch]]:
        async def told() -> AsyncIterator[EventBatch]:
            for batch in self._batches:
                yield batch

        yield told()


async def test_tokens_are_counted_apart_from_those_of_usage_and_the_pool_is_shown() -> None:
    metrics = GatewayMetrics()
    engine = cast("Engine", Telling(message("request", REUSE), message("pool", POOL), message("request", REUSE)))
    await EncoderLog(metrics).follow(engine)
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
