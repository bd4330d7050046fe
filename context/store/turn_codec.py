"""Messages as bytes. What was sent comes back byte for byte: key order, numbers and images included.

A content list holds an image as the JSON list `[id, width, height, media type, bytes, detail]`; all that a client
writes there are objects. A sent message that is the client's own, byte for byte, is kept as the index of that message.
"""

from __future__ import annotations

import json
import struct
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain, repeat
from typing import Any, TypeVar, cast

from blake3 import blake3
from pydantic_core import from_json, to_json

from context.images.base import ImageRef
from context.plan import SentMessage
from context.store.turn_rows import Blobs, Tools
from context.transcript import DIGEST_BYTES, ImagePart, Message

# What the objects of one message take beside its text, measured: a dict, a few strings, two digests.
_MESSAGE_COST = 1024
# A sent message of the client's is kept as its source and wire; others with their origin behind.
_CLIENTS = 2
# A digest and a form.
_NAME_BYTES = 2 * DIGEST_BYTES
_MISSING = Message({}, b"", b"")
# How many messages a turn keeps, the client's and those that were sent; whether it has a reply, 0 or 1; how many of the
# client's it adds; and bytes of their text, and of the reply's.
Kept = tuple[int, int, int, int, int, int]
# The index in the transcript of the first of the client's messages of a turn or a reply, how many, and their bytes.
_Group = tuple[int, int, int]
_Kind = TypeVar("_Kind", ImageRef, ImagePart, Message, SentMessage)
# What sets each field of these, frozen or not.
_PUTS: dict[type[Any], list[Callable[[Any, Any], None]]] = {
    kind: [getattr(kind, one.name).__set__ for one in fields(kind)]
    for kind in (ImageRef, ImagePart, Message, SentMessage)
}


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
    """What `encode` made for several turns and their replies, each reply behind its turn: the digests one after the
    other, and the arrays joined with commas."""

    digests: bytes
    client: bytes
    sent: str


@dataclass(frozen=True, slots=True)
class Decoded:
    """Messages, and how many in front of them are kept, the client's and those that were sent."""

    kept_client: int
    kept_sent: int
    client: list[Message]
    sent: list[SentMessage]


def decode(kept: Sequence[Kept], texts: Texts, came: Sequence[Message] = ()) -> Decoded:
    """What `encode` was given, with nothing hashed again: each turn's messages behind what it keeps of those before,
    and its reply behind them.

    Args:
        kept: of each turn, the first one first.
        texts: their messages.
        came: a client's messages, from the first one on. Turns and replies whose messages came in the spelling in which
            they are kept share these; that takes a third of the time, and of the objects.

    Raises:
        ValueError: these are not its bytes.
    """
    # All texts are read as one, and all objects made at once: here calls cost more than bytes.
    sent: list[list[Any]] = value_of(f"[{texts.sent}]")
    groups = _groups(kept)
    if len(groups) != len(sent) or len(texts.digests) != _NAME_BYTES * sum([count for _, count, _ in groups]):
        raise ValueError("a turn or a reply lacks its messages")
    messages = _client_messages(groups, texts, came)
    return _cut(kept, messages, _sent_messages(messages, sent, groups), sent)


def _groups(kept: Sequence[Kept]) -> list[_Group]:
    groups: list[_Group] = []
    for kept_client, _, is_answered, count, size, reply_size in kept:
        groups.append((kept_client, count, size))
        if is_answered:
            groups.append((kept_client + count, 1, reply_size))
    return groups


def _client_messages(groups: Sequence[_Group], texts: Texts, came: Sequence[Message]) -> list[Message]:
    names = b"".join([name for one in came for name in (one.digest, one.form)])
    messages: list[Message] = []
    missing: list[int] = []
    missing_names: list[bytes] = []
    missing_texts: list[bytes] = []
    at = 0
    for first, count, size in groups:
        begin = len(messages)
        kept_names = texts.digests[begin * _NAME_BYTES : (begin + count) * _NAME_BYTES]
        if kept_names == names[first * _NAME_BYTES : (first + count) * _NAME_BYTES]:
            messages += came[first : first + count]
        else:
            missing += range(begin, begin + count)
            missing_names.append(kept_names)
            missing_texts.append(texts.client[at : at + size])
            messages += repeat(_MISSING, count)
        at += size + 1
    if missing:
        wires: list[list[Any]] = value_of(b"[%s]" % b",".join(missing_texts))
        read = _messages(list(chain.from_iterable(wires)), b"".join(missing_names))
        for place, message in zip(missing, read, strict=True):
            messages[place] = message
    return messages


