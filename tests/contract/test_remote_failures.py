"""Upstreams that fail: what the client hears, what is tried again, and being down."""

from __future__ import annotations

import asyncio
import gzip
from contextlib import AsyncExitStack

import pytest

from context.errors import EngineProtocolError, EngineTimeout, EngineUnavailable, RequestError
from engine.base import ChatRequest
from engine.fake import FakeConfig
from engine.remote import RemoteEngine, RemoteSettings
from tests.contract.cases import Picture, eventually, user
from tests.contract.remote_engines import ask, is_ready, new_request, no_connection, started
from tests.contract.remote_fixtures import (
    VLLM_MODELS,
    Exchange,
    Received,
    fine,
    free_port,
    scripted,
    served_fake,
)


class TestFailures:
    @pytest.mark.parametrize("upload", [0, 1 << 20])
    async def test_no_answer_in_time(self, upload: int) -> None:
        async def silent(request: Received, exchange: Exchange) -> bool:
            await exchange.left()
            return False

        async with scripted(silent) as upstream, started(upstream, read_timeout_seconds=0.1) as engine:
            with pytest.raises(EngineTimeout):
                await ask(engine, content="x" * upload)
        assert len(upstream.chats) == 1

    async def test_no_more_in_time(self) -> None:
        async def stalls(request: Received, exchange: Exchange) -> bool:
            await exchange.head(200, {"content-length": "10"})
            await exchange.raw(b"half")
            await exchange.left()
            return False

        async with scripted(stalls) as upstream, started(upstream, read_timeout_seconds=0.1) as engine:
            chat = engine.chat(new_request())
            async with chat as reply:
                chunks = aiter(reply.chunks)
                assert await anext(chunks) == b"half"
                with pytest.raises(EngineTimeout):
                    await anext(chunks)

    async def test_a_body_that_nobody_takes(self) -> None:
        async def deaf(request: Received, exchange: Exchange) -> bool:
            exchange.writer.transport.pause_reading()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
            await asyncio.Event().wait()
            return False

        async with scripted(deaf, reads_body=False) as upstream, started(upstream, read_timeout_seconds=0.2) as engine:
            async with engine.forward("GET", "/v1/models", headers={}) as reply:
                await reply.read()
            with pytest.raises(EngineTimeout):
                async with engine.forward("POST", "/big", headers={}, body=[b"x" * (1 << 25)]):
                    pass
            await eventually(no_connection(upstream.url))

    @pytest.mark.parametrize(
        ("status", "headers", "body"),
        [
            (307, {"location": "http://127.0.0.1:1/"}, b""),
            (200, {"content-encoding": "gzip"}, gzip.compress(b"{}")),
            (200, {"content-length": "abc"}, b"{}"),
        ],
        ids=["redirect", "compressed", "not-http"],
    )
    async def test_what_cannot_be_passed_on(self, status: int, headers: dict[str, str], body: bytes) -> None:
        async def odd(request: Received, exchange: Exchange) -> bool:
            await exchange.answer(status, body, headers)
            return False

        async with scripted(odd) as upstream, started(upstream) as engine:
            with pytest.raises(EngineProtocolError) as failed:
                await ask(engine)
        assert len(upstream.chats) == 1
        assert "127.0.0.1" not in failed.value.message

    async def test_an_answer_that_breaks_off(self) -> None:
        async def breaks(request: Received, exchange: Exchange) -> bool:
            await exchange.head(200, {"transfer-encoding": "chunked"})
            await exchange.raw(b"4\r\nhalf\r\n")
            return False

        async with scripted(breaks) as upstream, started(upstream) as engine, engine.chat(new_request()) as reply:
            with pytest.raises(EngineProtocolError):
                await reply.read()
        assert len(upstream.chats) == 1

    async def test_a_header_that_cannot_be_sent(self) -> None:
        async with scripted(fine) as upstream, started(upstream) as engine:
            with pytest.raises(RequestError):
                await ask(engine, authorization="Bearer a\r\nx: y")


