"""Messages with volatile values in other places: as they were sent before, or at the tail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from context.layout.patterns import Patterns
from context.layout.volatile import freeze, to_tail
from context.transcript import parts_of

Wire = Mapping[str, Any]


def freeze_message(wire: Wire, sent: Wire, patterns: Patterns) -> Wire:
    """The message with the volatile values that `sent` holds at the same places. The same object where that changes
    nothing.

    Only texts that stand at the same index in both are looked at.
    """
    olds = [_text(part) for part in parts_of(sent)]

    def old_values(index: int, text: str) -> str:
        old = olds[index] if index < len(olds) else None
        return text if old is None else freeze(text, old, patterns)

    return _with_texts(wire, old_values)


def tail_message(wire: Wire, patterns: Patterns) -> tuple[Wire, tuple[str, ...]]:
    """The message with a stable phrase in place of each volatile value, and the values as lines for the tail."""
    lines: list[str] = []

    def phrase(_: int, text: str) -> str:
        made, values = to_tail(text, patterns)
        lines.extend(values)
        return made

    return _with_texts(wire, phrase), tuple(lines)


def _with_texts(wire: Wire, make: Callable[[int, str], str]) -> Wire:
    content = wire.get("content")
    if isinstance(content, str):
        made = make(0, content)
        return wire if made == content else {**wire, "content": made}
    if not isinstance(content, list):
        return wire
    parts = cast("list[Any]", content)
    texts = [_text(part) for part in parts]
    new = [None if text is None else make(index, text) for index, text in enumerate(texts)]
    if new == texts:
        return wire
    made = [part if text is None else {**part, "text": text} for part, text in zip(parts, new, strict=True)]
    return {**wire, "content": made}


def _text(part: Any) -> str | None:
    text = cast("Mapping[str, Any]", part).get("text") if isinstance(part, Mapping) else None
    return text if isinstance(text, str) else None
