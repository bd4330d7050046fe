"""Messages as bytes. What was sent comes back byte for byte: key order, numbers and images included.

A content list holds an image as the JSON list `[id, width, height, media type, bytes, detail]`; all that a client
writes there are objects. A sent message that is the client's own, byte for byte, is kept as the index of that message.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from blake3 import blake3
from pydantic_core import from_json, to_json

from context.images.base import ImageRef
from context.plan import SentMessage
from context.store.turn_rows import Blobs, Tools
from context.transcript import DIGEST_BYTES, ImagePart, Message

# What the objects of one message take beside its text, measured: a dict, a few strings, two digests.
_MESSAGE_COST = 1024
# A message's digest and form.
_DIGESTS_BYTES = 2 * DIGEST_BYTES


def encode(client: Sequence[Message], sent: Sequence[SentMessage], first: int) -> Blobs:
    """Messages as a store keeps them.

    Args:
        first: index in the transcript of the first of the client's messages.
    """
    digests = b"".join(message.digest + message.form for message in client)
    wires = [wire_bytes(message.wire) for message in client]
    return Blobs(digests, _list(wires), _list([_sent(one, client, wires, first) for one in sent]))


def _sent(one: SentMessage, client: Sequence[Message], wires: Sequence[bytes], first: int) -> bytes:
    index = -1 if one.source is None else one.source - first
    own = 0 <= index < len(client)
    if own and one.wire is client[index].wire and one.origin == "client":
        return b"%d" % index
    wire = wire_bytes(one.wire)
    # The same bytes, not only equal values: in which order the keys stand is a part of what was sent.
    if one.origin != "client":
        return b"[%s,%s,%s]" % (to_json(one.source), wire, to_json(one.origin))
    return b"%d" % index if own and wire == wires[index] else b"[%s,%s]" % (to_json(one.source), wire)


@dataclass(frozen=True, slots=True)
class Texts:
    """What `encode` made, several times: the digests one after the other, and JSON arrays of the arrays."""

    digests: bytes
    client: str
    sent: str


def texts_of(digests: str | None, client: str | None, sent: str | None) -> Texts:
    """Texts of what was joined with commas, the digests in hexadecimal without; None for nothing."""
    return Texts(bytes.fromhex(digests or ""), f"[{client or ''}]", f"[{sent or ''}]")


@dataclass(frozen=True, slots=True)
class Decoded:
    """Messages, and how many in front of them are kept, the client's and those that were sent."""

    kept_client: int
    kept_sent: int
    client: list[Message]
    sent: list[SentMessage]


def decode(kept: Sequence[tuple[int, int, bool]], turns: Texts, replies: Texts) -> Decoded:
    """What `encode` was given, with nothing hashed again: each turn's messages behind what it keeps of those before,
    and its reply behind them.

    Args:
        kept: for each turn, the last one first, how many messages it keeps, the client's and those that were sent, and
            whether it has a reply.
        turns, replies: their messages in that order.

    Raises:
        ValueError: these are not its bytes.
    """
    made = Decoded(kept[-1][0], kept[-1][1], [], [])
    client, sent = made.client, made.sent
    # All texts are read as one: here calls cost more than bytes.
    turns_left, replies_left = _Left(turns), _Left(replies)
    for kept_client, kept_sent, is_answered in reversed(kept):
        if kept_client != made.kept_client + len(client) or kept_sent != made.kept_sent + len(sent):
            client_from, sent_from = made.kept_client, made.kept_sent
            _cut(client, client_from, kept_client)
            _cut(sent, sent_from, kept_sent)
            made = Decoded(min(client_from, kept_client), min(sent_from, kept_sent), client, sent)
        turns_left.move_last(made)
        if is_answered:
            replies_left.move_last(made)
    return made


class _Left:
    """Texts of which the last is taken each time."""

    def __init__(self, texts: Texts) -> None:
        self._digests, self._end = texts.digests, len(texts.digests)
        self._client: list[Any] = value_of(texts.client)
        self._sent: list[Any] = value_of(texts.sent)

    def move_last(self, made: Decoded) -> None:
        wires = self._client.pop()
        digests, at = self._digests, self._end - len(wires) * _DIGESTS_BYTES
        self._end = at
        client, sent = made.client, made.sent
        begin, first = len(client), made.kept_client + len(client)
        for wire in wires:
            middle, end = at + DIGEST_BYTES, at + _DIGESTS_BYTES
            client.append(Message(_revive(wire), digests[at:middle], digests[middle:end]))
            at = end
        for one in self._sent.pop():
            if isinstance(one, int):
                sent.append(SentMessage(client[begin + one].wire, first + one))
            else:
                sent.append(SentMessage(_revive(one[1]), one[0], *one[2:]))


def _cut(messages: list[Any], first: int, kept: int) -> None:
    """Drop all but the first `kept` of a list that starts at `first`."""
    if kept > first + len(messages):
        raise ValueError("a turn keeps more than there is")
    del messages[max(0, kept - first) :]


def same_bytes(one: SentMessage, other: SentMessage) -> bool:
    """Whether the engine is sent the same, for the same message."""
    return one is other or (one == other and wire_bytes(one.wire) == wire_bytes(other.wire))


def encode_tools(tools: Sequence[Mapping[str, Any]]) -> Tools:
    """Tools with the digest of their bytes."""
    data = value_bytes([dict(tool) for tool in tools])
    return Tools(blake3(data).digest(), data, tuple(tools))


def decode_tools(digest: bytes, data: bytes) -> Tools:
    """What `encode_tools` made."""
    return Tools(digest, data, tuple(value_of(data)))


def value_bytes(value: Any) -> bytes:
    """A JSON value's bytes, for `value_of`. What is in no standard but in some client's JSON is kept: infinities, and
    half a surrogate pair."""
    try:
        return to_json(value, inf_nan_mode="constants")
    except ValueError:
        return json.dumps(value, separators=(",", ":")).encode()


def value_of(data: bytes | str) -> Any:
    """The value that these bytes are of.

    Raises:
        ValueError: they are no JSON.
    """
    try:
        return from_json(data)
    except ValueError:
        return json.loads(data)


def cost_of(client: str | bytes, sent: str | bytes, messages: int) -> int:
    """Bytes that so many messages take in memory, about."""
    # One wide character makes a whole string wide: a text takes no more than the one that holds it.
    return sys.getsizeof(client) + sys.getsizeof(sent) + messages * _MESSAGE_COST


def wire_bytes(wire: Mapping[str, Any]) -> bytes:
    """A message's bytes, images by reference."""
    content = wire.get("content")
    if not isinstance(content, list):
        return value_bytes(dict(wire))
    parts = [_image(part) if isinstance(part, ImagePart) else part for part in cast("list[Any]", content)]
    return value_bytes({key: parts if key == "content" else value for key, value in wire.items()})


def _image(part: ImagePart) -> list[Any]:
    ref = part.ref
    return [ref.image_id, ref.width, ref.height, ref.media_type, ref.size_bytes, part.detail]


def _revive(wire: dict[str, Any]) -> dict[str, Any]:
    content = wire.get("content")
    if content.__class__ is list:
        parts = cast("list[Any]", content)
        wire["content"] = [_image_of(one) if one.__class__ is list else one for one in parts]
    return wire


def _image_of(kept: list[Any]) -> ImagePart:
    image_id, width, height, media_type, size_bytes, detail = kept
    return ImagePart(ImageRef(image_id, width, height, media_type, size_bytes), detail)


def _list(items: Sequence[bytes]) -> bytes:
    return b"[%s]" % b",".join(items)
