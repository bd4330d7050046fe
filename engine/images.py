"""Images on their way to an engine: how they stand on the wire, which the engine holds, and what a miss costs.

All engines share this. An engine that knows uuids is sent an image's bytes once and its uuid from then on. It may drop
an image at any time and says so when it is named; then the request goes out once more with the bytes, and the caller
never notices.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Container, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, cast

from pydantic_core import PydanticSerializationError, from_json, to_json

from context.errors import RequestError
from context.frozen import frozen
from engine.base import ChatRequest, EngineImage, EngineReply

# The order in which a body is written: the same request gives the same bytes, and what stands first in the prompt
# stands first on the wire. Keys that are not named here follow, sorted.
KEY_ORDER = (
    "model",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "messages",
    "stream",
    "stream_options",
    "max_completion_tokens",
    "max_tokens",
    "n",
    "temperature",
    "top_p",
    "seed",
    "stop",
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "user",
    "cache_salt",
)
_KNOWN_KEYS = frozenset(KEY_ORDER)
_MISS_ANSWER_BYTES = 64 * 1024
# Bound of the data URLs of one request, which are in memory all at once while it is sent.
MAX_IMAGE_BYTES = 128 * 1024 * 1024

Send = Callable[[Sequence[bytes]], AbstractAsyncContextManager[EngineReply]]


@frozen
class RenderedBody:
    """A chat body ready to be sent: `segments` in order, never joined because an image may have megabytes.

    `uuids` names every image; `by_uuid_alone` those that went without bytes, once for each place they stand.
    `image_bytes` counts the data URLs in `segments`.
    """

    segments: tuple[bytes, ...]
    image_bytes: int
    uuids: tuple[str, ...]
    by_uuid_alone: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        """The body's length on the wire."""
        return sum(map(len, self.segments))


class Holdings:
    """Uuids of images that one engine is believed to hold, the latest used last. Bounded.

    It is a belief: the engine may have dropped any of them. Nothing is believed before a request that carried or
    named the image was accepted.
    """

    def __init__(self, max_entries: int = 65_536) -> None:
        self._entries: OrderedDict[str, None] = OrderedDict()
        self._max_entries = max_entries
        self.generation = 0

    def __contains__(self, uuid: object) -> bool:
        return uuid in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, uuids: Iterable[str], *, generation: int | None = None) -> None:
        """Believe that the engine holds these. Ignored when `clear` ran since `generation` was read."""
        if generation is not None and generation != self.generation:
            return
        for uuid in uuids:
            self._entries[uuid] = None
            self._entries.move_to_end(uuid)
        while len(self._entries) > self._max_entries:
            self._entries.popitem(last=False)

    def forget(self, uuids: Iterable[str]) -> None:
        """No longer believe that the engine holds these."""
        for uuid in uuids:
            self._entries.pop(uuid, None)

    def clear(self) -> None:
        """Forget all: the engine was restarted, or its caches were reset."""
        self._entries.clear()
        self.generation += 1


async def render(
    body: Mapping[str, Any],
    *,
    accepts_uuid: bool,
    held: Container[str] = (),
    max_image_bytes: int = MAX_IMAGE_BYTES,
) -> RenderedBody:
    """Write a chat body for an engine. The body is not mutated.

    Every `EngineImage` in `messages[i].content` becomes an `image_url` part: its uuid alone when `held` contains it,
    its uuid and data URL otherwise, and the data URL alone for an engine that does not know uuids.

    Data URLs do not pass through the JSON encoder: each is a segment of its own. An image that stands twice is written
    twice: vLLM looks all up before it stores any, so a uuid alone beside its bytes in one request is a miss
    (multimodal/processing/processor.py::_get_cache_missing_items).

    Raises:
        RequestError: the body holds something that is not JSON, or (413 `too_many_image_bytes`) its data URLs would be
            longer than `max_image_bytes` in sum; no image was loaded then.
    """
    every = _images(body)
    ordered = {key: body[key] for key in KEY_ORDER if key in body}
    if len(ordered) < len(body):
        ordered |= {key: body[key] for key in sorted(body.keys() - _KNOWN_KEYS)}
    if not every:
        return RenderedBody((_to_json(ordered),), 0, (), ())
    held_uuids = frozenset(image.uuid for image in every if accepts_uuid and image.uuid in held)
    marker = secrets.token_hex(24)
    images: list[EngineImage] = []

    def place(part: Any) -> Any:
        if not isinstance(part, EngineImage):
            return part
        if part.uuid in held_uuids:
            return {"type": "image_url", "image_url": None, "uuid": part.uuid}
        images.append(part)
        url = {"url": marker} if part.detail is None else {"url": marker, "detail": part.detail}
        shown: dict[str, Any] = {"type": "image_url", "image_url": url}
        return shown | {"uuid": part.uuid} if accepts_uuid else shown

    ordered["messages"] = [_placed(message, place) for message in body["messages"]]
    _require_image_bytes(images, max_image_bytes)
    pieces = _to_json(ordered).split(marker.encode())
    segments = [pieces[0]]
    image_bytes = 0
    for image, piece in zip(images, pieces[1:], strict=True):
        url = await image.load()
        image_bytes += len(url)
        segments += (url, piece)
    alone = tuple(image.uuid for image in every if image.uuid in held_uuids)
    return RenderedBody(tuple(segments), image_bytes, tuple(dict.fromkeys(image.uuid for image in every)), alone)


