"""Spellings of a request: what means the same is the same, and what cannot be served is said."""

from __future__ import annotations

from typing import Any

import pybase64
import pytest
from pydantic_core import to_json

from tests.api.rig import CHAT, JSON, Rig, url_image
from tests.cases.chats import Chat, Wire, call, encoded, part, picture, result, says, user_of
from tests.unit.images.server import Site

DATA = encoded(picture())
TEXT = pybase64.b64encode_as_string(DATA)
URL = f"data:image/png;base64,{TEXT}"
HI = {"role": "user", "content": "hi"}


async def uuid(rig: Rig, image: Any) -> str:
    answer = await Chat(rig).ask(user_of(says("see"), image))
    assert answer.status == 200, answer.body
    return rig.engine.sent[-1]["messages"][0]["content"][1]["uuid"]


def wrapped(width: int) -> str:
    return "\n".join(TEXT[at : at + width] for at in range(0, len(TEXT), width)) + "\n"


@pytest.mark.parametrize(
    "image",
    [
        pytest.param(
            url_image("data:image/png;base64," + wrapped(76)), marks=pytest.mark.case("MC-053"), id="newlines"
        ),
        pytest.param(
            url_image("data:image/png;base64," + wrapped(76).replace("\n", "\r\n")),
            marks=pytest.mark.case("MC-053"),
            id="line ends",
        ),
        pytest.param(url_image(URL.rstrip("=")), marks=pytest.mark.case("MC-054"), id="padding"),
        pytest.param(
            url_image("data:image/png;base64," + TEXT.replace("+", "-").replace("/", "_")),
            marks=pytest.mark.case("MC-054"),
            id="url-safe",
        ),
        pytest.param(url_image(TEXT), marks=pytest.mark.case("MC-056"), id="bare"),
        pytest.param({"type": "image_url", "image_url": URL}, marks=pytest.mark.case("MC-058"), id="string"),
        pytest.param({"type": "input_image", "image_url": URL}, marks=pytest.mark.case("MC-059"), id="responses"),
        pytest.param({"type": "input_image", "image_url": {"url": URL}}, marks=pytest.mark.case("MC-059"), id="both"),
    ],
)
async def test_an_image_in_any_spelling_is_the_image(rig: Rig, image: Any) -> None:
    assert DATA[-1] is not None
    assert await uuid(rig, image) == await uuid(rig, url_image(URL))
    first, second = (body["messages"][0]["content"][1] for body in rig.engine.sent)
    # One shape goes on, whichever came.
    assert first == {"type": "image_url", "image_url": {"url": URL}, "uuid": second["uuid"]}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("data:image/png;base64," + TEXT[:40] + "$" + TEXT[41:], marks=pytest.mark.case("MC-054"), id="$"),
        pytest.param("data:image/png;base64,+-" + TEXT[2:], marks=pytest.mark.case("MC-054"), id="two alphabets"),
        pytest.param(pybase64.b64encode_as_string(b"words " * 40), marks=pytest.mark.case("MC-056"), id="no image"),
        pytest.param("picture.png", marks=pytest.mark.case("MC-056"), id="a name"),
    ],
)
async def test_what_is_no_image_is_refused(rig: Rig, text: str) -> None:
    answer = await Chat(rig).ask(user_of(url_image(text)))
    assert answer.status == 400
    assert answer.error["param"].startswith("messages[0].content[0]")
    assert rig.engine.wire == []


@pytest.mark.case("MC-058")
async def test_a_history_in_the_other_shape_extends_what_was_sent(rig: Rig) -> None:
    chat = Chat(rig)
    await chat.ask(user_of({"type": "image_url", "image_url": URL}))
    chat.history[0] = user_of(url_image(URL))
    answer = await chat.ask(HI)
    assert "x-stillframe-break" not in answer.headers
    assert (
        rig.engine.sent[1]["messages"][0]["content"][0]["uuid"]
        == rig.engine.sent[0]["messages"][0]["content"][0]["uuid"]
    )


@pytest.mark.case("MC-059")
@pytest.mark.parametrize(
    ("image", "named"),
    [
        ({"type": "input_image", "file_id": "file-1"}, "image_url"),
        ({"type": "image_url", "image_url": 7}, "image_url"),
        ({"type": "image", "source": {"type": "base64", "data": TEXT}}, "image_url and input_image"),
    ],
)
async def test_a_wrong_shape_is_told_the_right_one(rig: Rig, image: Any, named: str) -> None:
    answer = await Chat(rig).ask(user_of(says("see"), image))
    assert answer.status == 400
    assert answer.error["param"].startswith("messages[0].content[1]")
    assert named in answer.error["message"]


@pytest.mark.case("MC-059", "MC-060")
async def test_detail_goes_on_as_it_came(rig: Rig) -> None:
    for image in ({"type": "input_image", "image_url": URL, "detail": "low"}, part(DATA, detail="low")):
        await Chat(rig).ask(user_of(image))
        sent = rig.engine.sent[0]["messages"][0]["content"][0]
        assert sent["image_url"]["detail"] == "low"
        assert sent["type"] == "image_url"


