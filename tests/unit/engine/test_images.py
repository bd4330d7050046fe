"""Images on the wire: order and exactness of the body, where bytes go, and how a miss is healed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic_core import from_json

from context.errors import RequestError
from context.images.base import ImageRef
from engine.base import ChatRequest, EngineImage, EngineReply
from engine.images import Holdings, is_cache_miss, open_chat, render

URL = b"data:image/png;base64,AAAA"
MISS = b'{"error":{"message":"Cache miss for image at index 0 but data is not provided.","code":400}}'


def _image(uuid: str = "u", url: bytes = URL, detail: str | None = None) -> EngineImage:
    async def load() -> bytes:
        return url

    return EngineImage(uuid, ImageRef("0" * 64, 8, 8, "image/png", 4), load, detail)


def _body(*content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(content)}], "model": "m"}


async def _json(body: dict[str, Any], **options: Any) -> Any:
    return from_json(b"".join((await render(body, **options)).segments))


class Wire:
    """Records bodies and answers with what it was given, in its order; the last answer is repeated."""

    def __init__(self, *answers: tuple[int, bytes]) -> None:
        self.answers, self.bodies, self.open = list(answers), list[Any](), 0

    @asynccontextmanager
    async def send(self, segments: Sequence[bytes]) -> AsyncGenerator[EngineReply]:
        self.bodies.append(from_json(b"".join(segments)))
        status, answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.open += 1
        try:
            yield EngineReply(status, {}, _chunks(answer))
        finally:
            self.open -= 1

    def parts(self, at: int) -> list[dict[str, Any]]:
        return [part for part in self.bodies[at]["messages"][0]["content"] if part["type"] == "image_url"]


async def _chunks(answer: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(answer), 7):
        yield answer[at : at + 7]


async def _chat(
    wire: Wire, holdings: Holdings, body: dict[str, Any], *, max_image_bytes: int = 1 << 30, **options: Any
) -> tuple[EngineReply, bytes]:
    request = ChatRequest("r", body, "salt", max_image_bytes=max_image_bytes)
    async with open_chat(request, accepts_uuid=True, holdings=holdings, send=wire.send, **options) as reply:
        return reply, await reply.read()


async def test_three_forms_of_an_image() -> None:
    body = _body(_image("held"), _image("new", detail="high"), {"type": "text", "text": "?"})
    parts = (await _json(body, accepts_uuid=True, held={"held"}))["messages"][0]["content"]
    url = URL.decode()
    assert parts == [
        {"type": "image_url", "image_url": None, "uuid": "held"},
        {"type": "image_url", "image_url": {"url": url, "detail": "high"}, "uuid": "new"},
        {"type": "text", "text": "?"},
    ]
    plain = (await _json(body, accepts_uuid=False, held={"held"}))["messages"][0]["content"]
    assert plain[0] == {"type": "image_url", "image_url": {"url": url}}


async def test_bytes_are_segments_of_their_own() -> None:
    url = b"data:image/png;base64," + b"A" * 100_000
    rendered = await render(_body(_image(url=url), "x", _image("v", url=url)), accepts_uuid=True)
    assert [segment for segment in rendered.segments if segment is url] == [url, url]
    assert rendered.image_bytes == 2 * len(url)
    assert rendered.size_bytes == len(b"".join(rendered.segments))


@pytest.mark.case("MC-019")
async def test_keys_have_one_order() -> None:
    body: dict[str, Any] = {"zeta": 1, "messages": [], "tools": [{"b": 1, "a": 2}], "alpha": 2, "model": "m"}
    written = b"".join((await render(body, accepts_uuid=True)).segments)
    assert written == b'{"model":"m","tools":[{"b":1,"a":2}],"messages":[],"alpha":2,"zeta":1}'
    turned = dict(reversed(body.items()))
    assert b"".join((await render(turned, accepts_uuid=True)).segments) == written


async def test_values_are_exact() -> None:
    body: dict[str, Any] = {"messages": [], "seed": 2**63 - 1, "temperature": 1.0, "user": "é\u2028", "x": 0.1}
    assert await _json(body, accepts_uuid=True) == body


async def test_what_is_not_json_is_refused() -> None:
    for value in (object(), "\ud800"):
        with pytest.raises(RequestError) as refused:
            await render({"messages": [], "metadata": value}, accepts_uuid=True)
        assert "object at" not in refused.value.message


async def test_the_body_is_not_mutated() -> None:
    image = _image()
    body = _body(image)
    await render(body, accepts_uuid=True)
    assert body["messages"][0]["content"] == [image]


async def test_bytes_once_then_uuid() -> None:
    wire, holdings = Wire((200, b"{}")), Holdings()
    first, _ = await _chat(wire, holdings, _body(_image()))
    second, _ = await _chat(wire, holdings, _body(_image()))
    assert (first.sent_image_bytes, second.sent_image_bytes) == (len(URL), 0)
    assert wire.parts(1) == [{"type": "image_url", "image_url": None, "uuid": "u"}]
    assert wire.bodies[0]["cache_salt"] == "salt"


async def test_nothing_is_held_before_a_success() -> None:
    wire, holdings = Wire((503, b"{}"), (200, b"{}")), Holdings()
    await _chat(wire, holdings, _body(_image()))
    assert "u" not in holdings
    # Two at a time: the second cannot count on the first, which has no answer yet.
    async with open_chat(
        ChatRequest("r", _body(_image("v")), ""), accepts_uuid=True, holdings=Holdings(), send=wire.send
    ):
        pass
    assert wire.parts(1)[0]["image_url"] is not None


async def test_a_miss_is_sent_again_with_bytes_for_all() -> None:
    wire, holdings = Wire((400, MISS), (200, b"fine")), Holdings()
    holdings.add(["u", "v"])
    reply, content = await _chat(wire, holdings, _body(_image("u"), _image("v"), _image("u")))
    assert (reply.status, content, reply.image_misses) == (200, b"fine", 3)
    assert reply.sent_image_bytes == 3 * len(URL)
    assert all(part["image_url"] for part in wire.parts(1))
    assert "u" in holdings
    assert wire.open == 0


async def test_a_second_miss_reaches_the_caller() -> None:
    wire, holdings = Wire((400, MISS)), Holdings()
    holdings.add(["u"])
    reply, content = await _chat(wire, holdings, _body(_image()))
    assert (reply.status, content, len(wire.bodies)) == (400, MISS, 2)
    assert "u" not in holdings


async def test_another_refusal_passes_whole() -> None:
    answer = b'{"error":{"message":"max_tokens must be at least 1"}}'
    wire, holdings = Wire((400, answer)), Holdings()
    holdings.add(["u"])
    reply, content = await _chat(wire, holdings, _body(_image()))
    assert (reply.status, content, len(wire.bodies)) == (400, answer, 1)


async def test_a_reset_during_a_request_wins() -> None:
    wire, holdings = Wire((200, b"{}")), Holdings()

    async def load() -> bytes:
        holdings.clear()
        return URL

    image = EngineImage("u", ImageRef("0" * 64, 8, 8, "image/png", 4), load)
    await _chat(wire, holdings, _body(image))
    assert "u" not in holdings


async def test_no_salt_where_it_is_not_known() -> None:
    wire = Wire((200, b"{}"))
    await _chat(wire, Holdings(), _body() | {"cache_salt": "the client's"}, accepts_salt=False)
    assert "cache_salt" not in wire.bodies[0]


def test_holdings_are_bounded() -> None:
    holdings = Holdings(max_entries=2)
    holdings.add(["a", "b"])
    holdings.add(["a", "c"])
    assert ("a" in holdings, "b" in holdings, "c" in holdings, len(holdings)) == (True, False, True, 2)


def test_miss_answers() -> None:
    assert is_cache_miss(MISS)
    for other in (b"", b"[]", b'{"error":"Cache miss, data is not provided"}', b'{"error":{"message":null}}', b"\xff"):
        assert not is_cache_miss(other)


def _large(uuid: str, size_bytes: int, loaded: list[str]) -> EngineImage:
    async def load() -> bytes:
        loaded.append(uuid)
        return URL

    return EngineImage(uuid, ImageRef("0" * 64, 8, 8, "image/png", size_bytes), load)


async def test_more_image_bytes_than_the_bound_are_refused_before_any_is_loaded() -> None:
    loaded: list[str] = []
    body = _body(_large("u", 300, loaded), _large("v", 298, loaded), _large("v", 2, loaded))
    with pytest.raises(RequestError) as refused:
        await render(body, accepts_uuid=True, max_image_bytes=803)
    assert (refused.value.code, refused.value.status, loaded) == ("too_many_image_bytes", 413, [])
    assert "804 bytes" in refused.value.message
    assert "fewer or smaller images" in refused.value.message
    await render(body, accepts_uuid=True, max_image_bytes=804)
    assert loaded == ["u", "v", "v"]
    # What the engine holds is not sent.
    await render(body, accepts_uuid=True, held={"u"}, max_image_bytes=404)


async def test_there_is_a_bound_by_default() -> None:
    with pytest.raises(RequestError) as refused:
        await render(_body(*(_large(str(at), 20 << 20, []) for at in range(5))), accepts_uuid=True)
    assert refused.value.status == 413


async def test_the_bound_holds_for_both_tries() -> None:
    wire, holdings, loaded = Wire((400, MISS)), Holdings(), list[str]()
    for _ in range(2):
        with pytest.raises(RequestError) as refused:
            await _chat(wire, holdings, _body(_large("u", 300, loaded)), max_image_bytes=399)
        assert refused.value.code == "too_many_image_bytes"
        holdings.add(["u"])
    assert (len(wire.bodies), loaded) == (1, [])
