"""Several upstreams, and settings that cannot be honoured."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from context.errors import ConfigError
from engine.base import ChatRequest
from engine.remote import RemoteEngine, RemoteSettings
from tests.contract.cases import Picture, eventually, user
from tests.contract.remote_engines import ask, no_connection, started
from tests.contract.remote_fixtures import (
    Exchange,
    Received,
    fine,
    free_port,
    scripted,
    served_fake,
)


class TestSeveralUpstreams:
    async def test_a_conversation_stays_where_it_is(self) -> None:
        async with scripted(fine) as one, scripted(fine) as two, started(one, two) as engine:
            for _ in range(3):
                for number in range(16):
                    await ask(engine, affinity=f"conversation-{number}", request_id=str(number))
        seen = [{request.headers["x-request-id"] for request in upstream.chats} for upstream in (one, two)]
        assert not seen[0] & seen[1]
        assert min(map(len, seen)) > 1

    async def test_the_order_of_the_settings_does_not_matter(self) -> None:
        async with (
            scripted(fine) as one,
            scripted(fine) as two,
            started(one, two) as engine,
            started(two, one) as other,
        ):
            for each in (engine, other):
                await ask(each, affinity="conversation")
        assert sorted((len(one.chats), len(two.chats))) == [0, 2]

    async def test_without_affinity_the_least_loaded(self) -> None:
        leave = asyncio.Event()

        async def waits(request: Received, exchange: Exchange) -> bool:
            await leave.wait()
            return await fine(request, exchange)

        async with scripted(waits) as one, scripted(waits) as two, started(one, two) as engine:
            asked = [asyncio.create_task(ask(engine)) for _ in range(6)]

            async def all_there() -> bool:
                return len(one.chats) + len(two.chats) == 6

            await eventually(all_there)
            leave.set()
            await asyncio.gather(*asked)
        assert (len(one.chats), len(two.chats)) == (3, 3)

    async def test_one_goes_down_and_comes_back(self) -> None:
        port = free_port()
        async with scripted(fine) as one, AsyncExitStack() as stack:
            two = await stack.enter_async_context(scripted(fine, port))
            async with started(one, two) as engine:
                await stack.aclose()
                await eventually(no_connection(two.url))
                assert [(await ask(engine, affinity=str(number)))[0] for number in range(16)] == [200] * 16
                assert engine.health().ready
                assert "Upstream 2" in engine.health().reason
                async with scripted(fine, port) as again:

                    async def all_up() -> bool:
                        return not engine.health().reason

                    await eventually(all_up)
                    for number in range(16):
                        await ask(engine, affinity=str(number))
                    assert len(again.chats) > 1

    async def test_each_has_images_of_its_own(self) -> None:
        with served_fake() as one, served_fake() as two:
            engine = RemoteEngine(RemoteSettings((one.url, two.url)))
            await engine.start()
            sent: list[bool] = []
            for number in range(12):
                body = {"model": "stillframe-fake", "messages": [user(Picture("u"))], "max_tokens": 1}
                async with engine.chat(ChatRequest("r", body, "s", affinity=str(number))) as reply:
                    await reply.read()
                    sent.append(reply.sent_image_bytes > 0)
                    assert reply.image_misses == 0
            await engine.stop()
        assert sent.count(True) == 2

    async def test_a_model_goes_to_who_lists_it(self) -> None:
        other = {"data": [{"id": "other", "owned_by": "somebody"}]}
        async with scripted(fine, models=other) as one, scripted(fine) as two, started(one, two) as engine:
            for number in range(8):
                await ask(engine, affinity=str(number))
            assert engine.info().models == ("other", "m")
        assert (len(one.chats), len(two.chats)) == (0, 8)


class TestSettings:
    @pytest.mark.parametrize(
        "urls",
        [
            (),
            ("127.0.0.1:8001",),
            ("ftp://host/v1",),
            ("http://user:word@host/v1",),
            ("http://host/v1?key=word",),
            ("http://host/v1", "http://host/v1"),
            ("http://host:0x/v1",),
        ],
    )
    def test_a_wrong_url_stops_the_start(self, urls: tuple[str, ...]) -> None:
        with pytest.raises(ConfigError) as failed:
            RemoteSettings(urls)
        assert "word" not in str(failed.value).replace("password", "")
        assert "upstream" in failed.value.key

    def test_a_key_that_cannot_be_sent_stops_the_start(self) -> None:
        with pytest.raises(ConfigError) as failed:
            RemoteSettings(("http://host/v1",), api_key="key\n")
        assert failed.value.key == "upstreams.api_key"

    def test_the_key_is_not_shown(self) -> None:
        assert "secret" not in repr(RemoteSettings(("http://host/v1",), api_key="secret"))
