"""Where text holds what changes by itself: times, epochs, UUIDs, ids.

Each kind is looked for by a literal that is rare in text (`:34`, `-4f1a-`), from which a bounded piece on both sides is
read: linear in the text, and fast where there is nothing to find.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from context.layout.patterns import BUILTIN, MAX_OWN_CHARACTERS, Patterns

_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6}\.?"
_DAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]{0,6}"
_SPACE = "[ \u00a0\u202f]"
_ORDINAL = r"\d{1,2}(?:st|nd|rd|th)?"
_DATE_CHARACTERS = 56
_LABEL_CHARACTERS = 96
_KEY_CHARACTERS = 40

_CLOCK = re.compile(r":[0-5]\d(:[0-5]\d(?:[.,]\d{1,12})?)?(?!:?\d)", re.ASCII)
# A date that ends where the hour begins: the usual form, of one length, and all forms.
_ISO_DATE = re.compile(r"\d{4}-\d\d-\d\d[T ]", re.ASCII)
_ISO_DATE_CHARACTERS = 11
_DATE_ENDS = "Tt_-: \u00a0\u202f\u65e5"
_DATE = re.compile(
    rf"""(?<![A-Za-z0-9])(?:{_DAY},?[ ])?(?:
      (?P<iso>\d{{4}}([-/.])\d{{1,2}}\2\d{{1,2}}(?:[Tt_-]|,?{_SPACE}|[ ]at[ ]))
    | (?P<numbers>\d{{1,2}}([/.-])\d{{1,2}}\4\d{{2,4}},?{_SPACE})
    | (?P<day_first>{_ORDINAL}[ -]{_MONTH},?[ -]\d{{4}},?(?:[ ]at)?{_SPACE})
    | (?P<month_first>{_MONTH}[ ]{{1,2}}{_ORDINAL}(?:,?[ ]\d{{4}})?,?(?:[ ]at)?{_SPACE})
    | (?P<log>\d{{1,2}}/{_MONTH}/\d{{4}}:)
    | (?P<cjk>\d{{4}}\u5e74\d{{1,2}}\u6708\d{{1,2}}\u65e5{_SPACE}?)
    )\Z""",
    re.ASCII | re.VERBOSE,
)
_AFTER_CLOCK = re.compile(
    rf"""(?:{_SPACE}?(?:[AaPp][Mm](?![A-Za-z])|[AaPp]\.[Mm]\.(?![A-Za-z0-9])))?
    (?:[ ]?(?:Z(?![A-Za-z])|(?:UTC|GMT)?[ ]?[+-]\d\d(?::?\d\d)?(?!\d)|(?:UTC|GMT)(?:[+-]\d{{1,2}})?(?![A-Za-z0-9])
      |(?:[ECMP][SD]T|CES?T|WES?T|EES?T|BST|MSK|[IJK]ST|AE[SD]T)(?![A-Za-z0-9])))?
    (?:[ ]?\((?:[A-Z][A-Za-z]{{0,20}}(?:[ ][A-Z][A-Za-z]{{0,20}}){{0,3}}[ ]Time|[A-Z]{{3,4}}|{_DAY}|[0-6])\)
      (?![A-Za-z0-9]))?
    (?:\[[A-Za-z_/]{{3,40}}\](?![A-Za-z0-9]))?""",
    re.ASCII | re.VERBOSE,
)
# The end of a word, a number or an address such as 00:11:22:33. A label (`time:12:34:56`) is none of these.
_NOT_BEFORE_HOUR = re.compile(r"(?:[A-Za-z0-9._]|(?<![A-Za-z\"']):)\Z")
# Spans end and start at the edge of a word, so that no two touch.
_WORD = re.compile(r"[A-Za-z0-9]")
_YEAR = re.compile(r"[ ](?:19|20)\d\d(?![A-Za-z0-9-])", re.ASCII)
_HAS_YEAR = re.compile(r"\d{4}", re.ASCII)
# A label holds one of these.
_LABEL_WORDS = ("current", "now", "today", "local", "system", "server", "utc")
_NOUN = r"(?:date|time|datetime|timestamp|day)"
# What stands before a value that says when "now" is. Behind it minutes count too.
_NOW = re.compile(
    rf"""(?<![A-Za-z])(?:
      current(?:ly)?(?:[ _-](?:local|system|server|utc))?
        (?:(?:[ _-]?(?:&|and|/|,)?[ _-]?{_NOUN}){{1,3}}(?:[ ]\([^()\n]{{1,40}}\)|[ ]in[ ][A-Za-z_/+-]{{1,30}})?)?
    | (?:local|system|server|utc)[ _-]{_NOUN}
    | now
    | today(?:['\u2019]s[ ]date|(?=[ ]is|:))
    )(?:[ ]is)?(?:[ ]now)?["'`*]{{0,3}}[ ]?[:=>]?["'`*]{{0,3}}[ ]{{0,2}}\n?[ ]{{0,4}}\Z""",
    re.ASCII | re.VERBOSE | re.IGNORECASE,
)
_EPOCH = re.compile(r"1[5-9]\d{8}(?:\d{3})?(?:\.\d{1,9})?(?![A-Za-z0-9])", re.ASCII)
_UUID_HEAD_DIGITS = 8
_UUID = re.compile(r"-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}(?![A-Za-z0-9])")
_UUID_HEAD = re.compile(r"[0-9a-fA-F]{8}")
_ID = re.compile(
    r"""[:=>]["' \\]{0,4}((?:[A-Za-z]{1,8}[-_]|00-)?[0-9a-fA-F]{16,128}(?:-[0-9a-fA-F]{16}-[0-9a-fA-F]{2})?)"""
    r"(?![A-Za-z0-9])"
)
_ID_KEY = re.compile(
    r"""(?:(?:request|req|trace|span|correlation|session)[ _-]?(?:id|nonce|token)|nonce|traceparent)["'\\*` ]{0,3}\Z""",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Span:
    """Characters `start` to `end - 1` of a text (code points), and what they are.

    `now`: a time that the text calls the current one, to the minute or finer. `datetime`, `time`: another one with
    seconds, with and without a date. `epoch`: Unix time in seconds or milliseconds, 2017 to 2033. `uuid`. `id`: 16 or
    more hex digits behind the key of a request, trace, span or session. Else the kind of a policy's own pattern.
    """

    start: int
    end: int
    kind: str


def find_spans(text: str, patterns: Patterns = BUILTIN) -> tuple[Span, ...]:
    """All volatile spans of a text, sorted; none overlaps another, and where two could, the one that starts first
    counts, then the policy's own, then the longer one.

    A date without a time is none: it is the same for a day. Neither is a time to the minute that is not called the
    current one ("lunch at 12:30").

    The time is linear in the text, but a policy calls this for texts that changed, not for every text of a history.
    Own patterns are tried on the first `MAX_OWN_CHARACTERS` alone.
    """
    found = [(span.start, 0, -span.end, span) for span in _own(text, patterns)]
    for kinds, finder in _FINDERS.items():
        if not kinds.isdisjoint(patterns.builtin):
            spans = (span for span in finder(text) if span.kind in patterns.builtin)
            found += [(span.start, 1, -span.end, span) for span in spans]
    found.sort(key=lambda one: one[:3])
    kept: list[Span] = []
    end = 0
    for *_, span in found:
        if span.start >= end:
            kept.append(span)
            end = span.end
    return tuple(kept)


def _own(text: str, patterns: Patterns) -> Iterator[Span]:
    for own in patterns.own:
        group = 1 if own.regex.groups else 0
        for match in own.regex.finditer(text, 0, MAX_OWN_CHARACTERS):
            if match.end(group) > match.start(group):
                yield Span(match.start(group), match.end(group), own.kind)


def _clocks(text: str) -> Iterator[Span]:
    at = floor = 0
    while match := _CLOCK.search(text, at):
        if span := _clock_span(text, match, floor):
            yield span
            at = floor = span.end
        else:
            at = match.start() + 1


def _clock_span(text: str, clock: re.Match[str], floor: int) -> Span | None:
    """The whole time around `:34` or `:34:56`; None when there is no hour before it or it is not volatile."""
    hour = clock.start()
    while hour > floor and clock.start() - hour < 3 and "0" <= text[hour - 1] <= "9":
        hour -= 1
    digits = text[hour : clock.start()]
    if not 1 <= len(digits) <= 2 or int(digits) > 24:
        return None
    has_seconds = clock[1] is not None
    if not has_seconds:
        # Most are times of appointments, scores and verses: a label, or nothing more is read.
        around = text[max(floor, hour - _DATE_CHARACTERS - _LABEL_CHARACTERS) : hour].lower()
        if not any(word in around for word in _LABEL_WORDS):
            return None
    start = _date_start(text, hour, floor)
    if start == hour and _NOT_BEFORE_HOUR.search(text, max(0, hour - 2), hour):
        return None
    is_now = _is_now(text, max(floor, start - _LABEL_CHARACTERS), start)
    if not has_seconds and not is_now:
        return None
    end = _clock_end(text, clock.end(), text[start:hour])
    if _WORD.match(text, end):
        return None
    return Span(start, end, "now" if is_now else "datetime" if start < hour else "time")


def _is_now(text: str, low: int, start: int) -> bool:
    """Whether a label that ends at `start`, and starts at `low` or behind it, says that now is meant."""
    around = text[low:start]
    if not around.isascii():
        # Lower case may be longer than upper case there.
        return _NOW.search(around) is not None
    around = around.lower()
    for word in _LABEL_WORDS:
        at = around.rfind(word)
        if at >= 0 and _NOW.match(text, low + at, start):
            return True
    return False


def _date_start(text: str, hour: int, floor: int) -> int:
    """Where the date before an hour starts; the hour itself where there is none."""
    start = hour - _ISO_DATE_CHARACTERS
    if start >= floor and _ISO_DATE.fullmatch(text, start, hour) and not (start and _WORD.match(text, start - 1)):
        return start
    if hour == floor or text[hour - 1] not in _DATE_ENDS:
        return hour
    date = _DATE.search(text[max(floor, hour - _DATE_CHARACTERS) : hour])
    return hour - (date.end() - date.start()) if date else hour


def _clock_end(text: str, end: int, date: str) -> int:
    """Where a time ends: behind its zone and, where the date before it has no year, behind that."""
    after = _AFTER_CLOCK.match(text, end)
    end = after.end() if after else end
    year = _YEAR.match(text, end) if date and not _HAS_YEAR.search(date) else None
    return year.end() if year else end


def _epochs(text: str) -> Iterator[Span]:
    for match in _EPOCH.finditer(text):
        before = text[max(0, match.start() - 1) : match.start()]
        if before != "." and not _WORD.match(before):
            yield Span(match.start(), match.end(), "epoch")


def _uuids(text: str) -> Iterator[Span]:
    for match in _UUID.finditer(text):
        start = match.start() - _UUID_HEAD_DIGITS
        if start >= 0 and _UUID_HEAD.match(text, start) and not _WORD.match(text[max(0, start - 1) : start]):
            yield Span(start, match.end(), "uuid")


def _ids(text: str) -> Iterator[Span]:
    for match in _ID.finditer(text):
        if _ID_KEY.search(text[max(0, match.start() - _KEY_CHARACTERS) : match.start()]):
            yield Span(match.start(1), match.end(1), "id")


_FINDERS: Mapping[frozenset[str], Callable[[str], Iterator[Span]]] = {
    frozenset(("now", "datetime", "time")): _clocks,
    frozenset(("epoch",)): _epochs,
    frozenset(("uuid",)): _uuids,
    frozenset(("id",)): _ids,
}
