"""Where a client's new history stops extending its old one, and why."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from context.alignment import Alignment, align
from context.transcript import ImagePart, Message
from tests.unit.context.transcripts import (
    CHAT,
    NEXT,
    at_time,
    brief,
    calls,
    image,
    replaced,
    reply,
    result,
    says,
    system,
    text,
    user,
    without_images,
)

# What is no difference


def test_the_same_transcript_has_no_difference() -> None:
    assert align(CHAT, CHAT) == Alignment(tuple((index, index) for index in range(5)))


def test_messages_behind_the_end_extend_what_was_sent() -> None:
    found = align(CHAT, [*CHAT, NEXT, reply("Welcome."), user("Bye", image("dog"))])
    assert (len(found.pairs), found.first) == (5, None)


@pytest.mark.parametrize("length", range(6))
def test_a_client_that_goes_back_repeats_what_was_sent(length: int) -> None:
    found = align(CHAT, CHAT[:length])
    assert (len(found.pairs), found.first) == (length, None)


def test_another_question_at_the_same_point_is_a_branch() -> None:
    assert align(CHAT, [*CHAT[:3], user("How old is it?")]).first is None
    assert align(CHAT, [*CHAT[:3], user("And its colour?", image("dog"))]).first is None


def test_another_question_that_was_answered_is_a_changed_history() -> None:
    new = [*CHAT[:3], user("And its age?"), reply("Three."), user("Thanks!")]
    assert brief(align(CHAT, new)) == [("changed", "client_edit", 3, 0, 8), ("changed", "client_edit", 4, 0, 0)]


def test_a_history_that_has_nothing_in_common_forks_at_its_start() -> None:
    new = [user("zebra"), reply("a horse"), calls("c9"), result("c9", "done"), user("go on")]
    first = align([system("abc"), *CHAT[1:]], [says("developer", "xyz"), *new]).first
    assert first is not None
    assert (first.kind, first.cause, first.at) == ("changed", "client_edit", 0)


def test_things_that_mean_the_same_are_pairs() -> None:
    old = [user("Go"), calls("c1", '{"a":1,"b":2}'), result("c1", "ok"), reply("Done")]
    new = [user(text("Go")), calls("c1", '{"b": 2, "a": 1}'), result("c1", text("ok")), reply(), NEXT]
    found = align(old, replaced(new, 3, old[3]))
    assert (len(found.pairs), found.first) == (4, None)


# Messages that stand in one slot although others came or went beside them


def test_instructions_keep_their_slot_when_turns_behind_them_go() -> None:
    old = [system(at_time(1)), *(one for turn in range(3) for one in (user(f"q{turn}"), reply(f"a{turn}")))]
    new = [system(at_time(2)), *old[3:], NEXT]
    assert [(one.kind, one.cause, one.at) for one in align(old, new).differences] == [
        ("changed", "volatile_text", 0),
        ("removed", "client_window", 1),
        ("removed", "client_window", 1),
    ]


def test_other_instructions_keep_their_slot_too() -> None:
    old = [system("abc"), user("q0"), reply("a0"), NEXT]
    assert [(one.kind, one.cause, one.at) for one in align(old, [system("xyz"), NEXT]).differences] == [
        ("changed", "client_edit", 0),
        ("removed", "client_window", 1),
        ("removed", "client_window", 1),
    ]


SLOTS = {
    "the same call": (
        [calls("c1", '{"a": 1}')],
        [calls("c0"), result("c0", "ok"), calls("c1", '{"a": 2}')],
        (None, None),
    ),
    "the same image": ([user("abc", image("a"))], [user("xyz"), reply("?"), user("uvw", image("a"))], (0, 0)),
    "texts that start alike": ([user("Book a table")], [user("zzz"), reply("?"), user("Book a chair")], (0, 7)),
    "texts that end alike": ([user("A table for two")], [user("zzz"), reply("?"), user("O table for two")], (0, 0)),
    "the same words without the image": (
        [user("Go"), user("Look", image("a"))],
        [user("zzz"), reply("?"), user("Look")],
        (1, None),
    ),
}


@pytest.mark.parametrize("slot", SLOTS.values(), ids=SLOTS.keys())
def test_a_message_is_found_behind_others_that_were_put_in(
    slot: tuple[list[Message], list[Message], tuple[int | None, int | None]],
) -> None:
    old, new, place = slot
    found = align([system("s"), *old, reply("end")], [system("s"), *new, reply("end")])
    changed = next(one for one in found.differences if one.at == 3)
    assert (changed.before, changed.after, changed.part, changed.character) == (len(old), 3, *place)
    assert [(one.kind, one.at) for one in found.differences if one.after in (1, 2)] == [
        ("inserted", 1),
        ("inserted", 2),
    ]


# For any transcript

WORDS = st.sampled_from(["a", "b", "ok", "look", "2026-04-12T23:38:40Z", "x" * 40])
PARTS = st.lists(WORDS | st.sampled_from([image(name) for name in "pqr"]), max_size=3)


def message(role: str, parts: list[str | ImagePart]) -> Message:
    return says(role, *parts)


MESSAGES = st.lists(st.builds(message, st.sampled_from(["user", "assistant"]), PARTS))


@given(MESSAGES, MESSAGES)
def test_pairs_increase_and_mean_the_same(old: list[Message], new: list[Message]) -> None:
    found = align(old, new)
    assert all(old[one].digest == new[two].digest for one, two in found.pairs)
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(found.pairs))
    places = [one.at for one in found.differences]
    assert places == sorted(places)
    if found.first is not None:
        assert [pair for pair in found.pairs if pair[1] < found.first.at] == [(i, i) for i in range(found.first.at)]


@given(MESSAGES, MESSAGES, MESSAGES)
def test_a_changed_message_before_a_common_one_is_always_told(
    start: list[Message], one: list[Message], two: list[Message]
) -> None:
    anchor = [user("the anchor of both")]
    old, new = [*start, *one, *anchor], [*start, *two, *anchor]
    same = [message.digest for message in one] == [message.digest for message in two]
    assert (align(old, new).first is None) == same


@given(MESSAGES, MESSAGES)
def test_an_extension_has_no_difference(old: list[Message], more: list[Message]) -> None:
    assert align(old, [*old, *more]).first is None
    assert align([*old, *more], old).first is None


@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_images_deleted_at_random_are_a_window(kept: list[bool]) -> None:
    old = [system("s")]
    for step, _ in enumerate(kept):
        old += [user(image(f"s{step}")), reply(f"act {step}")]
    new = [old[0], *(m for i, keep in enumerate(kept) for m in old[1 + 2 * i + (not keep) : 3 + 2 * i])]
    found = align(old, new)
    assert [(one.kind, one.cause) for one in found.differences] == [("removed", "client_window")] * kept.count(False)
    stripped = [one if one.role != "user" or kept[i // 2] else without_images(one) for i, one in enumerate(old[1:])]
    parts = align(old, [old[0], *stripped])
    assert [(one.kind, one.cause) for one in parts.differences] == [("removed", "client_window")] * kept.count(False)
