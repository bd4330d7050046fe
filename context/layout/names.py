"""The text that stands for an image where the image itself does not: a marker, or a name with the turn it came in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from context.images.base import ImageRef
from context.transcript import ImagePart, parts_of

ID_CHARS = 64
MIN_NAME_CHARS = 12
_START = "[image_id "
# Groups: digits of the id; the turn, in names alone.
_NAME = re.compile(rf"\[image_id ([0-9a-f]{{{MIN_NAME_CHARS},{ID_CHARS}}}) \d+x\d+(?:, turn (\d+))?\]")


def marker(ref: ImageRef) -> str:
    """The text that stands for an image: its whole id, so that no other image can be meant, and its size in pixels."""
    return f"{_START}{ref.image_id} {ref.width}x{ref.height}]"


def name(ref: ImageRef, shown: str, turn: int) -> str:
    """The shorter text of `reference`: `shown` is the id's start."""
    return f"{_START}{shown} {ref.width}x{ref.height}, turn {turn}]"


def as_name(text: Any) -> re.Match[str] | None:
    """The name or marker that a text is as a whole: groups 1, digits of the id, and 2, the turn of a name."""
    return _NAME.fullmatch(text) if isinstance(text, str) and text.startswith(_START) else None


def names_in(wire: Any) -> Iterator[re.Match[str]]:
    """A message's images in order: the marker of each that it shows, and all names and markers in its texts."""
    for part in parts_of(wire):
        text: Any = marker(part.ref) if isinstance(part, ImagePart) else part.get("text")
        if isinstance(text, str) and _START in text:
            yield from _NAME.finditer(text)
