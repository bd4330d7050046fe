"""What to do with volatile spans: compare without them, keep their old values, or give the values at the tail."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from context.layout.patterns import BUILTIN, Patterns
from context.layout.spans import Span, find_spans

_LABELS = {
    "now": "current date and time",
    "datetime": "date and time",
    "time": "time of day",
    "epoch": "Unix time",
    "uuid": "UUID",
    "id": "identifier",
}
_CHUNK = 4096


def mask(text: str, spans: Sequence[Span]) -> str:
    """The text with `<kind>` in place of each span: texts that differ in volatile spans alone come out equal."""
    return _with_values(text, spans, [f"<{span.kind}>" for span in spans])


def first_difference(one: str, other: str) -> int | None:
    """The offset, in code points, of the first character that differs; None for equal texts.

    Where one text is the start of the other, that is the length of the shorter one.
    """
    if one == other:
        return None
    at = 0
    while one[at : at + _CHUNK] == other[at : at + _CHUNK]:
        at += _CHUNK
    low, high = at, at + _CHUNK
    while low < high:
        middle = (low + high + 1) // 2
        if one[at:middle] == other[at:middle]:
            low = middle
        else:
            high = middle - 1
    return min(low, len(one), len(other))


def only_volatile(before: str, after: str, patterns: Patterns = BUILTIN) -> Span | None:
    """The first span of `after` whose value is another than in `before`, when all that differs is the values of spans
    of the same kinds at the same places; None when something else differs, or nothing."""
    if before == after:
        return None
    old, new = find_spans(before, patterns), find_spans(after, patterns)
    if [span.kind for span in old] != [span.kind for span in new] or _gaps(before, old) != _gaps(after, new):
        return None
    return next(b for a, b in zip(old, new, strict=True) if before[a.start : a.end] != after[b.start : b.end])


def freeze(text: str, old_text: str, patterns: Patterns = BUILTIN) -> str:
    """The text with the values that its spans had in `old_text`.

    Values are taken up to the first difference that is no span: what differs there makes a new prefix anyway, and the
    newer values are right behind it. Where only spans differ the result is `old_text`; in no case does it differ from
    `old_text` earlier than `text` does.
    """
    if text == old_text:
        return text
    spans, old = find_spans(text, patterns), find_spans(old_text, patterns)
    values: list[str] = []
    for (gap, span), (old_gap, old_span) in zip(
        zip(_gaps(text, spans), spans, strict=False), zip(_gaps(old_text, old), old, strict=False), strict=False
    ):
        if gap != old_gap or span.kind != old_span.kind:
            break
        values.append(old_text[old_span.start : old_span.end])
    frozen = _with_values(text, spans[: len(values)], values)
    # Two spans of one place may end in different ways, with and without a zone, and their gaps still be equal at first.
    here, there = first_difference(frozen, old_text), first_difference(text, old_text)
    return text if here is not None and there is not None and here < there else frozen


def to_tail(text: str, patterns: Patterns = BUILTIN) -> tuple[str, tuple[str, ...]]:
    """The text with a phrase in place of each value, and the values as lines for the tail, in order.

    The phrases depend on the kinds and their order alone, never on a value, so two texts that differ in spans alone
    come out equal. The second of a kind is numbered in the text and in its line, the first is not: one that is added
    behind changes nothing before it. A text without spans comes back as it is.
    """
    spans = find_spans(text, patterns)
    counts: dict[str, int] = {}
    phrases: list[str] = []
    lines: list[str] = []
    for span in spans:
        number = counts[span.kind] = counts.get(span.kind, 0) + 1
        label = _LABELS.get(span.kind, span.kind.replace("_", " ")) + (f" {number}" if number > 1 else "")
        phrases.append(f"[{label}: given at the end of this conversation]")
        lines.append(f"{label[0].upper()}{label[1:]}: {text[span.start : span.end]}")
    return _with_values(text, spans, phrases), tuple(lines)


def _with_values(text: str, spans: Sequence[Span], values: Sequence[str]) -> str:
    pieces: list[str] = []
    done = 0
    for span, value in zip(spans, values, strict=True):
        pieces += (text[done : span.start], value)
        done = span.end
    return "".join([*pieces, text[done:]])


def _gaps(text: str, spans: Sequence[Span]) -> list[str]:
    """What stands before, between and behind the spans: one more than there are spans."""
    edges = [0, *(edge for span in spans for edge in (span.start, span.end)), len(text)]
    return [text[start:end] for index, (start, end) in enumerate(pairwise(edges)) if index % 2 == 0]
