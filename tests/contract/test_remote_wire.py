"""What goes to an upstream, and what of its answer comes back."""

from __future__ import annotations

import asyncio

import pytest
from pydantic_core import from_json

from context.errors import RequestError
from tests.contract.cases import Picture
from tests.contract.remote_engines import ask, new_request, started
from tests.contract.remote_fixtures import (
    Exchange,
    Received,
    fine,
    scripted,
)


class TestTheWire:
    async def test_one_length_and_nothing_of_the_client(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
        async with scripted(fine) as upstream, started(upstream) as engine:
            chat = engine.chat(new_request(Picture("u", 900, 900), request_id="r-7"))
            async with chat as reply:
                await reply.read()
        (sent,) = upstream.chats
        assert (sent.method, sent.path) == ("POST", "/v1/chat/completions")
        assert sent.headers["x-request-id"] == "r-7"
        assert sent.headers["accept-encoding"] == "identity"
        assert int(sent.headers["content-length"]) == len(sent.body)
        assert not sent.headers.keys() & {"transfer-encoding", "cookie", "authorization"}
        assert from_json(sent.body)["messages"][0]["content"][0]["image_url"]["url"].startswith(
            "data:image/png;base64,"
        )
        assert reply.sent_image_bytes > 0

    @pytest.mark.parametrize(("key", "sent"), [("secret", "Bearer secret"), ("", "Bearer mine")])
    async def test_the_settings_key_wins(self, key: str, sent: str) -> None:
        async with scripted(fine) as upstream, started(upstream, api_key=key) as engine:
            await ask(engine, authorization="Bearer mine")
            async with engine.forward("GET", "/metrics", headers={"Authorization": "Bearer mine"}) as reply:
                await reply.read()
        assert [request.headers["authorization"] for request in upstream.chats] == [sent, sent]

    async def test_only_safe_headers_come_back(self) -> None:
        async def talkative(request: Received, exchange: Exchange) -> bool:
            told = {
                "Set-Cookie": "a=b",
                "Server": "x",
                "X-RateLimit-Limit": "9",
                "OpenAI-Version": "1",
                "Retry-After": "3",
            }
            await exchange.answer(429, b"{}", told)
            return True

        async with scripted(talkative) as upstream, started(upstream) as engine, engine.chat(new_request()) as reply:
            assert dict(reply.headers) == {
                "content-type": "application/json",
                "x-ratelimit-limit": "9",
                "openai-version": "1",
                "retry-after": "3",
            }

    async def test_cookies_are_not_kept(self) -> None:
        async def baker(request: Received, exchange: Exchange) -> bool:
            await exchange.answer(200, b"{}", {"Set-Cookie": "a=b; Path=/"})
            return True

        async with scripted(baker) as upstream:
            # By name: no jar keeps cookies of a bare address.
            upstream.url = upstream.url.replace("127.0.0.1", "localhost")
            async with started(upstream) as engine:
                await ask(engine)
                await ask(engine)
        assert [("cookie" in request.headers, request.connection) for request in upstream.chats] == [(False, 0)] * 2

    async def test_forward_goes_to_the_server_root(self) -> None:
        async with scripted(fine) as upstream, started(upstream) as engine:
            headers = {"Content-Type": "application/json", "Cookie": "c", "Host": "h", "X-Other": "o"}
            for path in ("/tokenize?a=%2F", "v1/embeddings"):
                async with engine.forward("POST", path, headers=headers, body=[b"{", b"}"]) as reply:
                    assert await reply.read() == b'{"choices":[]}'
            with pytest.raises(RequestError):
                async with engine.forward("GET", "/v1/%2e./admin", headers={}):
                    pass
        assert [request.path for request in upstream.chats] == ["/tokenize?a=%2F", "/v1/embeddings"]
        first = upstream.chats[0]
        assert first.body == b"{}"
        assert first.headers["x-other"] == "o"
        assert first.headers["host"] != "h"
        assert "cookie" not in first.headers

    async def test_pieces_arrive_at_once(self) -> None:
        more = asyncio.Event()

        async def stream(request: Received, exchange: Exchange) -> bool:
            await exchange.head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})
            await exchange.raw(b"6\r\none\n\n\n\r\n")
            await more.wait()
            await exchange.raw(b"3\r\ntwo\r\n0\r\n\r\n")
            return True

        async with scripted(stream) as upstream, started(upstream) as engine, engine.chat(new_request()) as reply:
            chunks = aiter(reply.chunks)
            assert await anext(chunks) == b"one\n\n\n"
            more.set()
            assert [chunk async for chunk in chunks] == [b"two"]
