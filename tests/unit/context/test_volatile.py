"""Volatile spans of real clients' texts are found, and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from context.errors import ConfigError
from context.layout.patterns import MAX_OWN_CHARACTERS, Patterns, compile_patterns
from context.layout.spans import Span, find_spans
from context.layout.volatile import first_difference, freeze, mask, only_volatile, to_tail

# Text, what of it is volatile, and its kind.
VOLATILE = [
    # MC-009: LibreChat.
    ("Current Date & Time: 2026-04-12T23:38:40.919Z (0)\nBe kind.", "2026-04-12T23:38:40.919Z (0)", "now"),
    # MC-010: Open WebUI's variables, with and without seconds.
    ("CURRENT_DATETIME: 2026-04-12 11:38:40 PM", "2026-04-12 11:38:40 PM", "now"),
    ("The current time is 11:38 PM.", "11:38 PM", "now"),
    # MC-011: goose.
    ("It is currently 2026-04-12 23:38:40", "2026-04-12 23:38:40", "now"),
    # MC-012: OpenHands.
    (
        "<CURRENT_DATETIME>\nThe current date and time is: 2026-04-12T23:38:40.919123\n</CURRENT_DATETIME>",
        "2026-04-12T23:38:40.919123",
        "now",
    ),
    ("<CURRENT_DATETIME>\n  2026-04-12T23:38:40+02:00\n</CURRENT_DATETIME>", "2026-04-12T23:38:40+02:00", "now"),
    # MC-013: agent memory.
    (
        "<memory_metadata>\n- Memory blocks were last modified: 2026-01-26 08:56:51 PM UTC+0000\n</memory_metadata>",
        "2026-01-26 08:56:51 PM UTC+0000",
        "datetime",
    ),
    # MC-022: LobeChat's {{time}} in a user's text.
    ("It is now 4/23/2026, 6:03:01\u202fPM, what is next?", "4/23/2026, 6:03:01\u202fPM", "now"),
    ("Today's date is 4/23/2026, 6:03:01 PM", "4/23/2026, 6:03:01 PM", "now"),
    ("Current time (Europe/Berlin): 23:38", "23:38", "now"),
    ("Current Date & Time: April 12th, 2026 11:38 PM (Sunday)", "April 12th, 2026 11:38 PM (Sunday)", "now"),
    ("local_time=23:38", "23:38", "now"),
    ("İşte: the current local time is now 23:38", "23:38", "now"),
    ("Date: Sun, 12 Apr 2026 23:38:40 +0000\r\n", "Sun, 12 Apr 2026 23:38:40 +0000", "datetime"),
    ("x Sun Apr 12 23:38:40 UTC 2026 y", "Sun Apr 12 23:38:40 UTC 2026", "datetime"),
    (
        "at Sun Apr 12 2026 23:38:40 GMT+0000 (Coordinated Universal Time).",
        "Sun Apr 12 2026 23:38:40 GMT+0000 (Coordinated Universal Time)",
        "datetime",
    ),
    ("2026-04-12T23:38:40.1+02:00[Europe/Berlin] start", "2026-04-12T23:38:40.1+02:00[Europe/Berlin]", "datetime"),
    ('{"at":"2026-04-12T23:38:40Z"}', "2026-04-12T23:38:40Z", "datetime"),
    ("[12/Apr/2026:23:38:40 +0000]", "12/Apr/2026:23:38:40 +0000", "datetime"),
    ("shot_2026-04-12_23:38:40.png", "2026-04-12_23:38:40", "datetime"),
    ("时间12:34:56。", "12:34:56", "time"),
    ("编号1775000000。", "1775000000", "epoch"),
    ("11:38:40 p.m. sharp", "11:38:40 p.m.", "time"),
    ("2026年4月12日 23:38:40", "2026年4月12日 23:38:40", "datetime"),
    ("time:12:34:56", "12:34:56", "time"),
    ("done at 23:38:40.5, next", "23:38:40.5", "time"),
    ("created 1775000000 by", "1775000000", "epoch"),
    ("ts=1775000000123&x", "1775000000123", "epoch"),
    ("time 1775000000.25", "1775000000.25", "epoch"),
    ("run 123e4567-e89b-12d3-a456-426614174000.", "123e4567-e89b-12d3-a456-426614174000", "uuid"),
    ('"request_id": "0123456789abcdef"', "0123456789abcdef", "id"),
    ("X-Request-Id: req_0123456789ABCDEF01", "req_0123456789ABCDEF01", "id"),
    ("<trace_id>0af7651916cd43dd8448eb211c80319c</trace_id>", "0af7651916cd43dd8448eb211c80319c", "id"),
    (
        "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "id",
    ),
    ("session nonce: 00112233445566778899", "00112233445566778899", "id"),
]
STABLE = [
    "Today is 2026-04-12, a Sunday.",
    "Current date: April 12, 2026",
    "<CURRENT_DATE>2026-04-12</CURRENT_DATE>",
    "Lunch is at 12:30, the train at 2026-04-12 08:15.",
    "The current plan: meet at 12:30.",
    "Psalm 23:4, ratio 16:9, port :8080, 10:20:30:40",
    "mac 00:11:22:33:44:55 and ::1:22:33",
    "25:10:10 is no time, nor is 12:61:00, 12:30:99 or 112:30:00",
    "call 15551234567, isbn 9781775000000, 17750000001, 0.1775000000, a1775000000",
    "sha256: 0af7651916cd43dd8448eb211c80319c, commit=0af7651916cd43dd",
    "request_id: 0123456789abcde",
    "123e4567-e89b-12d3-a456-42661417400 is short",
    "[current date and time: given at the end of this conversation]",
]


def values(text: str, patterns: Patterns | None = None) -> list[tuple[str, str]]:
    found = find_spans(text) if patterns is None else find_spans(text, patterns)
    return [(text[span.start : span.end], span.kind) for span in found]


@pytest.mark.parametrize(("text", "value", "kind"), VOLATILE)
@pytest.mark.case("MC-009", "MC-010", "MC-011", "MC-012", "MC-013", "MC-022")
def test_the_whole_value_is_found(text: str, value: str, kind: str) -> None:
    assert values(text) == ([(value, kind)])


@pytest.mark.parametrize("text", STABLE)
@pytest.mark.case("MC-010")
def test_what_stays_for_a_day_is_left_alone(text: str) -> None:
    assert values(text) == []


def test_a_kind_can_be_turned_off() -> None:
    text = "at 23:38:40, 1775000000"
    assert values(text, Patterns(builtin=frozenset(("epoch",)))) == [("1775000000", "epoch")]


PIECES = st.sampled_from(
    [value for _, value, _ in VOLATILE]
    + [*STABLE, ":", "12", ":34", "-", "a", "T", " ", "current time ", "request_id=", "0af7651916cd43dd", "2026-04-12"]
)
SPACED = st.lists(PIECES, max_size=8).map(" ".join)
TEXTS = st.lists(PIECES, max_size=8).map("".join) | SPACED


@given(TEXTS)
def test_spans_are_sorted_inside_the_text_and_apart(text: str) -> None:
    spans = find_spans(text)
    edges = [edge for span in spans for edge in (span.start, span.end)]
    assert edges == sorted(edges)
    assert all(0 <= span.start < span.end <= len(text) for span in spans)


@given(TEXTS, TEXTS)
def test_the_first_difference_is_where_the_common_start_ends(one: str, other: str) -> None:
    at = first_difference(one, other)
    if at is None:
        assert one == other
    else:
        assert one[:at] == other[:at]
        assert one[at : at + 1] != other[at : at + 1]


@pytest.mark.parametrize("at", [0, 1, 4095, 4096, 4097, 9000])
def test_a_difference_deep_in_a_long_text_is_found(at: int) -> None:
    text = "é" * 10_000
    assert first_difference(text, text[:at] + "e" + text[at + 1 :]) == at
    assert first_difference(text, text[:at]) == at


BEFORE = "You help.\nCurrent Date & Time: 2026-04-12T23:38:40.919Z\nRun 123e4567-e89b-12d3-a456-426614174000. End."
AFTER = "You help.\nCurrent Date & Time: 2026-04-12T23:39:01.007Z\nRun 00000000-e89b-12d3-a456-426614174000. End."


def test_texts_that_differ_in_spans_alone_are_told_so() -> None:
    start = AFTER.index("2026")
    assert only_volatile(BEFORE, AFTER) == Span(start, start + 24, "now")
    assert mask(BEFORE, find_spans(BEFORE)) == mask(AFTER, find_spans(AFTER))
    assert mask(AFTER, find_spans(AFTER)) == "You help.\nCurrent Date & Time: <now>\nRun <uuid>. End."
    second = AFTER.replace("2026-04-12T23:39:01.007Z", "2026-04-12T23:38:40.919Z")
    found = only_volatile(BEFORE, second)
    assert found is not None
    assert found.kind == "uuid"


@pytest.mark.parametrize(
    "other",
    [
        BEFORE,
        AFTER.replace("help", "hurt"),
        AFTER + " More.",
        AFTER.replace("2026-04-12T23:39:01.007Z", "today"),
        AFTER.replace("2026-04-12T23:39:01.007Z", "123e4567-e89b-12d3-a456-426614174000"),
        AFTER.replace("2026-04-12T23:39:01.007Z", "<now>"),
    ],
)
def test_any_other_difference_is_not_volatile(other: str) -> None:
    assert only_volatile(BEFORE, other) is None


def test_frozen_values_are_the_old_ones() -> None:
    assert freeze(AFTER, BEFORE) == BEFORE
    assert freeze(BEFORE, BEFORE) is BEFORE


def test_values_are_frozen_up_to_the_first_real_difference() -> None:
    edited = AFTER.replace("Run", "Walk")
    assert freeze(edited, BEFORE) == edited.replace("2026-04-12T23:39:01.007Z", "2026-04-12T23:38:40.919Z")
    assert freeze("No time at all", BEFORE) == "No time at all"


@given(TEXTS, TEXTS)
def test_a_frozen_text_never_differs_earlier(text: str, old: str) -> None:
    made = freeze(text, old)
    if only_volatile(old, text):
        assert made == old
    before, after = first_difference(text, old), first_difference(made, old)
    assert after is None or (before is not None and after >= before)


def test_values_go_to_the_tail_and_phrases_stay() -> None:
    made, lines = to_tail(BEFORE)
    assert made == (
        "You help.\nCurrent Date & Time: [current date and time: given at the end of this conversation]\n"
        "Run [UUID: given at the end of this conversation]. End."
    )
    assert lines == (
        "Current date and time: 2026-04-12T23:38:40.919Z",
        "UUID: 123e4567-e89b-12d3-a456-426614174000",
    )
    assert to_tail(AFTER)[0] == made


def test_a_second_value_of_a_kind_is_numbered_and_changes_nothing_before_it() -> None:
    one, two = "a 10:00:01", "a 10:00:01 b 10:00:01"
    assert to_tail(two)[0].startswith(to_tail(one)[0])
    assert to_tail(two)[0].endswith("b [time of day 2: given at the end of this conversation]")
    assert to_tail(two)[1] == ("Time of day: 10:00:01", "Time of day 2: 10:00:01")


@given(SPACED)
def test_moving_to_the_tail_twice_is_moving_once(text: str) -> None:
    made, lines = to_tail(text)
    assert to_tail(made) == (made, ())
    assert len(lines) == len(find_spans(text))


OWN = Patterns(own=compile_patterns({"build": "Build ([0-9]{1,9})", "mood": "happy|sad"}, where="p.yaml"))


def test_own_patterns_find_their_group_or_all() -> None:
    assert values("Build 77 is happy", OWN) == [("77", "build"), ("happy", "mood")]
    assert to_tail("Build 77", OWN) == (
        "Build [build: given at the end of this conversation]",
        ("Build: 77",),
    )


def test_an_own_pattern_wins_at_the_same_place() -> None:
    own = Patterns(own=compile_patterns({"tick": "[0-9]{10}"}, where="p.yaml"))
    assert values("1775000000", own) == [("1775000000", "tick")]


def test_own_patterns_are_tried_on_bounded_text() -> None:
    assert values("x" * (MAX_OWN_CHARACTERS - 3) + "sad", OWN) == [("sad", "mood")]
    assert values("x" * (MAX_OWN_CHARACTERS - 2) + "sad", OWN) == []


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("a+", "without an end"),
        ("a*b", "without an end"),
        ("[a-z]{2,}", "without an end"),
        ("a{,}b", "without an end"),
        ("(a{1,9}){1,9}b", "holds another one"),
        ("(?:a|b){1,9}c", "holds another one"),
        ("((a?)b){3}", "holds another one"),
        ("a{1,64}b{1,64}", "1024 ways"),
        ("a{300}", "256 times"),
        ("(?:ab|a){2}(x|y)", "holds another one"),
        ("(a)\\1", "back-references"),
        ("(?=a)b", "assertions"),
        ("(?P<n>a)", "named groups"),
        ("(?i)a", "flags"),
        ("(a", "not a valid"),
        ("a?", "matches the empty text"),
        ("", "matches the empty text"),
        ("a" * 600, "longer than"),
    ],
)
def test_a_pattern_that_could_be_slow_is_refused(pattern: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        compile_patterns({"mine": pattern}, where="p.yaml")
    assert str(caught.value).startswith("p.yaml: volatile.patterns.mine: ")


@pytest.mark.parametrize("kind", ["uuid", "Big", "", "a-b", "x" * 40])
def test_a_kind_is_a_word_of_its_own(kind: str) -> None:
    with pytest.raises(ConfigError, match="Choose another name"):
        compile_patterns({kind: "a"}, where="p.yaml")


@pytest.mark.parametrize("pattern", ["[*+?{]x", r"\+\*a{1,3}?", "a{x}", "(?:a|b)[0-9]{1,64}", r"\[[^\]]{1,9}\]"])
def test_what_only_looks_like_a_repetition_is_taken(pattern: str) -> None:
    made: tuple[Any, ...] = compile_patterns({"mine": pattern}, where="p.yaml")
    assert [one.kind for one in made] == ["mine"]
