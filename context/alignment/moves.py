"""What did not go but moved: whole messages, and blocks that a client takes along to the end of each request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from context.alignment.base import Difference
from context.alignment.steps import Run, Step
from context.layout.patterns import Patterns
from context.layout.volatile import find_spans, mask
from context.transcript import Message, texts_of

# A block that wanders is a reminder of some lines. The bounds keep the search cheap whatever was removed.
_MAX_BLOCKS = 16
_MAX_BLOCK_CHARACTERS = 8192
_MIN_BLOCK_CHARACTERS = 24
_MAX_TEXTS = 16
_MAX_TEXT_CHARACTERS = 16384


def moved_messages(
    old: Sequence[Message], new: Sequence[Message], steps: Sequence[Step], tail: int, runs: Mapping[int, Run]
) -> dict[int, int]:
    """Old index to new index of removed messages that stand elsewhere now.

    What a window dropped and what came again behind the end did not move: it is a new message of equal words, or an
    equal screenshot.
    """
    missing: dict[bytes, list[int]] = {}
    for step in steps:
        if step.before is not None and step.after is None:
            missing.setdefault(old[step.before].digest, []).append(step.before)
    moved: dict[int, int] = {}
    for index, step in enumerate(steps):
        if step.after is None or step.before is not None:
            continue
        was = missing.get(new[step.after].digest)
        if was and (index < tail or not runs[was[0]].window):
            moved[was.pop(0)] = step.after
    return moved


def followed(
    differences: Sequence[tuple[Difference, str | None]],
    new: Sequence[Message],
    inserted: Sequence[int],
    patterns: Patterns,
) -> list[Difference]:
    """The differences, with each text that went and came again further on said to have moved.

    Args:
        differences: each with the text that went with it.
        new: the new messages.
        inserted: indices of those that the old transcript does not have.
        patterns: what counts as volatile text: a block may hold another time at its new place.
    """
    blocks = [index for index, (_, gone) in enumerate(differences) if gone is not None and _fits(gone)]
    made = [difference for difference, _ in differences]
    if not blocks or not inserted:
        return made
    came = [(index, text) for index in inserted[-_MAX_TEXTS:] for text in texts_of(new[index].wire)][-_MAX_TEXTS:]
    newest = [(index, text[:_MAX_TEXT_CHARACTERS]) for index, text in came]
    texts = [(index, text, _masked(text, patterns)) for index, text in newest]
    for block in blocks[:_MAX_BLOCKS]:
        difference, gone = differences[block]
        words = (gone or "").strip()
        hidden = _masked(words, patterns)
        for index, text, masked in texts:
            if hidden in masked:
                cause = "client_edit" if words in text else "volatile_text"
                detail = f"a block of text moved to message {index}"
                made[block] = replace(difference, kind="moved", cause=cause, after=index, detail=detail)
                break
    return made


def _fits(text: str) -> bool:
    return len(text.strip()) >= _MIN_BLOCK_CHARACTERS and len(text) <= _MAX_BLOCK_CHARACTERS


def _masked(text: str, patterns: Patterns) -> str:
    return mask(text, find_spans(text, patterns))
