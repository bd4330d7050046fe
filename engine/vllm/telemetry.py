"""Read what the engine core reports: KV events from vLLM's publisher, encoder events from our cache manager."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from engine import base
from engine.events import EventHub

_log = logging.getLogger(__name__)
_HIGH_WATER = 100_000


class Telemetry:
    """Two local sockets in a private folder, read into an `EventHub` in the order they came."""

    def __init__(self, hub: EventHub) -> None:
        self._hub = hub
        # A short folder: the address of a local socket holds 107 bytes.
        self._folder = Path(tempfile.mkdtemp(prefix="stillframe-"))
        self._context = zmq.asyncio.Context()
        self._tasks: list[asyncio.Task[None]] = []
        self.kv_endpoint = f"ipc://{self._folder}/kv"
        self.encoder_endpoint = f"ipc://{self._folder}/encoder"

    def start(self) -> None:
        """Bind and read. Before the engine core starts, so that nothing is lost."""
        encoder = self._context.socket(zmq.PULL)
        encoder.set(zmq.RCVHWM, _HIGH_WATER)
        encoder.bind(self.encoder_endpoint)
        kv = self._context.socket(zmq.SUB)
        kv.set(zmq.RCVHWM, _HIGH_WATER)
        kv.set(zmq.SUBSCRIBE, b"")
        kv.connect(self.kv_endpoint)
        self._tasks = [
            asyncio.create_task(self._read(encoder, read_encoder_message), name="stillframe-encoder-events"),
            asyncio.create_task(self._read(kv, KVReader()), name="stillframe-kv-events"),
        ]

    async def stop(self) -> None:
        """Stop reading, close the sockets and remove the folder."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._context.destroy(linger=0)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _read(self, socket: zmq.asyncio.Socket, decode: Callable[[list[bytes]], base.EventBatch | None]) -> None:
        while True:
            parts = await socket.recv_multipart()
            try:
                batch = decode(parts)
            except (msgspec.MsgspecError, ValueError, IndexError):
                _log.warning("the engine sent an event that could not be read; it shows as a gap")
                continue
            if batch is not None:
                self._hub.publish(batch)


def read_encoder_message(parts: list[bytes]) -> base.EventBatch:
    """One message of `ReportingEncoderCacheManager`."""
    sequence, seconds, kind, request_id, uuid, embeddings = msgspec.msgpack.decode(parts[0])
    event = base.EncoderEvent(kind, request_id, uuid, embeddings)
    return base.EventBatch("encoder", sequence, seconds, (event,))


class KVReader:
    """Turns vLLM's published batches into ours. Source: vLLM 0.32, vllm/distributed/kv_events.py::ZmqEventPublisher."""

    def __init__(self) -> None:
        from engine.vllm import v0_32

        self._types = v0_32
        self._decoder = msgspec.msgpack.Decoder(v0_32.KVEventBatch)

    def __call__(self, parts: list[bytes]) -> base.EventBatch:
        _topic, sequence, payload = parts
        batch = self._decoder.decode(payload)
        events = tuple(event for event in map(self._event, batch.events) if event is not None)
        return base.EventBatch("kv", int.from_bytes(sequence, "big"), batch.ts, events)

    def _event(self, event: Any) -> base.EngineEvent | None:
        if isinstance(event, self._types.BlockStored):
            keys = tuple(None if key is None else tuple(key) for key in event.extra_keys or ())
            return base.BlockStored(
                tuple(event.block_hashes), event.parent_block_hash, tuple(event.token_ids), event.block_size, keys
            )
        if isinstance(event, self._types.BlockRemoved):
            return base.BlockRemoved(tuple(event.block_hashes))
        return base.AllBlocksCleared()
