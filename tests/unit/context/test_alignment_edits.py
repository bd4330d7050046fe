"""Edits of a history, with their place."""

from __future__ import annotations

import pytest

from context.alignment import MAX_PLACES_BEHIND_EDIT, align
from context.transcript import Message
from tests.unit.context.transcripts import (
    CHAT,
    NEXT,
    brief,
    calls,
    image,
    only,
    replaced,
    reply,
    result,
    says,
    system,
    user,
    without_images,
)

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
