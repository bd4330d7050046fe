"""Where a client's new history stops extending its old one, and why."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from context.alignment import MAX_PLACES_BEHIND_EDIT, Alignment, align
from context.transcript import ImagePart, Message
from tests.unit.context.transcripts import (
    CHAT,
    NEXT,
    at_time,
    brief,
    calls,
    image,
    only,
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


# Edits, with their place

EDITS = {
    "a letter": (user("What is this!", image("cat")), ("changed", "client_edit", 1, 0, 12), "the text differs"),
    "cut short": (user("What is", image("cat")), ("changed", "client_edit", 1, 0, 7), "the text was cut short"),
    "continued": (
        user("What is this? Tell!", image("cat")),
        ("changed", "client_edit", 1, 0, 13),
        "the text was continued",
    ),
    "spaces": (
        user("What is this?\n", image("cat")),
        ("changed", "client_edit", 1, 0, 13),
        "differs in white space at its ends only",
    ),
    "another image": (
        user("What is this?", image("dog")),
        ("changed", "client_edit", 1, 1, None),
        "another image in its place",
    ),
    "detail": (
        user("What is this?", image("cat", "low")),
        ("changed", "client_edit", 1, 1, None),
        "the image's detail option differs",
    ),
    "text put in": (
        user("Look:", "What is this?", image("cat")),
        ("inserted", "client_edit", 1, 0, None),
        "a text part was inserted",
    ),
    "image put in": (
        user("What is this?", image("dog"), image("cat")),
        ("inserted", "client_edit", 1, 1, None),
        "an image was inserted",
    ),
    "image appended": (
        user("What is this?", image("cat"), image("dog")),
        ("inserted", "client_edit", 1, 2, None),
        "an image was inserted",
    ),
    "text taken out": (user(image("cat")), ("removed", "client_edit", 1, 0, None), "a text part was removed"),
    "unknown part": (
        user("What is this?", image("cat"), {"type": "input_audio", "input_audio": {"data": "x"}}),
        ("inserted", "client_edit", 1, 2, None),
        "a part was inserted",
    ),
    "text for an image": (
        user(image("dog"), image("cat")),
        ("inserted", "client_edit", 1, 0, None),
        "an image was inserted",
    ),
    "order of parts": (
        user(image("cat"), "What is this?"),
        ("moved", "client_edit", 1, 0, None),
        "an image moved from part 1 to part 0",
    ),
    "name": (
        says("user", "What is this?", image("cat"), name="ann"),
        ("changed", "client_edit", 1, None, None),
        "name was inserted",
    ),
    "unknown key": (
        says("user", "What is this?", image("cat"), secret_word=1),
        ("changed", "client_edit", 1, None, None),
        "another key of the message differs",
    ),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())
def test_an_edit_is_named_with_its_place(
    edit: tuple[Message, tuple[str, str, int, int | None, int | None], str],
) -> None:
    message, place, detail = edit
    found = align(CHAT, [*replaced(CHAT, 1, message), NEXT])
    assert brief(found)[0] == place
    assert found.first is not None
    assert found.first.detail == detail
    assert {(one.before, one.after) for one in found.differences} == {(1, 1)}
    assert found.pairs == ((0, 0), (2, 2), (3, 3), (4, 4))


def test_a_part_of_unknown_type_is_compared_as_a_whole() -> None:
    def sound(data: str) -> Message:
        return user("Listen", {"type": "input_audio", "input_audio": {"data": data}}, image("cat"))

    assert brief(align([sound("x"), NEXT], [sound("y"), NEXT])) == [("changed", "client_edit", 0, 1, None)]
    assert brief(align([sound("x"), NEXT], [user("Listen", image("cat")), NEXT])) == [
        ("removed", "client_edit", 0, 1, None)
    ]


def test_a_message_of_another_role_is_changed() -> None:
    found = only(align([system("s"), NEXT], [says("developer", "s"), NEXT]))
    assert (found.kind, found.cause, found.part, found.detail) == ("changed", "client_edit", None, "role differs")


def test_unicode_forms_are_two_texts_and_named() -> None:
    old, new = [user("caf\u00e9!"), reply("ok")], [user("cafe\u0301!"), reply("ok"), NEXT]
    found = only(align(old, new))
    assert (found.cause, found.part, found.character) == ("client_edit", 0, 3)
    assert found.detail == "differs in Unicode form only (NFC)"


@pytest.mark.parametrize(
    ("call", "detail"),
    [
        (calls("c1", '{"a": 2}'), "tool_calls[0]: the arguments differ"),
        (calls("c9", '{"a": 1}'), "tool_calls[0]: the id differs"),
        (calls("c1", '{"a": 1}', "tap"), "tool_calls[0]: the name differs"),
        (reply(), "a tool call was removed"),
    ],
)
def test_a_call_with_another_meaning_is_an_edit(call: Message, detail: str) -> None:
    old = [user("Go"), calls("c1", '{"a": 1}'), result("c1", "ok"), reply("Done")]
    found = only(align(old, replaced(old, 1, call)))
    assert (found.kind, found.cause, found.at, found.part) == ("changed", "client_edit", 1, None)
    assert found.detail == detail


def test_a_trimmed_reply_breaks_at_that_message() -> None:
    old = [user("Go"), says("assistant", "Fine. ", reasoning_content="so")]
    new = [user("Go"), says("assistant", "Fine."), NEXT]
    assert brief(align(old, new)) == [("changed", "client_edit", 1, 0, 5), ("changed", "client_edit", 1, None, None)]
    assert align(old, new).differences[1].detail == "reasoning_content was removed"


def test_a_message_put_into_history_is_an_edit() -> None:
    found = align(CHAT, [*CHAT[:3], user("By the way"), reply("Yes?"), *CHAT[3:]])
    assert brief(found) == [("inserted", "client_edit", 3, None, None), ("inserted", "client_edit", 4, None, None)]


def test_a_text_taken_out_of_the_middle_is_an_edit() -> None:
    old = [user("a"), reply("b"), user("c"), reply("d"), user("e"), reply("f")]
    found = align(old, [*old[:2], *old[4:]])
    assert brief(found) == [("removed", "client_edit", 2, None, None)] * 2
    assert [one.before for one in found.differences] == [2, 3]


def test_messages_in_another_order_moved() -> None:
    old = [user("a"), reply("b"), user("c"), reply("d"), user("e")]
    found = align(old, [old[2], old[1], old[0], *old[3:]])
    assert {(one.kind, one.cause) for one in found.differences} == {("moved", "client_edit")}
    assert found.first is not None
    assert found.first.at == 0
    assert len(found.pairs) == 3


def test_behind_an_edit_places_are_given_for_so_many_messages() -> None:
    def history(word: str) -> list[Message]:
        made = [user("start")]
        for index in range(200):
            made += [user(f"{word} {index}", image("a")), reply(f"a{index}")]
        return made

    found = align(history("one"), history("two"))
    places = [one for one in found.differences if one.character == 0]
    assert (len(found.differences), len(places)) == (200, MAX_PLACES_BEHIND_EDIT + 1)
    assert found.differences[-1].at == 399
    assert {one.cause for one in found.differences} == {"client_edit"}
    bare = align(history("one"), [*history("two")[:300], *map(without_images, history("one")[300:])])
    assert bare.differences[-1].cause == "client_window"


def test_one_message_that_moved_is_told_where_it_is_missed() -> None:
    old = [user("a"), reply("b"), user("c"), reply("d")]
    later = only(align(old, [*old[1:3], old[0], old[3]]))
    assert (later.kind, later.at, later.before, later.after) == ("moved", 0, 0, 2)
    sooner = only(align([*old[1:3], old[0], old[3]], old))
    assert (sooner.kind, sooner.at, sooner.before, sooner.after) == ("moved", 0, 2, 0)
    behind = only(align([NEXT, *old], [NEXT, old[0], *old[2:], old[1]]))
    assert (behind.kind, behind.cause, behind.at, behind.after) == ("moved", "client_edit", 2, 4)


def test_one_part_that_moved_is_told_where_it_is_missed() -> None:
    old = user("x", image("a"), image("b"), image("c"))
    found = align([old, NEXT], [user("y", image("b"), image("c"), image("a")), NEXT])
    assert brief(found) == [("changed", "client_edit", 0, 0, 0), ("moved", "client_edit", 0, 1, None)]


def test_true_and_one_are_two_values() -> None:
    old, new = says("user", "a", store=1), says("user", "a", store=True)
    assert only(align([old, NEXT], [new, NEXT])).cause == "client_edit"


def test_no_detail_holds_the_clients_text() -> None:
    old = [system("alphaword"), user("betaword", image("a")), says("assistant", "gammaword", deltaword="x")]
    new = [system("epsilonword"), user("zetaword", image("b")), says("assistant", "etaword", thetaword="x"), NEXT]
    details = " ".join(one.detail for one in align(old, new).differences)
    assert "word" not in details
    assert details.count("differs") >= 3


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
