"""Read what the engine core reports: KV events from vLLM's publisher, encoder events from our cache manager, and what
the pool of images' KV and the tiers for blocks do.
"""

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
_REPLAY_SECONDS = 2.0
_END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
_ON_DEVICE = (None, "GPU")
_IMAGE_EVENTS = {"request": base.ImageReuse, "pool": base.ImagePoolState, "tiers": base.BlockTierState}
_FULL_ATTENTION = (None, "full_attention", "mla_attention", "sink_full_attention", "unknown")


class Telemetry:
    """Local sockets in a private folder, read into an `EventHub` in the order they came."""

    def __init__(self, hub: EventHub) -> None:
        self._hub = hub
        # A short folder: the address of a local socket holds 107 bytes.
        self._folder = Path(tempfile.mkdtemp(prefix="stillframe-"))
        self._context = zmq.asyncio.Context()
        self._tasks: list[asyncio.Task[None]] = []
        self.kv_endpoint = f"ipc://{self._folder}/kv"
        self.replay_endpoint = f"ipc://{self._folder}/replay"
        self.encoder_endpoint = f"ipc://{self._folder}/encoder"
        self.image_endpoint = f"ipc://{self._folder}/images"

    def start(self) -> None:
        """Bind and read. Before the engine core starts, so that nothing is lost."""
        encoder, images = self._bound(self.encoder_endpoint), self._bound(self.image_endpoint)
        kv = self._context.socket(zmq.SUB)
        kv.set(zmq.RCVHWM, _HIGH_WATER)
        kv.set(zmq.SUBSCRIBE, b"")
        kv.connect(self.kv_endpoint)
        self._tasks = [
            asyncio.create_task(self._read(encoder, read_encoder_message), name="stillframe-encoder-events"),
            asyncio.create_task(self._read(images, read_image_message), name="stillframe-image-events"),
            asyncio.create_task(self._read_kv(kv), name="stillframe-kv-events"),
        ]

    async def stop(self) -> None:
        """Stop reading, close the sockets and remove the folder."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._context.destroy(linger=0)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _bound(self, endpoint: str) -> zmq.asyncio.Socket:
        socket = self._context.socket(zmq.PULL)
        socket.set(zmq.RCVHWM, _HIGH_WATER)
        socket.bind(endpoint)
        return socket

    async def _read(self, socket: zmq.asyncio.Socket, decode: Callable[[list[bytes]], base.EventBatch]) -> None:
        while True:
            batch = _decoded(await socket.recv_multipart(), decode)
            if batch is not None:
                self._hub.publish(batch)

    async def _read_kv(self, socket: zmq.asyncio.Socket) -> None:
        """Publish batches in their order. Those that did not come, the first ones of an engine among them, are asked
        for again; what the engine no longer has shows as a gap.
        """
        reader, awaited = KVReader(), 0
        while True:
            batch = _decoded(await socket.recv_multipart(), reader)
            if batch is None:
                continue
            if batch.sequence > awaited:
                for missed in await self._missed(awaited, batch.sequence, reader):
                    self._hub.publish(missed)
            self._hub.publish(batch)
            awaited = batch.sequence + 1

    async def _missed(self, start: int, end: int, reader: KVReader) -> list[base.EventBatch]:
        """The batches from `start` up to `end`, as far as the engine still has them and sends them in time.

        Source: vLLM 0.32, vllm/distributed/kv_events.py::ZmqEventPublisher._service_replay.
        """
        socket = self._context.socket(zmq.DEALER)
        socket.set(zmq.RCVHWM, _HIGH_WATER)
        found: list[base.EventBatch] = []
        try:
            socket.connect(self.replay_endpoint)
            async with asyncio.timeout(_REPLAY_SECONDS):
                await socket.send_multipart([b"", start.to_bytes(8, "big")])
                while (parts := (await socket.recv_multipart())[1:])[1] != _END_OF_REPLAY:
                    batch = _decoded(parts, reader)
                    if batch is not None and start <= batch.sequence < end:
                        found.append(batch)
        except TimeoutError:
            _log.warning("the engine did not send the events again that were missed")
        finally:
            socket.close(linger=0)
        return found


def _decoded(parts: list[bytes], decode: Callable[[list[bytes]], base.EventBatch]) -> base.EventBatch | None:
    try:
        return decode(parts)
    except (msgspec.MsgspecError, ValueError, TypeError, LookupError):
        _log.warning("the engine sent an event that could not be read; it shows as a gap")
        return None


def read_encoder_message(parts: list[bytes]) -> base.EventBatch:
    """One message of `ReportingEncoderCacheManager`."""
    sequence, seconds, kind, request_id, uuid, embeddings = msgspec.msgpack.decode(parts[0])
    event = base.EncoderEvent(kind, request_id, uuid, embeddings)
    return base.EventBatch("encoder", sequence, seconds, (event,))


def read_image_message(parts: list[bytes]) -> base.EventBatch:
    """One message of `image_kv.reporting.Reporter`, or of `block_tiers.manager.BlockTiersManager`."""
    sequence, seconds, kind, values = msgspec.msgpack.decode(parts[0])
    event = _IMAGE_EVENTS[kind](*values)
    return base.EventBatch("images", sequence, seconds, (event,))


class KVReader:
    """Turns vLLM's published batches into ours: what stands on the device, in groups of full attention.

    Blocks of other groups, and of offload tiers, bear the same hashes and come and go on their own.

    Source: vLLM 0.32, vllm/distributed/kv_events.py::ZmqEventPublisher.
    """

    def __init__(self) -> None:
        from engine.vllm import v0_32

        self._types = v0_32
        self._decoder = msgspec.msgpack.Decoder(v0_32.KVEventBatch)
        self._other_groups: set[int] = set()

    def __call__(self, parts: list[bytes]) -> base.EventBatch:
        _topic, sequence, payload = parts
        batch = self._decoder.decode(payload)
        events = tuple(event for event in map(self._event, batch.events) if event is not None)
        return base.EventBatch("kv", int.from_bytes(sequence, "big"), batch.ts, events)

    def _event(self, event: Any) -> base.EngineEvent | None:
        if isinstance(event, self._types.AllBlocksCleared):
            return base.AllBlocksCleared()
        if event.medium not in _ON_DEVICE or event.group_idx in self._other_groups:
            return None
        if isinstance(event, self._types.BlockRemoved):
            return base.BlockRemoved(tuple(event.block_hashes))
        if event.group_idx is not None and event.kv_cache_spec_kind not in _FULL_ATTENTION:
            self._other_groups.add(event.group_idx)
            return None
        keys = tuple(None if key is None else tuple(key) for key in event.extra_keys or ())
        return base.BlockStored(
            tuple(event.block_hashes),
            event.parent_block_hash,
            tuple(event.token_ids),
            event.block_size,
            keys,
            event.session_id or "",
        )
