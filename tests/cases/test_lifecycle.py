"""Images that go bad, clients that leave."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic_core import to_json

from engine import asgi
from engine.fake import FakeConfig
from tests.api.rig import CHAT, JSON, Rig, WatchedEngine, running, url_image
from tests.cases.chats import Chat, encoded, part, picture, says, user_of
from tests.cases.conftest import PRIVATE
from tests.unit.images.server import Site

BROKEN = encoded(picture())[:-40]
NOTE = says("[image not available]")
SO = {"role": "assistant", "content": "so"}
HELLO = {"role": "user", "content": "hello?"}


@pytest.mark.case("MC-052")
async def test_a_bad_image_in_history_is_one_note_for_good(rig: Rig) -> None:
    """The conversation began elsewhere, or the client made a reply of the refusal."""
    chat = Chat(rig, [user_of(says("look"), part(BROKEN)), SO, HELLO])
    for turn in range(3):
        answer = await chat.ask(*([{"role": "user", "content": f"go on {turn}"}] if turn else []))
        assert answer.status == 200
        assert answer.headers["x-stillframe-not-available"] == "messages[0].content[1]"
        assert "x-stillframe-break" not in answer.headers
        assert chat.sent[0] == user_of(says("look"), NOTE)
    first, _, last = (body["messages"] for body in rig.engine.sent)
    assert last[: len(first)] == first


@pytest.mark.case("MC-052", "MC-046")
async def test_a_bad_image_is_refused_while_it_is_new(rig: Rig) -> None:
    chat = Chat(rig, [{"role": "user", "content": "hi"}, SO])
    answer = await chat.ask(user_of(says("look"), part(BROKEN)))
    assert (answer.status, answer.error["code"]) == (400, "truncated_image")
    assert answer.error["param"] == "messages[2].content[1]"
    # The same request again is no other one, and a new message with it is a new image.
    assert (await chat.ask()).status == 400
    assert (await Chat(rig, chat.history[:2]).ask(user_of(says("again"), part(BROKEN)))).status == 400
    assert rig.engine.wire == []


@pytest.mark.case("MC-052")
@pytest.mark.parametrize(
    "bad",
    [
        part(BROKEN),
        {"type": "image_url", "image_url": {"url": "blob:https://example.com/1"}},
        {"type": "image_url", "image_url": {"url": "file:///tmp/a.png"}},
        {"type": "image_url", "image_url": {"url": ""}},
        {"type": "image_url", "image_url": None},
        part(encoded(picture(size=(800, 2)))),
    ],
    ids=["truncated", "blob", "file", "empty", "none", "ratio"],
)
async def test_whoever_goes_on_after_a_refusal_is_served(rig: Rig, bad: object) -> None:
    """A message that was refused has no reply, so that nothing but the client's next message says it is history."""
    chat = Chat(rig, [{"role": "user", "content": "hi"}, SO])
    assert (await chat.ask(user_of(says("look"), bad))).status == 400
    for _ in range(3):
        assert (await chat.ask(HELLO)).status == 200
        assert chat.sent[2] == user_of(says("look"), NOTE)
    bodies = [body["messages"] for body in rig.engine.sent]
    assert bodies[2][: len(bodies[1])] == bodies[1]


@pytest.mark.case("MC-052")
async def test_a_bad_image_among_the_newest_messages_is_refused_at_first(rig: Rig) -> None:
    """Nobody has told the client yet, whatever follows the image."""
    assert (await Chat(rig).ask(user_of(part(BROKEN)), HELLO)).status == 400
    assert (await Chat(rig).ask(user_of(part(BROKEN)), HELLO)).status == 400


@pytest.mark.case("MC-052", "MC-034")
async def test_a_note_stays_when_the_image_comes_back(tmp_path: Path, site: Site) -> None:
    site.changing = b"not an image"
    said = [user_of(says("look"), url_image(site.url("/changing"))), SO]
    async with running(tmp_path, environment=PRIVATE) as rig:
        assert (await Chat(rig, [*said]).ask(HELLO)).status == 200
        site.changing = encoded(picture())
    async with running(tmp_path, environment=PRIVATE) as rig:
        chat = Chat(rig, [*said, HELLO, SO])
        assert (await chat.ask(HELLO)).status == 200
        assert chat.sent[0] == user_of(says("look"), NOTE)
        # Where the client has cut off what stood before, too.
        cut = Chat(rig, [{"role": "user", "content": "before"}, SO, *said])
        await cut.ask(HELLO)
        assert cut.sent[2] == user_of(says("look"), NOTE)
        assert len(site.requests) == 1
        # In a new message the image is a new one.
        assert (await chat.ask(user_of(says("now"), url_image(site.url("/changing"))))).status == 200
        assert set(chat.sent[-1]["content"][1]) == {"image"}
        assert chat.sent[0] == user_of(says("look"), NOTE)


@pytest.mark.case("MC-052")
async def test_a_note_stays_when_the_limits_are_raised(tmp_path: Path) -> None:
    said = [user_of(says("look"), part(encoded(picture()))), SO]
    async with running(tmp_path, environment={"IMAGES__MIN_SIDE": "50"}) as rig:
        assert (await Chat(rig, [*said]).ask(HELLO)).status == 200
    async with running(tmp_path) as rig:
        chat = Chat(rig, [*said, HELLO, SO])
        await chat.ask(HELLO)
        assert chat.sent[0] == user_of(says("look"), NOTE)


@pytest.mark.case("MC-034")
async def test_a_dead_link_in_a_history_that_was_never_seen_fails_no_turn(rig: Rig, site: Site) -> None:
    """It is refused where it is new, with its place."""
    dead = user_of(says("look"), url_image(site.url("/forbidden")))
    answer = await Chat(rig).ask(dead)
    assert (answer.status, answer.error["code"]) == (400, "image_fetch_failed")
    assert answer.error["param"] == "messages[0].content[1]"
    for _ in range(2):
        chat = Chat(rig, [dead, SO])
        assert (await chat.ask(HELLO)).status == 200
        assert chat.sent[0] == user_of(says("look"), NOTE)
    # And asked for once, not in every turn.
    assert len(site.requests) == 2


@pytest.mark.case("MC-093")
async def test_what_a_client_has_left_is_no_part_of_the_history(tmp_path: Path) -> None:
    engine = WatchedEngine(FakeConfig(decode_seconds_per_token=0.01))
    async with running(tmp_path, engine) as rig:
        body = {"messages": [HELLO], "stream": True, "max_tokens": 10_000}
        async with asgi.call(rig.app, "POST", CHAT, headers=JSON, body=[to_json(body)]) as reply:
            for _ in range(3):
                await anext(reply.chunks)
        await rig.idle()
        assert await rig.outcomes() == {"aborted": 1}
        # What the client made of what it saw is its own word: no reply is known that it could differ from.
        seen = {"role": "assistant", "content": "as far as I saw"}
        answer = await Chat(rig, [HELLO, seen]).ask(HELLO)
        assert (answer.headers["x-stillframe-turn"], "x-stillframe-break" in answer.headers) == ("2", False)
        assert engine.sent[-1]["messages"] == [HELLO, seen, HELLO]
