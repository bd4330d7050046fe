"""The client's messages in a form in which things that mean the same are equal.

A transcript is what came, not what is sent. Each message has a digest of its meaning, and each prefix of the
transcript a chain digest, per tenant. These are equal:

    content       a string and one text part with it; text parts by each of their names; null, "", [], empty text parts
                  and no content at all
    images        both wire shapes, any container, data and URL: by image_id; `detail` auto and none
    tool calls    arguments by value, whatever their key order and spacing
    keys          in any order; those that are null or empty; `cache_control`, `annotations` and `logprobs`, which no
                  prompt holds

Text is compared as it is, code point by code point: two Unicode forms of one word are two texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, cast

from blake3 import blake3
from pydantic_core import from_json, to_json

from context.frozen import frozen
from context.images.base import ImageRef

DIGEST_BYTES = 32
# OpenAI's two names of a system message.
SYSTEM_ROLES = frozenset(("system", "developer"))
# Keys of a message that are compared in a form of their own.
_OWN_KEYS = frozenset(("role", "content", "tool_calls"))
# Keys that change nothing that a model is shown.
_SILENT_KEYS = frozenset(("cache_control", "annotations", "logprobs"))
_TEXT_KEYS = frozenset(("type", "text"))
# What OpenAI's Responses call a text; engines take it so in a chat, too.
_TEXT_TYPES = ("text", "input_text", "output_text")
# Role and content are all that most messages have.
_PLAIN_KEYS = 2
# As `canonical` has it.
_NO_TEXT = ["text", ""]
_EXACT_FLOAT = 2**53


@frozen
class ImagePart:
    """An image in a message's content list, where the client's part stood. `detail` is OpenAI's option."""

    ref: ImageRef
    detail: str | None = None


@frozen
class Message:
    """One message of a transcript.

    Attributes:
        wire: the message as it would be sent: the client's own keys and strings, each image part an `ImagePart`.
        digest: of its meaning; 32 bytes.
        form: of its exact spelling, images by id; differs where a client writes the same meaning in another way.
    """

    wire: Mapping[str, Any]
    digest: bytes
    form: bytes

    @property
    def role(self) -> str:
        """The message's role."""
        return self.wire["role"]

    @property
    def parts(self) -> Sequence[Any]:
        """Content parts: text as a part of its own, images as `ImagePart`."""
        return parts_of(self.wire)

    @property
    def images(self) -> Iterator[tuple[int, ImagePart]]:
        """Images with the index of their part."""
        return ((index, part) for index, part in enumerate(self.parts) if isinstance(part, ImagePart))


@frozen
class Transcript:
    """All messages of one request, in order. `chain[i]` is the digest of messages 0 to i for this tenant."""

    messages: tuple[Message, ...]
    chain: tuple[bytes, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.messages)


def transcript(wires: Sequence[Mapping[str, Any]], tenant_key: bytes) -> Transcript:
    """Read messages whose image parts are `ImagePart`s. Nothing is mutated.

    Args:
        wires: the messages, checked: each has a role; content is absent, null, a string or a list of parts.
        tenant_key: keeps the chains of tenants apart.
    """
    messages = tuple(message_of(wire) for wire in wires)
    return Transcript(messages, chain_of((message.digest for message in messages), tenant_key))


def message_of(wire: Mapping[str, Any]) -> Message:
    """One message with its digests."""
    form = blake3(to_json(_spelled(wire))).digest()
    content = wire.get("content")
    if isinstance(content, str) and content and len(wire) == _PLAIN_KEYS:
        # As `canonical` has it, for most messages.
        meant: Any = {"role": wire["role"], "content": [["text", content]]}
    else:
        meant = canonical(wire)
    return Message(wire, blake3(to_json(meant)).digest(), form)


def chain_of(digests: Iterator[bytes] | Sequence[bytes], tenant_key: bytes) -> tuple[bytes, ...]:
    """The chain digest after each message."""
    chain: list[bytes] = []
    last = blake3(b"stillframe-chain-v1\0" + tenant_key).digest()
    for digest in digests:
        last = chain_after(last, digest)
        chain.append(last)
    return tuple(chain)


def chain_after(last: bytes, digest: bytes) -> bytes:
    """The chain digest behind one more message."""
    return blake3(last + digest).digest()


def text_part(text: str) -> dict[str, Any]:
    """A text as a content part."""
    return {"type": "text", "text": text}