def _require_image_bytes(images: Iterable[EngineImage], limit: int) -> None:
    """Raises:
    RequestError: (413) the images' data URLs would be longer than `limit` bytes in sum.
    """
    # Base64 writes three bytes as four.
    total = sum(-(-image.ref.size_bytes // 3) * 4 for image in images)
    if total > limit:
        raise RequestError(
            f"The request's images have {total:,} bytes as they are sent to the engine; the limit is {limit:,}. Send "
            "fewer or smaller images.",
            code="too_many_image_bytes",
            status=413,
        )


def _to_json(value: Any) -> bytes:
    try:
        return to_json(value)
    except (PydanticSerializationError, UnicodeEncodeError) as error:
        raise RequestError("The request holds text or numbers that JSON cannot carry.", code="invalid_json") from error


def _images(body: Mapping[str, Any]) -> list[EngineImage]:
    return [part for message in body.get("messages", ()) for part in _image_parts(message.get("content"))]


def _image_parts(content: Any) -> list[EngineImage]:
    if not isinstance(content, (list, tuple)):
        return []
    return [part for part in cast("Sequence[Any]", content) if isinstance(part, EngineImage)]


def _placed(message: Mapping[str, Any], place: Callable[[Any], Any]) -> Mapping[str, Any]:
    content: Any = message.get("content")
    return {**message, "content": [place(part) for part in content]} if _image_parts(content) else message


class open_chat(AbstractAsyncContextManager[EngineReply]):
    """Send a chat, with as few image bytes as the engine needs, and give its reply.

    `send` puts one body on the wire; leaving its context cancels that request. When the engine answers that it misses
    an image, that reply is closed and the request is sent once more with the bytes of every image. `accepts_salt`
    (default: as `accepts_uuid`) says whether the body may carry the tenant's `cache_salt`. With `names_request` it
    carries the request's id as `session_id`: vLLM's KV events bring it back, and it changes no hash.

    Raises:
        RequestError: the body cannot be written as JSON, or (413 `too_many_image_bytes`) the images that have to be
            sent are larger than the request's `max_image_bytes` as data URLs.
        EngineError: whatever `send` raises.
    """

    # Not a generator: that took as long as to write a small body.
    __slots__ = ("_accepts_uuid", "_body", "_holdings", "_max_image_bytes", "_send", "_sent")

    def __init__(
        self,
        request: ChatRequest,
        *,
        accepts_uuid: bool,
        holdings: Holdings,
        send: Send,
        accepts_salt: bool | None = None,
        names_request: bool = False,
    ) -> None:
        self._accepts_uuid, self._holdings, self._send = accepts_uuid, holdings, send
        self._max_image_bytes = request.max_image_bytes
        self._body = body = dict(request.body)
        body.pop("cache_salt", None)
        if request.cache_salt and (accepts_uuid if accepts_salt is None else accepts_salt):
            body["cache_salt"] = request.cache_salt
        if names_request:
            body["session_id"] = request.request_id

    async def __aenter__(self) -> EngineReply:
        holdings = self._holdings
        generation = holdings.generation
        first = await self._render(holdings)
        sent = self._sent = self._send(first.segments)
        reply = await sent.__aenter__()
        if not (first.by_uuid_alone and await self._missed(reply)):
            reply.sent_image_bytes = first.image_bytes
            _learn(holdings, reply, first, generation)
            return reply
        await sent.__aexit__(None, None, None)
        holdings.forget(first.by_uuid_alone)
        generation = holdings.generation
        sent_image_bytes, missed = first.image_bytes, len(first.by_uuid_alone)
        # Let go before all bytes are loaded: the bound is for one body.
        del first
        again = await self._render(())
        sent = self._sent = self._send(again.segments)
        reply = await sent.__aenter__()
        reply.sent_image_bytes = sent_image_bytes + again.image_bytes
        reply.image_misses = missed
        _learn(holdings, reply, again, generation)
        return reply

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._sent.__aexit__(kind, error, trace)

    async def _render(self, held: Container[str]) -> RenderedBody:
        return await render(
            self._body, accepts_uuid=self._accepts_uuid, held=held, max_image_bytes=self._max_image_bytes
        )

    async def _missed(self, reply: EngineReply) -> bool:
        try:
            return await _is_miss(reply)
        except BaseException as error:
            await self._sent.__aexit__(type(error), error, error.__traceback__)
            raise


def _learn(holdings: Holdings, reply: EngineReply, rendered: RenderedBody, generation: int) -> None:
    # vLLM stores images while it renders the prompt, before it answers: a 2xx status is enough, the stream need not
    # have ended.
    if 200 <= reply.status < 300:
        holdings.add(rendered.uuids, generation=generation)


async def _is_miss(reply: EngineReply) -> bool:
    """Whether the reply is vLLM's answer to a uuid that it does not hold. Any other reply stays readable."""
    if reply.status != 400:
        return False
    chunks: list[bytes] = []
    async for chunk in reply.chunks:
        chunks.append(chunk)
        if sum(map(len, chunks)) > _MISS_ANSWER_BYTES:
            break
    if is_cache_miss(b"".join(chunks)):
        return True
    reply.chunks = _resumed(chunks, reply.chunks)
    return False


async def _resumed(read: list[bytes], rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    for chunk in read:
        yield chunk
    async for chunk in rest:
        yield chunk


def is_cache_miss(answer: bytes) -> bool:
    """Whether an error body says that a uuid came without data and is not held.

    Source: vLLM 0.32, multimodal/processing/processor.py::BaseMultiModalProcessor._get_cache_missing_items.
    """
    try:
        body = from_json(answer)
    except ValueError:
        return False
    error: Any = cast("dict[str, Any]", body).get("error") if isinstance(body, dict) else None
    message: Any = cast("dict[str, Any]", error).get("message") if isinstance(error, dict) else None
    return isinstance(message, str) and "Cache miss" in message and "data is not provided" in message
