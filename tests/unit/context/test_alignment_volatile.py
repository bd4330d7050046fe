"""Photos that are encoded anew, and text that changes by itself."""

from __future__ import annotations

import pytest

from context.alignment import Alignment, align
from context.images.base import ImageRef
from context.layout.patterns import Patterns, compile_patterns
from context.transcript import Message
from tests.unit.context.transcripts import (
    CHAT,
    NEXT,
    agent,
    at_time,
    brief,
    image,
    only,
    ref,
    replaced,
    reply,
    says,
    system,
    user,
    without_images,
)

# T5: photos encoded anew


def near(one: ImageRef, two: ImageRef) -> bool:
    """Stands in for a perceptual hash: names that start alike are near."""
    return one.image_id[:8] == two.image_id[:8]


PHOTOS = [
    user("One", image("pho1-80")),
    reply("a"),
    user("Two", image("pho2-80")),
    reply("b"),
    user("Three", image("pho3-80")),
]
AGAIN = [user("One", image("pho1-79")), *PHOTOS[1:2], user("Two", image("pho2-79")), *PHOTOS[3:], reply("c"), NEXT]


def test_t5_other_pixels_are_another_image() -> None:
    found = align(PHOTOS, AGAIN)
    assert brief(found) == [("changed", "client_edit", 0, 1, None), ("changed", "client_edit", 2, 1, None)]
    assert found.matched_images == ()


def test_t5_a_policy_may_let_near_images_match_by_slot() -> None:
    found = align(PHOTOS, AGAIN, slot_match=near)
    assert found.first is None
    assert found.pairs == tuple((index, index) for index in range(5))
    assert [(one.before, one.after, one.old, one.new) for one in found.matched_images] == [
        ((0, 1), (0, 1), ref("pho1-80"), ref("pho1-79")),
        ((2, 1), (2, 1), ref("pho2-80"), ref("pho2-79")),
    ]


def test_t5_the_last_photo_matches_before_any_reply() -> None:
    found = align([user(image("pho1-80"))], [user(image("pho1-79"))], slot_match=near)
    assert (found.pairs, found.first, len(found.matched_images)) == (((0, 0),), None, 1)


def test_t5_an_image_that_is_not_near_is_another_one() -> None:
    new = replaced(AGAIN, 2, user("Two", image("other")))
    found = align(PHOTOS, new, slot_match=near)
    assert brief(found) == [("changed", "client_edit", 2, 1, None)]
    assert len(found.matched_images) == 1


def test_t5_behind_an_edit_no_slot_is_the_one_that_was_sent() -> None:
    asked: list[ImageRef] = []

    def ask(one: ImageRef, two: ImageRef) -> bool:
        asked.append(one)
        return near(one, two)

    new = replaced(AGAIN, 0, user("Un", image("pho1-79")))
    assert {one.cause for one in align(PHOTOS, new, slot_match=ask).differences} == {"client_edit"}
    assert asked == []
    windowed = replaced(AGAIN, 0, user("One"))
    found = align(PHOTOS, windowed, slot_match=ask)
    assert brief(found) == [("removed", "client_window", 0, 1, None)]
    assert asked == [ref("pho2-80")]


def test_t5_a_branch_matches_nothing() -> None:
    found = align([user(image("pho1-80"), "One")], [user(image("pho1-79"), "Two")], slot_match=near)
    assert found == Alignment(())


def test_t5_detail_is_not_matched_away() -> None:
    new = replaced(AGAIN, 0, user("One", image("pho1-79", "low")))
    assert align(PHOTOS, new, slot_match=near).first is not None


# Volatile text


def test_time_in_the_system_prompt_is_volatile() -> None:
    old, new = [system(at_time(40)), *CHAT[1:]], [system(at_time(42)), *CHAT[1:], NEXT]
    found = only(align(old, new))
    assert (found.kind, found.cause, found.at, found.part) == ("changed", "volatile_text", 0, 0)
    assert found.character is not None
    assert at_time(0)[found.character :].startswith("2026-04-12T")


@pytest.mark.case("MC-022")
def test_time_expanded_in_all_messages_is_volatile_in_each() -> None:
    """MC-022: {{time}} is expanded again in the whole history."""

    def at(second: int) -> list[Message]:
        return [message for turn in range(4) for message in (user(f"[23:38:{second:02}] q{turn}"), reply(f"a{turn}"))]

    found = align(at(10), [*at(20), NEXT])
    assert [(one.cause, one.at) for one in found.differences] == [("volatile_text", index) for index in (0, 2, 4, 6)]


def test_time_in_the_last_message_is_volatile_before_any_reply() -> None:
    assert align([user(at_time(1))], [user(at_time(2))]).first is not None


def test_an_edit_beside_a_time_is_an_edit() -> None:
    new = [system(at_time(42).replace("tools", "words")), *CHAT[1:]]
    assert only(align([system(at_time(40)), *CHAT[1:]], new)).cause == "client_edit"


def test_own_patterns_are_used() -> None:
    own = Patterns(own=compile_patterns({"build": "Build ([0-9]{1,9})"}, where="policy.yaml"))
    old, new = [system("Build 17 of it"), *CHAT[1:]], [system("Build 18 of it"), *CHAT[1:]]
    assert only(align(old, new)).cause == "client_edit"
    assert only(align(old, new, patterns=own)).cause == "volatile_text"


def test_volatile_text_and_a_window_are_both_told() -> None:
    old = [system(at_time(1)), *agent(5)[1:]]
    new = [system(at_time(2)), *agent(5)[1:3], without_images(agent(5)[3]), *agent(6)[4:]]
    assert [(one.cause, one.at) for one in align(old, new).differences] == [("volatile_text", 0), ("client_window", 3)]


def test_a_block_with_the_time_that_wanders_to_the_newest_message() -> None:
    """T6: a reminder is taken along to the end of each request."""

    def block(minute: int) -> str:
        return f"<info-msg>It is 2026-04-12 23:{minute}:07. Directory: /project</info-msg>"

    old = [system("s"), user("q1"), reply("a1"), user("q2", block(10))]
    new = [system("s"), user("q1"), reply("a1"), user("q2"), reply("a2"), user("q3", block(11))]
    found = only(align(old, new))
    assert (found.kind, found.cause, found.at, found.part, found.after) == ("moved", "volatile_text", 3, 1, 5)
    joined = align([*old[:3], user("q2\n" + block(10))], [*new[:5], user("q3\n" + block(11))])
    assert brief(joined) == [("moved", "volatile_text", 3, 0, 2)]
    still = align([*old[:3], user("q2", block(10))], [*new[:5], user("q3", block(10))])
    assert (only(still).kind, only(still).cause) == ("moved", "client_edit")
    message = align([*old[:3], user("q2"), says("user", block(10)), reply("a2")], [*new[:5], user(block(11))])
    assert brief(message) == [("moved", "volatile_text", 4, None, None)]