def parts_of(wire: Mapping[str, Any]) -> Sequence[Any]:
    """A message's content as parts; a string is one text part, nothing is none."""
    content = wire.get("content")
    if isinstance(content, str):
        return [text_part(content)] if content else []
    return cast("list[Any]", content) if content else []


def texts_of(wire: Mapping[str, Any]) -> list[str]:
    """The texts of a message's content, in order."""
    content: Any = wire.get("content")
    if isinstance(content, str):
        return [content] if content else []
    found: list[str] = []
    for part in cast("list[Any]", content) or ():
        if not isinstance(part, ImagePart) and isinstance(text := part.get("text"), str):
            found.append(text)  # noqa: PERF401 - the walrus would hide what is kept
    return found


def last_reply(messages: Sequence[Message]) -> int:
    """The index of the last reply; -1 where there is none."""
    return next((at for at in range(len(messages) - 1, -1, -1) if messages[at].role == "assistant"), -1)


def begun_at(roles: Sequence[str]) -> int:
    """Where what the client has begun of the next reply stands, at the end; the number of roles where it has not."""
    end = len(roles)
    while end and roles[end - 1] == "assistant":
        end -= 1
    return end


def canonical(wire: Mapping[str, Any]) -> dict[str, Any]:
    """A message's meaning as a JSON value: equal values mean the same."""
    content = [part for part in canonical_parts(wire) if part != _NO_TEXT]
    made: dict[str, Any] = {"role": wire["role"], "content": content}
    if calls := wire.get("tool_calls"):
        made["tool_calls"] = [_canonical_call(call) for call in calls]
    for key in sorted(wire.keys() - _OWN_KEYS - _SILENT_KEYS):
        if not _is_empty(wire[key]):
            made[key] = sorted_value(wire[key])
    return made


def canonical_parts(wire: Mapping[str, Any]) -> list[Any]:
    """The meaning of each content part, those that say nothing too."""
    return [_canonical_part(part) for part in parts_of(wire)]


def _canonical_part(part: Any) -> Any:
    if isinstance(part, ImagePart):
        return ["image", part.ref.image_id, None if part.detail == "auto" else part.detail]
    if part.keys() == _TEXT_KEYS and part["type"] == "text":
        return ["text", part["text"]]
    kept = {
        key: value for key, value in part.items() if key not in _SILENT_KEYS and (key == "text" or not _is_empty(value))
    }
    is_text = kept.keys() == _TEXT_KEYS and kept["type"] in _TEXT_TYPES
    return ["text", kept["text"]] if is_text else sorted_value(kept)


def _is_empty(value: Any) -> bool:
    """Whether a client that writes a key with this says no more than one that leaves the key out."""
    return value is None or value in ("", [], {})


def _canonical_call(call: Any) -> Any:
    """A tool call by value. What is no call is compared as it is."""
    given = cast("dict[str, Any]", call) if isinstance(call, dict) else {}
    function = given.get("function")
    if not isinstance(function, dict):
        return sorted_value(call)
    named = cast("dict[str, Any]", function)
    extra = {key: value for key, value in given.items() if key not in ("id", "type", "function", "index")}
    return [given.get("id"), named.get("name"), arguments_value(named.get("arguments")), sorted_value(extra)]


def arguments_value(arguments: Any) -> Any:
    """Tool arguments by value: a JSON string's value with sorted keys, or the string itself where it is no JSON."""
    if not isinstance(arguments, str):
        return sorted_value(arguments)
    try:
        return ["json", sorted_value(from_json(arguments, allow_inf_nan=False))]
    except ValueError:
        return ["text", arguments]


def sorted_value(value: Any) -> Any:
    """A JSON value with all keys sorted; a whole number is written as one whether it came as 1 or 1.0."""
    if isinstance(value, dict):
        mapping = cast("dict[str, Any]", value)
        return {key: sorted_value(mapping[key]) for key in sorted(mapping)}
    if isinstance(value, list):
        return [sorted_value(one) for one in cast("list[Any]", value)]
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT_FLOAT:
        return int(value)
    return value


def _spelled(wire: Mapping[str, Any]) -> Any:
    """The message as it was written, images by id."""
    content = wire.get("content")
    if not isinstance(content, list):
        return wire
    parts = [
        ["image", part.ref.image_id, part.detail] if isinstance(part, ImagePart) else part
        for part in cast("list[Any]", content)
    ]
    return {**wire, "content": parts}
