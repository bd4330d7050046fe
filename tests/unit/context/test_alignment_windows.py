"""What a client's window took out of its history, and what is an edit of images."""

from __future__ import annotations

import pytest

from context.alignment import Alignment, align
from context.transcript import Message
from tests.unit.context.transcripts import (
    NEXT,
    agent,
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

# Windows of images

PLACEHOLDERS = (
    "[Image: source: /home/me/shot 1.png]",
    "<image>",
    "[image omitted]",
    "[screenshot removed]",
    "an earlier picture",
)


@pytest.mark.parametrize("placeholder", PLACEHOLDERS)
@pytest.mark.case("MC-004")
def test_a_placeholder_in_an_images_place_is_a_window(placeholder: str) -> None:
    """MC-004, MC-023: a pasted image comes as a text pointer in the next request, in a part or in one string."""
    old = [system("s"), user("Look at this", image("shot"))]
    tail = [reply("I see."), user("More")]
    parts = align(old, [system("s"), user("Look at this", placeholder), *tail])
    assert brief(parts) == [("changed", "client_window", 1, 1, None)]
    string = align(old, [system("s"), user(f"Look at this\n{placeholder}"), *tail])
    assert brief(string) == [("changed", "client_window", 1, 0, 12)]
    assert align(old, [system("s"), user(placeholder, "Look at this"), *tail]).first is not None


def test_a_long_text_for_an_image_is_put_in_by_the_client() -> None:
    old = [user(image("shot")), reply("I see.")]
    found = align(old, [user("It shows " + "many things, " * 40), *old[1:]])
    assert brief(found) == [("removed", "client_window", 0, 0, None), ("inserted", "client_edit", 0, 0, None)]


def test_an_edit_next_to_a_placeholder_stays_an_edit() -> None:
    old = [user("one", image("a"), "two"), reply("ok")]
    found = align(old, [user("one!", "[image omitted]", "two"), *old[1:]])
    assert brief(found) == [("changed", "client_edit", 0, 0, 3), ("changed", "client_window", 0, 1, None)]
    joined = align(old, [user("one!\n[image omitted]\ntwo"), *old[1:]])
    assert brief(joined)[0] == ("changed", "client_edit", 0, 0, 3)


@pytest.mark.parametrize("placeholder", [None, "[screenshot removed]"])
@pytest.mark.parametrize("keep", [1, 3])
@pytest.mark.case("MC-002", "MC-008")
def test_keep_last_images_slides_as_a_window(placeholder: str | None, keep: int) -> None:
    """MC-002, MC-008, T1: the oldest screenshot goes each step, by deletion or for a placeholder."""

    def view(steps: int) -> list[Message]:
        made = agent(steps)
        held = [index for index, message in enumerate(made) if message.role == "tool"][:-keep]
        return [without_images(one, placeholder) if index in held else one for index, one in enumerate(made)]

    for steps in range(keep, keep + 4):
        found = align(view(steps), view(steps + 1))
        kind = "changed" if placeholder else "removed"
        place = 2 * (steps - keep + 1) + 1
        assert brief(found) == [(kind, "client_window", place, 1, None)]
        assert [pair for pair in found.pairs if pair[0] < place] == [(index, index) for index in range(place)]


def test_whole_messages_with_images_slide_as_a_window() -> None:
    old = [system("s")]
    for step in range(6):
        old += [user(image(f"s{step}")), reply(f"act {step}")]
    new = [*old[:1], *old[2:], user(image("s6"))]
    found = align(old, new)
    assert brief(found) == [("removed", "client_window", 1, None, None)]
    assert brief(align(new, [*new[:2], *new[3:], reply("act 6"), user(image("s7"))])) == [
        ("removed", "client_window", 2, None, None)
    ]


def test_a_screenshot_that_comes_again_does_not_undo_the_window() -> None:
    """T1: every seventh screenshot is pixel-equal; the one that went was still dropped, not moved."""
    old = [user("go"), user(image("same")), reply("a"), user(image("other")), reply("b")]
    new = [old[0], *old[2:], user(image("same"))]
    assert brief(align(old, new)) == [("removed", "client_window", 1, None, None)]


def test_a_long_text_that_comes_again_does_not_undo_the_window() -> None:
    asked = "Please look at the list again and tell me what is new."
    old = [system("s"), user(asked), reply("a"), user("more"), reply("b")]
    assert {one.cause for one in align(old, [old[0], *old[3:], user(asked)]).differences} == {"client_window"}


def test_words_say_which_message_lost_its_image() -> None:
    old = [user("Look at one", image("a")), user("Look at two", image("b")), reply("ok")]
    found = align(old, [user("Look at two"), reply("ok")])
    assert brief(found) == [("removed", "client_window", 0, None, None), ("removed", "client_window", 0, 1, None)]


def test_a_text_that_was_edited_stands_for_no_image() -> None:
    old = [user(image("a"), "Is it one?"), reply("ok")]
    found = align(old, [user("Is it two?"), reply("ok")])
    assert brief(found) == [("removed", "client_window", 0, 0, None), ("changed", "client_edit", 0, 0, 6)]


def test_the_oldest_turns_are_dropped_as_a_window() -> None:
    old = [system("s"), *(message for turn in range(5) for message in (user(f"q{turn}"), reply(f"a{turn}")))]
    found = align(old, [old[0], *old[5:], NEXT])
    assert brief(found) == [("removed", "client_window", 1, None, None)] * 4
    assert only(align(old, [old[0], *old[2:]])).cause == "client_window"


def test_steps_behind_a_task_that_is_kept_are_dropped_as_a_window() -> None:
    old = [system("s"), user("task"), *(m for i in range(4) for m in (calls(f"c{i}"), result(f"c{i}", f"r{i}")))]
    found = align(old, [*old[:2], *old[6:], NEXT])
    assert {one.cause for one in found.differences} == {"client_window"}
    assert len(found.differences) == 4


def test_a_tool_group_that_goes_with_its_screenshot_is_one_window() -> None:
    old = [*agent(6), reply("done"), user("again"), *agent(2, 7)[2:]]
    found = align(old, [*old[:6], *old[8:]])
    assert brief(found) == [("removed", "client_window", 6, None, None)] * 2


@pytest.mark.case("MC-001")
def test_media_that_slide_inside_one_message() -> None:
    """MC-001: the window slides in the first user message; only there the prefix ends."""
    media = [image(f"v{index}") for index in range(7)]
    filling = align([user("Watch", *media[:4])], [user("Watch", *media[:5])])
    assert filling.first is None
    sliding = align([user("Watch", *media[1:6])], [user("Watch", *media[2:7])])
    assert sliding.first is not None
    assert (sliding.first.cause, sliding.first.at, sliding.first.part) == ("client_window", 0, 1)


@pytest.mark.case("MC-006")
def test_an_image_behind_a_text_history_changes_nothing_before_it() -> None:
    """MC-006: strings against part lists, and an image in the newest message."""
    old = [system("s"), *(message for turn in range(10) for message in (user(f"q{turn}"), reply(f"a{turn}")))]
    parts = [says(message.role, text(message.wire["content"])) for message in old]
    assert align(old, [*parts, user("Look", image("new"))]) == Alignment(tuple((i, i) for i in range(21)))


@pytest.mark.case("MC-005")
def test_screenshots_that_are_scaled_anew_are_other_images() -> None:
    """MC-005: the report names the first message that changed."""
    old = agent(5)
    new = [*replaced(old, 5, result("c2", "Step 2 done.", image("scaled"))), NEXT]
    assert brief(align(old, [*new, reply("x")])) == [("changed", "client_edit", 5, 1, None)]


def test_summary_in_place_of_history() -> None:
    """T6: what went is a window, what came instead is the client's text; both are told."""
    old = [*agent(10), reply("so far"), user("go on"), reply("yes")]
    new = [old[0], user("Summary: ten clicks were made."), *old[-3:], user("next")]
    found = align(old, new)
    assert found.first is not None
    assert (found.first.kind, found.first.cause, found.first.at) == ("removed", "client_window", 1)
    assert [one for one in brief(found) if one[0] == "inserted"] == [("inserted", "client_edit", 1, None, None)]
    assert len(found.differences) == 22


# T4: comparing images

LABELLED = user("A", image("a"), "B", image("b"), image("a"))
T4 = [system("Compare."), LABELLED, reply("A is larger."), user("Sure?"), reply("Yes."), user("New", image("d"))]


def t4(*parts: str) -> Alignment:
    named = [image(part) if part.islower() else part for part in parts]
    return align(T4, [*replaced(T4, 1, user(*named)), reply("Fine."), NEXT])


def test_t4_an_image_that_is_the_same_twice() -> None:
    assert t4("A", "a", "B", "b", "a").first is None
    assert brief(t4("A", "a", "B", "b", "a", "a")) == [("inserted", "client_edit", 1, 5, None)]


def test_t4_images_in_another_order() -> None:
    found = t4("A", "b", "B", "a", "a")
    assert {one.kind for one in found.differences} == {"moved"}
    assert found.first is not None
    assert (found.first.cause, found.first.at, found.first.part) == ("client_edit", 1, 1)


def test_t4_an_image_put_into_the_old_message() -> None:
    assert brief(t4("A", "a", "B", "c", "b", "a")) == [("inserted", "client_edit", 1, 3, None)]


def test_t4_the_newest_image_goes() -> None:
    found = align(T4, [*replaced(T4, 5, user("New")), reply("Fine."), NEXT])
    assert brief(found) == [("removed", "client_window", 5, 1, None)]
    assert brief(align(T4, replaced(T4, 5, user("New")))) == [("removed", "client_window", 5, 1, None)]
    assert brief(t4("A", "a", "B", "b")) == [("removed", "client_window", 1, 4, None)]


def test_t4_labels_that_go_with_their_images() -> None:
    assert brief(t4("A", "a", "a")) == [("removed", "client_window", 1, 2, None)] * 2
