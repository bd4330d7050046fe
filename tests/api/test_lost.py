"""Images whose bytes are gone from the store, behind our back or swept: history alone never makes a request fail."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from context.images.base import ImageRef
from context.lost import asked_images
from context.transcript import ImagePart, message_of
from tests.api.rig import ADMIN, Answer, Rig, ask, blobs, image, running, text, url_image, user
from tests.unit.images.corpus import read
from tests.unit.images.server import running_site

NOTE = text("[image not available]")
SEEN: dict[str, Any] = {"role": "assistant", "content": "seen"}


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncGenerator[Rig]:
    environment = {
        "IMAGES__PAYLOAD_CACHE_BYTES": "0",
        "FETCH__ALLOW_PRIVATE": "[127.0.0.0/8]",
        "POLICY_HEADERS": "[batched, reference, stable]",
    }
    async with running(tmp_path, environment=environment) as rig:
        yield rig


async def lose(rig: Rig) -> None:
    """All bytes are gone, from the store and from the engine."""
    for blob in blobs(rig.settings.data_path):
        blob.unlink()
    await rig.call("POST", "/admin/reset", headers=ADMIN)


def said(answer: Answer) -> dict[str, Any]:
    return {"role": "assistant", "content": answer.json["choices"][0]["message"]["content"]}


async def test_an_image_that_the_client_has_cut(rig: Rig) -> None:
    """It is sent on until the policy shrinks, and nobody can send it again."""
    headers = {"x-stillframe-policy": "batched", "x-stillframe-conversation": "c"}
    first = await rig.chat(ask(user(text("look"), image())), headers)
    await lose(rig)
    cut = [user(text("look")), said(first), user("so?")]
    answer = await rig.chat(ask(*cut), headers)
    assert answer.status == 200
    assert answer.headers["x-stillframe-break"].startswith("policy_eviction; actor=gateway; at=messages[0]")
    assert "x-stillframe-not-available" not in answer.headers
    sent = rig.engine.sent[-1]["messages"]
    assert sent[0]["content"] == [text("look"), NOTE]
    later = await rig.chat(ask(*cut, said(answer), user("and?")), headers)
    assert later.status == 200
    assert "x-stillframe-break" not in later.headers
    assert rig.engine.sent[-1]["messages"][: len(sent)] == sent


async def test_an_image_by_address_that_shows_nothing_any_more(rig: Rig) -> None:
    async with running_site() as site:
        site.changing = read("base.png")
        first = user(text("look"), url_image(site.url("/changing")))
        assert (await rig.chat(ask(first))).status == 200
        site.changing = b"gone"
        await lose(rig)
        answer = await rig.chat(ask(first, SEEN, user("so?")), {"x-stillframe-explain": "1"})
    assert answer.status == 200
    assert answer.headers["x-stillframe-not-available"] == "messages[0].content[1]"
    assert rig.engine.sent[-1]["messages"][0]["content"] == [text("look"), NOTE]
    plan = answer.json["stillframe"]
    assert (plan["replayed"], plan["sent"][0]["images"]) == (0, [])


async def test_what_is_left_is_sent(rig: Rig) -> None:
    headers = {"x-stillframe-policy": "batched", "x-stillframe-conversation": "c"}
    await rig.chat(ask(user(text("look"), image())), headers)
    await lose(rig)
    answer = await rig.chat(ask(user(text("look")), SEEN, user(text("and this?"), image("gray_l.png"))), headers)
    assert answer.status == 200
    first, _, last = rig.engine.sent[-1]["messages"]
    assert first["content"] == [text("look"), NOTE]
    assert [part["type"] for part in last["content"]] == ["text", "image_url"]


def test_what_the_client_can_send_again() -> None:
    one, two = (ImagePart(ImageRef(digit * 64, 2, 2, "image/png", 9)) for digit in "ab")
    wires = [user(one), SEEN, user(two), {"role": "assistant", "content": "I see"}]
    client = tuple(map(message_of, wires))
    assert asked_images(client[:1]) == {one.ref.image_id}
    assert asked_images(client[:3]) == asked_images(client) == {two.ref.image_id}


BAD: dict[str, Any] = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgpqdW5r"}}


async def test_what_the_client_has_begun_of_the_reply_makes_no_history(rig: Rig) -> None:
    """An image that is asked about is new, and the client's to mend."""
    begun = {"role": "assistant", "content": "The picture shows"}
    answer = await rig.chat(ask(user(BAD, text("what?")), begun, continue_final_message=True))
    assert (answer.status, answer.error["param"]) == (400, "messages[0].content[0]")
    answer = await rig.chat(ask(user(BAD, text("what?")), SEEN, user("and?"), begun))
    assert answer.status == 200
    assert answer.headers["x-stillframe-not-available"] == "messages[0].content[0]"


async def test_whoever_goes_on_behind_a_refused_image_is_answered(rig: Rig) -> None:
    refused = await rig.chat(ask(user(BAD), "what is it?"))
    assert refused.status == 400
    # Other words in its place do not mend it.
    assert (await rig.chat(ask(user(BAD), "tell me what it is"))).status == 400
    answer = await rig.chat(ask(user(BAD), "what is it?", "never mind"))
    assert answer.status == 200
    assert answer.headers["x-stillframe-not-available"] == "messages[0].content[0]"


async def test_another_conversation_is_told_of_the_same_image(rig: Rig) -> None:
    for name in ("a", "b"):
        named = {"x-stillframe-conversation": name}
        assert (await rig.chat(ask(user(BAD), "what is it?"), named)).status == 400
    assert (await rig.chat(ask(user(BAD), "what is it?", "well?"), named)).status == 200
    assert (await rig.chat(ask(user(BAD), "what is it?", "well?"), {"x-stillframe-conversation": "c"})).status == 400
    # And one that has said something else before.
    assert (await rig.chat(ask("hello", user(BAD), "what is it?", "well?"), named)).status == 400
