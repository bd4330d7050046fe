"""The engine seam: what the gateway asks of whatever answers a chat.

Three engines implement it, and one contract suite (`tests/contract/`) runs on all of them:

    engine/vllm/    vLLM's own OpenAI server embedded in this process
    engine/remote/  any OpenAI-compatible upstream
    engine/fake/    deterministic and block-accurate, without a model

An engine is started once, answers many chats at a time from one event loop, and is stopped once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from context.errors import EngineProtocolError
from context.frozen import frozen
from context.images.base import ImageRef
from context.reuse import Reuse


@dataclass(frozen=True, slots=True)
class EngineImage:
    """One image part of a chat body, standing in the content list where the client's part stood.

    `uuid` is the tenant's own name for the content (never the client's). `load` gives the pinned bytes as a data
    URL in ASCII (`data:image/png;base64,...`); it is called only when the engine needs the bytes.
    """

    uuid: str
    ref: ImageRef
    load: Callable[[], Awaitable[bytes]]
    detail: str | None = None


@frozen
class ChatRequest:
    """A chat to forward. The engine does not mutate it.

    `body` is OpenAI's chat completion body in which every image part is an `EngineImage`. `cache_salt` keeps
    tenants apart in the prefix cache. `affinity` names the conversation, for the choice among several upstreams.
    `authorization` is the client's own header value, for upstreams that are configured without a key.
    `max_image_bytes` bounds the image data, as data URLs, that may be in memory to be sent at once. `reuse` allows
    approximate KV of images; None: exact KV alone. An engine that has no such KV computes everything.
    """

    request_id: str
    body: Mapping[str, Any]
    cache_salt: str
    affinity: str = ""
    authorization: str | None = None
    max_image_bytes: int = 128 * 1024 * 1024
    reuse: Reuse | None = None


@dataclass(slots=True)
class EngineReply:
    """The engine's HTTP answer. `chunks` may be iterated once; leaving the context that gave it cancels the work.

    `sent_image_bytes` counts the image payload that went to the engine for this request, in bytes on the wire;
    `image_misses` counts images that were first sent by uuid alone and had to be sent again with their bytes.
    """

    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]
    sent_image_bytes: int = 0
    image_misses: int = 0

    async def read(self, max_bytes: int = 64 * 1024 * 1024) -> bytes:
        """The whole body. For replies that are known to be small or not streamed.

        Raises:
            EngineProtocolError: it is longer than `max_bytes`.
        """
        chunks: list[bytes] = []
        size = 0
        async for chunk in self.chunks:
            chunks.append(chunk)
            size += len(chunk)
            if size > max_bytes:
                raise EngineProtocolError("The engine's answer is too long.")
        return b"".join(chunks)


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """`state` is what readiness reports; `reason` is for people and holds no path and no exception text."""

    state: Literal["starting", "ready", "crashed", "stopped"]
    reason: str = ""

    @property
    def ready(self) -> bool:
        return self.state == "ready"


@dataclass(frozen=True, slots=True)
class BlockStored:
    """KV blocks became resident. Hashes are opaque; `extra_keys` has one entry a block: ((mm identifier, offset), ...).

    `request_id` is the gateway's request that stored them; empty where the engine does not say.

    Source: vLLM 0.32, vllm/distributed/kv_events.py::BlockStored.
    """

    block_hashes: tuple[bytes | int, ...]
    parent_block_hash: bytes | int | None
    token_ids: tuple[int, ...]
    block_size: int
    extra_keys: tuple[tuple[Any, ...] | None, ...] = ()
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """KV blocks are no longer resident. Source: vLLM 0.32, vllm/distributed/kv_events.py::BlockRemoved."""

    block_hashes: tuple[bytes | int, ...]


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """The prefix cache was reset. Source: vLLM 0.32, vllm/distributed/kv_events.py::AllBlocksCleared."""


@dataclass(frozen=True, slots=True)
class EncoderEvent:
    """What the encoder cache did for one image of one request.

    `kind`: `run` (vision encoder computed it), `hit` (features reused), `load` (features came from the pool of images'
    KV), `evict` (features dropped; `request_id` is the request whose need evicted them), `done` (the request holds no
    more features; its last event), `reset` (all features dropped; no request). `request_id` is the gateway's. `uuid` is
    empty for `done` and `reset`.
    """

    kind: Literal["run", "hit", "load", "evict", "done", "reset"]
    request_id: str
    uuid: str = ""
    embeddings: int = 0


@dataclass(frozen=True, slots=True)
class ImageReuse:
    """What a request that opted in to approximate reuse got of its images' KV. `request_id` is the gateway's.

    `images` are the different ones in its prompt. `hits` counts places where KV was loaded, `misses` images that were
    asked for and not had. `loaded_tokens` were loaded and not computed: usage counts them neither as read nor as
    written. `computed_tokens` are what was computed of the same images. `reread_tokens` were read from the prefix cache
    among blocks that may be approximate; usage counts them as read.
    """

    request_id: str
    images: int
    hits: int
    misses: int
    loaded_tokens: int
    computed_tokens: int
    reread_tokens: int


@dataclass(frozen=True, slots=True)
class ImagePoolState:
    """The pool of images' KV now; counts of what happened are since the engine's start.

    `requests` are known to it, `holds` are out, `capturing` entries are being filled, `held_entries` are in use,
    `unwritten_entries` are on their way to a file. `refused_entries` found no room in memory. Of the files, `refused`
    were damaged or not ours, and `faults` are refusals of the disk, after one of which `writing` is 0.
    """

    requests: int = 0
    holds: int = 0
    capturing: int = 0
    memory_entries: int = 0
    memory_bytes: int = 0
    held_entries: int = 0
    unwritten_entries: int = 0
    memory_hits: int = 0
    file_hits: int = 0
    misses: int = 0
    memory_evicted: int = 0
    refused_entries: int = 0
    file_entries: int = 0
    file_bytes: int = 0
    file_evicted: int = 0
    file_refused: int = 0
    file_faults: int = 0
    writing: int = 0


@dataclass(frozen=True, slots=True)
class BlockTierState:
    """The tiers below the engine's prefix cache now; counts of what happened are since the engine's start.

    `requests` are known to them, `busy_blocks` are on their way from or to somewhere and cannot leave memory. Blocks in
    memory by what they hold, `block_bytes` each. `stored` blocks came, `loaded` were read back by the engine
    from there, `evicted` went for room, `dropped` found none or came too fast. Of the files, `refused` were damaged or
    not ours, and `faults` are refusals of the disk, after one of which `writing` is 0.
    """

    requests: int = 0
    busy_blocks: int = 0
    block_bytes: int = 0
    text_blocks: int = 0
    image_blocks: int = 0
    mixed_blocks: int = 0
    memory_stored: int = 0
    memory_loaded: int = 0
    memory_evicted: int = 0
    memory_dropped: int = 0
    file_blocks: int = 0
    file_bytes: int = 0
    file_stored: int = 0
    file_loaded: int = 0
    file_evicted: int = 0
    file_dropped: int = 0
    file_refused: int = 0
    file_faults: int = 0
    writing: int = 0


EngineEvent = (
    BlockStored | BlockRemoved | AllBlocksCleared | EncoderEvent | ImageReuse | ImagePoolState | BlockTierState
)


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Events in the engine's order. `sequence` counts up by one on each stream; a jump is a gap."""

    stream: Literal["kv", "encoder", "images"]
    sequence: int
    seconds: float
    events: tuple[EngineEvent, ...]


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What is known of a ready engine. None means that the engine does not say.

    `accepts_uuid`: an image part may carry a uuid, and no bytes when the engine holds them. `block_tokens`: tokens
    in one KV block. `max_aspect_ratio`: long side over short side of an image that the model takes. `caches_prefix`: it
    keeps a prefix cache. `reports_read`: its usage says what was read from it. `asked_answers`: a
    chat's answer, whole, that each upstream was asked for at the start; empty where none was. `reuses_images`: it keeps
    images' KV for approximate reuse. `has_layer_profile`: it knows how much each layer of its model needs computed.
    """

    kind: Literal["vllm", "remote", "fake"]
    models: tuple[str, ...] = ()
    accepts_uuid: bool = False
    block_tokens: int | None = None
    max_model_tokens: int | None = None
    max_images_per_prompt: int | None = None
    max_aspect_ratio: float | None = None
    caches_prefix: bool | None = None
    reports_read: bool | None = None
    asked_answers: tuple[Mapping[str, Any], ...] = ()
    reuses_images: bool = False
    has_layer_profile: bool = False
    extra: Mapping[str, str] = field(default_factory=dict[str, str])


class Engine(Protocol):
    """What answers chats. All methods are called from one event loop."""

    async def start(self) -> None:
        """Make the engine ready to answer. Returns when `health().ready`.

        Raises:
            EngineUnavailable: it could not be started; `health()` says why.
        """
        ...

    async def stop(self) -> None:
        """Cancel what runs, free everything, leave no process, task or socket behind. May be called at any time."""
        ...

    def health(self) -> EngineHealth:
        """The state right now; never blocks."""
        ...

    def info(self) -> EngineInfo:
        """What is known of the engine; complete once it is ready."""
        ...

    def chat(self, request: ChatRequest) -> AbstractAsyncContextManager[EngineReply]:
        """Forward a chat. Images that the engine holds go as their uuid alone, and are sent again with bytes when
        the engine says that it does not hold them; the caller never sees that miss.

        Leaving the context cancels whatever is still running for the request, also before the first byte.

        Raises (on entering):
            EngineUnavailable: not ready, or it broke before it answered.
            EngineTimeout: no answer within the engine's time limit.
            RequestError: the request can't be sent at all.
        Raises (while iterating the chunks):
            EngineUnavailable, EngineTimeout, EngineProtocolError: it broke in the middle.
        """
        ...

    def forward(
        self, method: str, path: str, *, headers: Mapping[str, str], body: Sequence[bytes] = ()
    ) -> AbstractAsyncContextManager[EngineReply]:
        """Pass a request to the engine's own HTTP surface as it is (models, tokenize, metrics, cache resets)."""
        ...

    async def reset_caches(self) -> None:
        """Empty the prefix, processor and encoder caches, and what is kept beside them, in memory and in files. For
        experiments.

        Raises:
            EngineUnavailable: the engine has no way to do it, or refused; or images' KV in files could not be removed.
        """
        ...

    def events(self) -> AbstractAsyncContextManager[AsyncIterator[EventBatch]]:
        """Subscribe to cache events from now on. A slow reader loses the oldest batches, which shows as a gap.

        An engine that reports none gives an iterator that ends at once.
        """
        ...