@pytest.mark.case("MC-060")
async def test_another_detail_in_history_is_named(rig: Rig) -> None:
    chat = Chat(rig)
    await chat.ask(user_of(says("see"), part(DATA, detail="low")))
    await chat.ask(HI)
    chat.history[0] = user_of(says("see"), part(DATA, detail="high"))
    answer = await chat.ask(HI)
    assert answer.headers["x-stillframe-break"].startswith("client_edit; actor=client; at=messages[0].content[1]")
    # The option is no part of what the image is.
    one, _, two = (body["messages"][0]["content"][1] for body in rig.engine.sent)
    assert one["uuid"] == two["uuid"]


@pytest.mark.case("MC-060")
async def test_pixel_bounds_of_a_client_are_not_passed_on(rig: Rig) -> None:
    """They would make one uuid stand for two different inputs."""
    await Chat(rig).ask(HI, mm_processor_kwargs={"max_pixels": 100}, media_io_kwargs={"image": {"mode": "L"}})
    assert rig.engine.sent[0].keys().isdisjoint({"mm_processor_kwargs", "media_io_kwargs"})


def calling(content: Any, **more: Any) -> Wire:
    return {"role": "assistant", **call("look"), **({} if content == "missing" else {"content": content}), **more}


@pytest.mark.case("MC-064")
@pytest.mark.parametrize("again", [None, "", [], "missing"])
async def test_no_content_beside_a_call_is_no_content_however_it_is_written(rig: Rig, again: Any) -> None:
    first = [HI, calling(None), result("done")]
    await Chat(rig).ask(*first)
    message = calling(again)
    if again == "missing":
        del message["content"]
    answer = await Chat(rig, [HI, message, result("done")]).ask(HI)
    one, two = (body["messages"][1] for body in rig.engine.sent)
    assert to_json(two) == to_json(one)
    assert two["tool_calls"] == call("look")["tool_calls"]
    assert "x-stillframe-break" not in answer.headers


@pytest.mark.case("MC-065")
@pytest.mark.parametrize("content", ["", None])
async def test_an_empty_reply_stays_a_turn(rig: Rig, content: str | None) -> None:
    empty = {"role": "assistant", "content": content}
    assert (await Chat(rig).ask(HI, empty, HI)).status == 200
    assert rig.engine.sent[-1]["messages"] == [HI, empty, HI]


@pytest.mark.case("MC-067")
@pytest.mark.parametrize("kind", ["file", "video", "image", "thinking"])
async def test_a_part_of_another_type_is_refused_by_name(rig: Rig, kind: str) -> None:
    answer = await Chat(rig).ask(user_of(says("see"), {"type": kind, kind: {}}))
    assert (answer.status, answer.error["code"]) == (400, "unsupported_part_type")
    assert answer.error["param"] == "messages[0].content[1].type"
    assert all(name in answer.error["message"] for name in ("text", "image_url", "input_image", kind))


@pytest.mark.case("MC-068")
@pytest.mark.parametrize(
    "media",
    [
        {"type": "video_url", "video_url": {"url": "https://example.com/a.mp4"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
    ],
)
async def test_film_and_sound_are_refused_and_are_no_images(rig: Rig, media: Any) -> None:
    answer = await Chat(rig).ask(user_of(media, says("what is it?")))
    assert (answer.status, answer.error["code"]) == (400, "unsupported_part_type")
    assert rig.engine.wire == []


@pytest.mark.case("MC-071")
async def test_half_a_character_is_refused(rig: Rig) -> None:
    for raw in (rb'"\ud83d"', b'"\xed\xa0\xbd"'):
        body = b'{"messages": [{"role": "user", "content": ' + raw + b"}]}"
        first, second = [await rig.call("POST", CHAT, body, JSON) for _ in range(2)]
        assert (first.status, first.error["code"]) == (400, "invalid_json")
        assert first.body == second.body
    whole = b'{"messages": [{"role": "user", "content": "\\ud83d\\ude00"}], "max_tokens": 1}'
    assert (await rig.call("POST", CHAT, whole, JSON)).status == 200
    assert rig.engine.sent[-1]["messages"][0]["content"] == "\U0001f600"


@pytest.mark.case("MC-047")
@pytest.mark.parametrize(
    ("path", "reason"), [("/forbidden", "http_status 403"), ("/html", "not_an_image"), ("/gzip", "content_encoding")]
)
async def test_a_link_that_cannot_be_fetched_says_why(rig: Rig, site: Site, path: str, reason: str) -> None:
    answer = await Chat(rig).ask(user_of(says("see"), url_image(site.url(path))))
    assert (answer.status, answer.error["code"]) == (400, "image_fetch_failed")
    assert answer.error["param"] == "messages[0].content[1]"
    assert reason in answer.error["message"]
    assert rig.engine.wire == []


@pytest.mark.case("MC-078")
async def test_the_gateway_fetches_and_the_engine_never(rig: Rig, site: Site) -> None:
    chat = Chat(rig)
    await chat.ask(user_of(url_image(site.url("/image.png"))))
    await chat.ask(HI)
    assert [request.headers["User-Agent"] for request in site.requests] == ["stillframe"]
    assert not any(site.url("").encode() in body for body in rig.engine.wire)
