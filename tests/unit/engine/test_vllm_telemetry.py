"""KV events from vLLM's own publisher: in order, whole, and only those of the device's full attention."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateUsage=false

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from engine import torchvision_ops
from engine.base import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch
from engine.events import EventHub

pytestmark = pytest.mark.vllm


def _stored(number: int, **fields: Any) -> Any:
    from engine.vllm import v0_32

    given: dict[str, Any] = {
        "block_hashes": [number.to_bytes(4, "big")],
        "parent_block_hash": None,
        "token_ids": [number, number],
        "block_size": 2,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [(("uuid", -1), "salt")],
        "session_id": f"request-{number}",
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }
    return v0_32.BlockStored(**given | fields)


@asynccontextmanager
async def _publisher(*, late: int = 0) -> AsyncGenerator[tuple[Any, AsyncIterator[EventBatch]]]:
    """vLLM's publisher and what the gateway hears of it. The first `late` batches go out before anybody listens."""
    torchvision_ops.declare_missing()
    from vllm.distributed.kv_events import ZmqEventPublisher

    from engine.vllm.telemetry import Telemetry

    hub = EventHub()
    telemetry = Telemetry(hub)
    publisher = ZmqEventPublisher(0, telemetry.kv_endpoint, telemetry.replay_endpoint)
    try:
        for number in range(late):
            publisher.publish(_batch(_stored(number)))
        async with asyncio.timeout(20):
            while late and publisher._event_queue.unfinished_tasks:  # noqa: ASYNC110 - a thread's queue
                await asyncio.sleep(0.01)
        async with hub.listen() as batches:
            telemetry.start()
            yield publisher, batches
    finally:
        publisher.shutdown()
        await telemetry.stop()


def _batch(*events: Any) -> Any:
    from engine.vllm import v0_32

    return v0_32.KVEventBatch(ts=1.5, events=list(events))


async def _heard(publisher: Any, batches: AsyncIterator[EventBatch], start: int) -> list[EventBatch]:
    """Publish until something is heard, and give all that is heard up to a last batch."""
    number = start
    async with asyncio.timeout(30):
        first = asyncio.ensure_future(anext(batches))
        while not first.done():
            # A subscription takes a moment: what is published before it is lost, unless it is asked for again.
            publisher.publish(_batch(_stored(number)))
            number += 1
            await asyncio.wait([first], timeout=0.2)
        heard = [first.result()]
        while heard[-1].sequence < number - 1:
            heard.append(await anext(batches))
    return heard


async def test_batches_that_were_missed_are_asked_for() -> None:
    async with _publisher(late=5) as (publisher, batches):
        heard = await _heard(publisher, batches, 5)
    assert [batch.sequence for batch in heard] == list(range(len(heard)))
    assert len(heard) >= 6
    event = heard[3].events[0]
    assert event == BlockStored(
        ((3).to_bytes(4, "big"),), None, (3, 3), 2, ((["uuid", -1], "salt"),), request_id="request-3"
    )


async def test_what_is_elsewhere_or_of_other_layers_is_none_of_ours() -> None:
    torchvision_ops.declare_missing()
    from engine.vllm import v0_32

    window = {"group_idx": 1, "kv_cache_spec_kind": "sliding_window"}
    async with _publisher() as (publisher, batches):
        start = (await _heard(publisher, batches, 0))[-1].sequence + 1
        publisher.publish(
            _batch(
                _stored(1),
                _stored(1, **window),
                _stored(2, medium="CPU"),
                v0_32.BlockRemoved(block_hashes=[b"a"], medium="GPU", group_idx=1),
                v0_32.BlockRemoved(block_hashes=[b"b"], medium="GPU", group_idx=0),
                v0_32.BlockRemoved(block_hashes=[b"c"], medium="CPU"),
                v0_32.AllBlocksCleared(),
            )
        )
        async with asyncio.timeout(20):
            batch = await anext(batches)
    assert batch.sequence == start
    stored, *others = batch.events
    assert isinstance(stored, BlockStored)
    assert stored.request_id == "request-1"
    assert others == [BlockRemoved((b"b",)), AllBlocksCleared()]