def _messages(wires: list[dict[str, Any]], names: bytes) -> list[Message]:
    if len(names) != len(wires) * _NAME_BYTES:
        raise ValueError("a digest lacks its message")
    _revive(wires)
    each = struct.unpack(f"{DIGEST_BYTES}s" * (2 * len(wires)), names)
    return _objects(Message, wires, each[::2], each[1::2])


def _sent_messages(
    client: Sequence[Message], sent: Sequence[Sequence[Any]], groups: Sequence[_Group]
) -> list[SentMessage]:
    """Messages as they were sent.

    Args:
        client: the client's of all turns and replies, one after the other.
        sent: what was kept, for each turn and reply.
        groups: of each turn and reply.
    """
    wires: list[Any] = []
    sources: list[int | None] = []
    own: dict[int, str] = {}
    begin = 0
    for ours, (first, count, _) in zip(sent, groups, strict=True):
        for one in ours:
            if one.__class__ is int:
                place: int = begin + one
                wires.append(client[place].wire)
                sources.append(first + one)
            else:
                own[len(wires)] = one[2] if len(one) > _CLIENTS else "client"
                sources.append(one[0])
                wires.append(one[1])
        begin += count
    origins = ["client"] * len(wires)
    for place, origin in own.items():
        origins[place] = origin
    # Those that are the client's own hold their images already.
    _revive([wires[place] for place in own])
    return _objects(SentMessage, wires, sources, origins)


def _cut(
    kept: Sequence[Kept], client: list[Message], sent: list[SentMessage], sent_groups: Sequence[Sequence[Any]]
) -> Decoded:
    """Drop what the turns do not keep of those before them.

    Args:
        kept: see `decode`.
        client, sent: all messages; they are changed.
        sent_groups: as many as were sent for each turn or reply.
    """
    client_from, sent_from, *_ = kept[0]
    client_end = sent_end = group = 0
    for kept_client, kept_sent, is_answered, count, _, _ in kept:
        if kept_client != client_from + client_end:
            client_end = _drop(client, client_from, client_end, kept_client)
            client_from = min(client_from, kept_client)
        if kept_sent != sent_from + sent_end:
            sent_end = _drop(sent, sent_from, sent_end, kept_sent)
            sent_from = min(sent_from, kept_sent)
        client_end += count + is_answered
        for _ in range(1 + is_answered):
            sent_end += len(sent_groups[group])
            group += 1
    return Decoded(client_from, sent_from, client, sent)


def _drop(messages: list[Any], first: int, end: int, kept: int) -> int:
    """Drop those before `end`, of a list that starts at `first`, but the first `kept`; where the others then begin."""
    if kept > first + end:
        raise ValueError("a turn keeps more than there is")
    begin = max(0, kept - first)
    del messages[begin:end]
    return begin


def _objects(kind: type[_Kind], *columns: Sequence[Any]) -> list[_Kind]:
    """Objects of a frozen slotted dataclass by their fields' values. As many calls of it take three times as long.

    Raises:
        ValueError: there are fewer columns than fields, or more.
    """
    new: Callable[[type[_Kind]], _Kind] = object.__new__
    made = list(map(new, repeat(kind, len(columns[0]))))
    for put, column in zip(_PUTS[kind], columns, strict=True):
        deque(map(put, made, column), maxlen=0)
    return made


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
    return _text_cost(client) + _text_cost(sent) + messages * _MESSAGE_COST


def _text_cost(text: str | bytes) -> int:
    # One wide character makes a whole string wide: a text takes no more than the one that holds it. Bytes of ASCII take
    # about as much, and nothing has to be made to learn that.
    return sys.getsizeof(text if isinstance(text, str) or text.isascii() else text.decode())


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


def _revive(wires: Sequence[dict[str, Any]]) -> None:
    """Put `ImagePart`s where images were kept as lists."""
    contents: list[list[Any]] = [content for wire in wires if (content := wire.get("content", "")).__class__ is list]
    found = [part for content in contents for part in content if part.__class__ is list]
    if not found:
        return
    *refs, details = zip(*found, strict=True)
    images = iter(_objects(ImagePart, _objects(ImageRef, *refs), details))
    for content in contents:
        for place, part in enumerate(content):
            if part.__class__ is list:
                content[place] = next(images)


def _list(items: Sequence[bytes]) -> bytes:
    return b"[%s]" % b",".join(items)