class TestRetries:
    async def test_a_stale_connection_is_replaced(self) -> None:
        async def once(request: Received, exchange: Exchange) -> bool:
            if len(upstream.chats) == 2:
                return False
            return await fine(request, exchange)

        async with scripted(once) as upstream, started(upstream) as engine:
            assert [(await ask(engine))[0] for _ in range(2)] == [200, 200]
            assert engine.health().ready
        assert [request.connection for request in upstream.chats] == [0, 0, 1]

    async def test_a_stale_connection_does_not_fail_a_probe(self) -> None:
        async def once(request: Received, exchange: Exchange) -> bool:
            return len(upstream.chats) > 1 and await fine(request, exchange)

        async with scripted(once, models=VLLM_MODELS) as upstream, started(upstream) as engine:
            assert engine.health().ready
        assert [request.connection for request in upstream.chats[:2]] == [0, 1]

    async def test_a_request_that_kills_is_not_carried_on(self) -> None:
        """It looks like a stale connection, and must not take the next upstream with it."""

        async def dies(request: Received, exchange: Exchange) -> bool:
            if b"poison" not in request.body:
                return await fine(request, exchange)
            exchange.abort()
            return False

        async with scripted(dies) as one, scripted(dies) as two, started(one, two, retries=5) as engine:
            await ask(engine, affinity="a")
            with pytest.raises(EngineUnavailable):
                await ask(engine, affinity="a", content="poison")
        assert sorted((len(one.chats), len(two.chats))) == [0, 3]

    async def test_a_fresh_connection_that_ends_is_not_tried_again(self) -> None:
        async def dies(request: Received, exchange: Exchange) -> bool:
            return False

        # The probe's connection must not be reused: this is about a new one.
        async with scripted(dies) as upstream, started(upstream, keep_alive_seconds=0.0) as engine:
            with pytest.raises(EngineUnavailable):
                await ask(engine)
        assert len(upstream.chats) == 1

    @pytest.mark.parametrize(("status", "tries"), [(503, 2), (429, 2), (500, 1), (502, 1), (504, 1), (404, 1)])
    async def test_only_what_was_refused_goes_to_the_next(self, status: int, tries: int) -> None:
        async def refuses(request: Received, exchange: Exchange) -> bool:
            await exchange.answer(status, b'{"error":{}}')
            return True

        async with scripted(refuses) as one, scripted(refuses) as two, started(one, two) as engine:
            assert (await ask(engine))[0] == status
        assert len(one.chats) + len(two.chats) == tries

    async def test_a_refusal_is_healed_by_the_next(self) -> None:
        async def refuses(request: Received, exchange: Exchange) -> bool:
            await exchange.answer(503, b"{}")
            return True

        async with scripted(refuses) as one, scripted(fine) as two, started(one, two) as engine:
            assert [(await ask(engine, affinity=str(number)))[0] for number in range(8)] == [200] * 8
        assert len(one.chats) > 0

    async def test_nothing_is_tried_again_behind_the_first_byte(self) -> None:
        async def breaks(request: Received, exchange: Exchange) -> bool:
            await exchange.head(200, {"content-length": "100"})
            return False

        async with scripted(breaks) as one, scripted(breaks) as two, started(one, two) as engine:
            with pytest.raises(EngineProtocolError):
                await ask(engine)
        assert len(one.chats) + len(two.chats) == 1


class TestBeingDown:
    async def test_starts_without_and_becomes_ready(self) -> None:
        port = free_port()
        engine = RemoteEngine(RemoteSettings((f"http://127.0.0.1:{port}",), cooling_seconds=0.01))
        with pytest.raises(EngineUnavailable) as failed:
            await engine.start()
        assert str(port) not in failed.value.message
        assert engine.health().state == "starting"
        with pytest.raises(EngineUnavailable) as refused:
            await ask(engine)
        assert refused.value.retry_after_seconds == 1
        async with scripted(fine, port):
            await eventually(is_ready(engine))
            assert (await ask(engine))[0] == 200
        await engine.stop()

    async def test_one_that_comes_back_holds_no_image(self) -> None:
        port = free_port()
        async with AsyncExitStack() as stack:
            upstream = await stack.enter_async_context(scripted(fine, port))
            async with started(upstream, accepts_uuid=True) as engine:
                assert await self._sent(engine) > 0
                assert await self._sent(engine) == 0
                await stack.aclose()
                await eventually(no_connection(upstream.url))
                with pytest.raises(EngineUnavailable):
                    await ask(engine)
                assert engine.health().state == "crashed"
                async with scripted(fine, port):
                    await eventually(is_ready(engine))
                    assert await self._sent(engine) > 0

    async def _sent(self, engine: RemoteEngine) -> int:
        async with engine.chat(new_request(Picture("u"))) as reply:
            await reply.read()
            return reply.sent_image_bytes

    async def test_a_death_in_the_middle_is_found_out_at_once(self) -> None:
        with served_fake(FakeConfig(decode_seconds_per_token=0.005)) as fake:
            engine = RemoteEngine(RemoteSettings((fake.url,), cooling_seconds=0.01))
            await engine.start()
            body = {"model": "stillframe-fake", "messages": [user("hi")], "stream": True, "max_tokens": 3000}

            async def dies_while_answering() -> None:
                async with engine.chat(ChatRequest("r", body | {"ignore_eos": True}, "s")) as reply:
                    await anext(aiter(reply.chunks))
                    fake.die()
                    await reply.read()

            with pytest.raises(EngineProtocolError):
                await dies_while_answering()

            async def down() -> bool:
                return engine.health().state == "crashed"

            await eventually(down)
            await engine.stop()

    async def test_resets_need_an_upstream_that_can(self) -> None:
        async def no_such(request: Received, exchange: Exchange) -> bool:
            await exchange.answer(404, b"{}")
            return True

        async with scripted(no_such) as upstream, started(upstream) as engine:
            with pytest.raises(EngineUnavailable, match="does not reset"):
                await engine.reset_caches()
        assert [request.path for request in upstream.chats] == ["/reset_prefix_cache"]
