"""In what two messages of one meaning are spelled differently."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from context.transcript import ImagePart, Message, parts_of

_CALL_KEYS = ("type", "index")


def heals(old: Message, new: Message) -> tuple[str, ...]:
    """What replaying the old message in place of the new one undoes, as words; empty where they are spelled alike.

    Words, in this order: `content_form` (a string, parts, null, nothing), `image_detail` (auto or none), `arguments`
    (key order, spaces and numbers in a call's arguments), `call_keys` (`type` and `index` of a call), `null_keys`,
    `cache_control`, `key_order`, and `spelling` for what is none of these. An image's container is no part of a
    message's form: that it differs is known where images are read.

    Args:
        old, new: messages with one digest.
    """
    if old.form == new.form:
        return ()
    found = [word for word, differs in _checks(old.wire, new.wire) if differs]
    return tuple(found) or ("spelling",)


def _checks(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    yield "content_form", _content_form(old) != _content_form(new)
    yield "image_detail", [one.detail for one in _images(old)] != [two.detail for two in _images(new)]
    yield "arguments", [_arguments(one) for one in _calls(old)] != [_arguments(two) for two in _calls(new)]
    yield "call_keys", [_picked(one) for one in _calls(old)] != [_picked(two) for two in _calls(new)]
    parts = isinstance(old.get("content"), list) and isinstance(new.get("content"), list)
    one, two = _objects(old, parts), _objects(new, parts)
    yield "null_keys", [_nulls(value) for value in one] != [_nulls(value) for value in two]
    yield "cache_control", _marks(old) != _marks(new)
    yield "key_order", _order_differs(old, new)


def _content_form(wire: Mapping[str, Any]) -> str:
    content = wire.get("content", False)
    if content is None or content is False:
        return "null" if content is None else "none"
    return "string" if isinstance(content, str) else "parts" if content else "empty"


def _images(wire: Mapping[str, Any]) -> Iterator[ImagePart]:
    return (part for part in parts_of(wire) if isinstance(part, ImagePart))


def _calls(wire: Mapping[str, Any]) -> list[dict[str, Any]]:
    calls = cast("Sequence[Any]", wire.get("tool_calls") or ())
    return [cast("dict[str, Any]", call) for call in calls if isinstance(call, dict)]


def _arguments(call: Mapping[str, Any]) -> Any:
    function = call.get("function")
    return cast("dict[str, Any]", function).get("arguments") if isinstance(function, dict) else None


def _picked(call: Mapping[str, Any]) -> list[Any]:
    return [call.get(key) for key in _CALL_KEYS]


def _objects(wire: Mapping[str, Any], parts: bool) -> list[Mapping[str, Any]]:
    """The objects of a message in the order of its meaning: itself, its parts, its calls and their functions."""
    content = wire.get("content")
    listed = cast("list[Any]", content) if parts and isinstance(content, list) else []
    calls = _calls(wire)
    functions = [cast("dict[str, Any]", one) for call in calls if isinstance(one := call.get("function"), dict)]
    return [wire, *(part for part in listed if isinstance(part, dict)), *calls, *functions]


def _nulls(value: Mapping[str, Any]) -> set[str]:
    return {key for key, one in value.items() if one is None and key != "content"}


def _marks(wire: Mapping[str, Any]) -> list[Any]:
    return [value["cache_control"] for value in _objects(wire, True) if value.get("cache_control") is not None]


def _order_differs(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether the keys that both have stand in another order, at any depth of what is no text."""
    shared = [key for key in old if key in new]
    if shared != [key for key in new if key in old]:
        return True
    return any(_deep_order_differs(old[key], new[key]) for key in shared)


def _deep_order_differs(old: Any, new: Any) -> bool:
    if isinstance(old, dict) and isinstance(new, dict):
        return _order_differs(cast("dict[str, Any]", old), cast("dict[str, Any]", new))
    if isinstance(old, list) and isinstance(new, list):
        pairs = zip(cast("list[Any]", old), cast("list[Any]", new), strict=False)
        return any(_deep_order_differs(one, two) for one, two in pairs)
    return False
