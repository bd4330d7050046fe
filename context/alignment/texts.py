"""What differs between two texts, and what stands for an image in a text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from context.alignment.base import Finding
from context.layout.patterns import Patterns
from context.layout.volatile import first_difference, only_volatile

# What clients put in an image's place is a line: '[Image: source: path]', '<image>', '[screenshot removed]'.
PLACEHOLDER_CHARACTERS = 300
_PLACEHOLDER = re.compile(
    r"\[[^\[\]]*\]|<[^<>]*>|\([^()]*\)|.*\b(?:image|screenshot|picture|photo)s?\b.*", re.IGNORECASE | re.DOTALL
)


def may_stand_for_an_image(text: str) -> bool:
    """Whether a text reads like what clients put in an image's place: a line in brackets, or that names an image."""
    return len(text) <= PLACEHOLDER_CHARACTERS and _PLACEHOLDER.fullmatch(text.strip()) is not None


def spells(text: str, pieces: Sequence[str | None]) -> bool:
    """Whether `text` is the pieces in order, with white space between and at most a placeholder for each None."""
    at, images = 0, False
    for piece in pieces:
        if piece is None:
            images = True
            continue
        words = piece.strip()
        found = text.find(words, at, at + PLACEHOLDER_CHARACTERS + len(words))
        if found < 0 or not _fills(text[at:found], images, starts=at == 0, ends=False):
            return False
        at, images = found + len(words), False
    return _fills(text[at:], images, starts=at == 0, ends=True)


def _fills(text: str, images: bool, *, starts: bool, ends: bool) -> bool:
    """Whether what stands between two pieces is nothing, or a placeholder that is set off from the words around it."""
    if not text.strip():
        return True
    set_off = (starts or text[0] in "[<(" or text[0].isspace()) and (ends or text[-1] in "])>" or text[-1].isspace())
    return images and set_off and may_stand_for_an_image(text)


def text_finding(old: str, new: str, part: int, patterns: Patterns) -> Finding:
    """What kind of difference two texts have, and where it starts. They must differ."""
    span = only_volatile(old, new, patterns)
    if span is not None:
        return Finding("changed", "volatile_text", part, span.start, f"volatile text differs: {span.kind}")
    character = first_difference(old, new)
    detail, gone = "the text differs", None
    if unicodedata.normalize("NFC", old) == unicodedata.normalize("NFC", new):
        detail = "differs in Unicode form only (NFC)"
    elif old.strip() == new.strip():
        detail = "differs in white space at its ends only"
    elif old.startswith(new):
        detail, gone = "the text was cut short", old[len(new) :]
    elif new.startswith(old):
        detail = "the text was continued"
    return Finding("changed", "client_edit", part, character, detail, gone)
