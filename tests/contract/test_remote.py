"""The remote engine keeps the engine contract, and what only an engine behind HTTP promises."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import psutil
import pytest
from pydantic_core import from_json, to_json

from context.errors import ConfigError, EngineProtocolError, EngineTimeout, EngineUnavailable, RequestError
from engine.base import ChatRequest, Engine
from engine.fake import FakeConfig, Fault
from engine.fake.faults import FaultKind
from engine.remote import RemoteEngine, RemoteSettings
from tests.contract.cases import Break, EngineCase, Picture, eventually, user
from tests.contract.engine_suite import EngineSuite, LifecycleSuite, cold, name
from tests.contract.remote_fixtures import (
    VLLM_MODELS,
    Exchange,
    Received,
    Script,
    Scripted,
    ServedFake,
    fine,
    free_port,
    scripted,
    served_fake,
)

__all__ = ["cold", "name"]

_FAULTS: dict[Break, FaultKind] = {"before": "fail", "middle": "break"}
_MISS = to_json(
    {"error": {"message": "Cache miss for image at index 0 but data is not provided.", "code": 400, "param": None}}
)


_PLAIN = FakeConfig(accepts_uuid=False, refuses_cache_salt=True, reports_cache=False, decode_seconds_per_token=0.005)


def _case(fake: ServedFake, **flags: Any) -> EngineCase:
    async def running(_: Engine) -> int:
        return fake.running

    async def break_next(_: Engine, how: Break) -> None:
        if how == "crash":
            fake.die()
        else:
            fake.app.faults.append(Fault(_FAULTS[how]))

    return EngineCase(
        lambda: RemoteEngine(RemoteSettings((fake.url,))),
        "stillframe-fake",
        running,
        break_next=break_next,
        kv_events=False,
        encoder_events=False,
        **flags,
    )


@pytest.fixture
def case() -> Iterator[EngineCase]:
    # An answer has its pace: what is written at once may arrive as one piece.
    with served_fake(FakeConfig(decode_seconds_per_token=0.005)) as fake:
        yield _case(fake)


class TestRemoteEngine(EngineSuite):
    pass


class TestRemoteEngineLifecycle(LifecycleSuite):
    pass


class TestPlainUpstream(EngineSuite):
    """An upstream that knows OpenAI's protocol and nothing of ours."""

    @pytest.fixture
    def case(self) -> Iterator[EngineCase]:
        with served_fake(_PLAIN) as fake:
            yield _case(fake, accepts_uuid=False, reports_cache=False, resets_caches=False)


@asynccontextmanager
async def _started(*upstreams: Scripted, **settings: Any) -> AsyncGenerator[RemoteEngine]:
    options: dict[str, Any] = {
        "backoff_seconds": 0.001,
        "cooling_seconds": 0.01,
        "max_cooling_seconds": 0.01,
    } | settings
    engine = RemoteEngine(RemoteSettings(tuple(upstream.url for upstream in upstreams), **options))
    try:
        await engine.start()
        yield engine
    finally:
        await engine.stop()


def _request(content: Any = "hi", **fields: Any) -> ChatRequest:
    body = {"model": "m", "messages": [user(content)]}
    return ChatRequest(fields.pop("request_id", "r-1"), body, fields.pop("salt", "salt"), **fields)


async def _ask(engine: RemoteEngine, **fields: Any) -> tuple[int, bytes]:
    async with engine.chat(_request(**fields)) as reply:
        return reply.status, await reply.read()


def _connections(url: str) -> int:
    port = int(url.split(":")[2].split("/")[0])
    ours = psutil.Process().net_connections("tcp")
    return sum(1 for one in ours if one.raddr and one.raddr.port == port and one.status != psutil.CONN_TIME_WAIT)


class TestTheWire:
    async def test_one_length_and_nothing_of_the_client(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
        async with scripted(fine) as upstream, _started(upstream) as engine:
            chat = engine.chat(_request(Picture("u", 900, 900), request_id="r-7"))
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
        async with scripted(fine) as upstream, _started(upstream, api_key=key) as engine:
            await _ask(engine, authorization="Bearer mine")
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

        async with scripted(talkative) as upstream, _started(upstream) as engine, engine.chat(_request()) as reply:
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
            async with _started(upstream) as engine:
                await _ask(engine)
                await _ask(engine)
        assert [("cookie" in request.headers, request.connection) for request in upstream.chats] == [(False, 0)] * 2

    async def test_forward_goes_to_the_server_root(self) -> None:
        async with scripted(fine) as upstream, _started(upstream) as engine:
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

        async with scripted(stream) as upstream, _started(upstream) as engine, engine.chat(_request()) as reply:
            chunks = aiter(reply.chunks)
            assert await anext(chunks) == b"one\n\n\n"
            more.set()
            assert [chunk async for chunk in chunks] == [b"two"]


class TestWhatIsFoundOut:
    async def _chat_bodies(self, upstream: Scripted) -> list[dict[str, Any]]:
        async with _started(upstream) as engine:
            self.info = engine.info()
            await _ask(engine)
        return [from_json(request.body) for request in upstream.chats if request.path != "/metrics"]

    async def test_a_plain_upstream_is_asked_for_its_models_alone(self) -> None:
        async with scripted(fine) as upstream:
            bodies = await self._chat_bodies(upstream)
        assert (self.info.models, self.info.accepts_uuid) == (("m",), False)
        assert len(bodies) == len(upstream.chats) == 1
        assert "cache_salt" not in bodies[0]

    async def test_vllm_names_what_it_misses(self) -> None:
        async def missing(request: Received, exchange: Exchange) -> bool:
            asked = b'"uuid"' in request.body
            await exchange.answer(400 if asked else 200, _MISS if asked else b"{}")
            return True

        async with scripted(missing, models=VLLM_MODELS) as upstream:
            probe, chat = await self._chat_bodies(upstream)
        assert (self.info.accepts_uuid, self.info.max_model_tokens) == (True, 4096)
        assert probe["messages"][0]["content"][0]["image_url"] is None
        assert probe["max_tokens"] == 1
        assert chat["cache_salt"] == "salt"

    async def test_any_other_answer_is_no_uuid(self) -> None:
        async with scripted(fine, models=VLLM_MODELS) as upstream:
            _, chat = await self._chat_bodies(upstream)
        assert not self.info.accepts_uuid
        assert chat["cache_salt"] == "salt"

    async def test_a_salt_that_is_refused_is_left_out(self) -> None:
        async def strict(request: Received, exchange: Exchange) -> bool:
            if b"cache_salt" in request.body:
                await exchange.answer(400, b'{"error": {"message": "Unrecognized argument: cache_salt"}}')
            elif b'"uuid"' in request.body:
                await exchange.answer(400, _MISS)
            else:
                await exchange.answer(200, b"{}")
            return True

        async with scripted(strict, models=VLLM_MODELS) as upstream:
            bodies = await self._chat_bodies(upstream)
        assert self.info.accepts_uuid
        assert "cache_salt" not in bodies[-1]

    async def test_a_setting_is_not_asked(self) -> None:
        settled = {"accepts_uuid": True, "accepts_cache_salt": False}
        async with scripted(fine, models=VLLM_MODELS) as upstream, _started(upstream, **settled) as engine:
            assert engine.info().accepts_uuid
        assert [request.path for request in upstream.chats] == ["/metrics"]

    @pytest.mark.parametrize(
        ("sizes", "known"),
        [((16,), 16), ((16, 16), 16), ((16, 32), None), ((), None), ((0,), None), (("None",), None)],
    )
    async def test_blocks_are_those_of_vllms_metrics(self, sizes: tuple[object, ...], known: int | None) -> None:
        shows = _shows(_cache_config(*sizes))
        options: dict[str, Any] = {**_SETTLED, "api_key": "secret"}
        async with scripted(shows, models=VLLM_MODELS) as upstream, _started(upstream, **options) as engine:
            assert engine.info().block_tokens == known
        (asked,) = [request for request in upstream.chats if request.path == "/metrics"]
        assert (asked.method, asked.headers["authorization"]) == ("GET", "Bearer secret")

    async def test_upstreams_with_other_blocks_have_none_together(self) -> None:
        async with (
            scripted(_shows(_cache_config(16)), models=VLLM_MODELS) as one,
            scripted(_shows(_cache_config(16)), models=VLLM_MODELS) as same,
            scripted(_shows(_cache_config(32)), models=VLLM_MODELS) as other,
        ):
            async with _started(one, same, **_SETTLED) as engine:
                assert engine.info().block_tokens == 16
            async with _started(one, other, **_SETTLED) as engine:
                assert engine.info().block_tokens is None

    @pytest.mark.parametrize("status", [401, 404, 500, 0])
    async def test_one_that_hides_its_metrics_is_used(self, status: int) -> None:
        async def hides(request: Received, exchange: Exchange) -> bool:
            if request.path != "/metrics":
                return await fine(request, exchange)
            if status:
                await exchange.answer(status, _cache_config(16))
            return bool(status)

        async with scripted(hides, models=VLLM_MODELS) as upstream, _started(upstream, **_SETTLED) as engine:
            assert engine.info().block_tokens is None
            assert (await _ask(engine))[0] == 200

    @pytest.mark.parametrize("status", [401, 404])
    async def test_an_upstream_that_lists_no_models_is_used(self, status: int) -> None:
        async with scripted(fine, models_status=status) as upstream, _started(upstream) as engine:
            assert engine.info().models == ()
            assert (await _ask(engine))[0] == 200

    async def test_an_upstream_that_is_not_ready_is_waited_for(self) -> None:
        async with scripted(fine, models_status=503) as upstream:
            engine = RemoteEngine(RemoteSettings((upstream.url,), cooling_seconds=0.01))
            with pytest.raises(EngineUnavailable):
                await engine.start()
            upstream.models_status = 200
            await eventually(_is_ready(engine))
            await engine.stop()


_SETTLED = {"accepts_uuid": True, "accepts_cache_salt": True}


def _cache_config(*sizes: object) -> bytes:
    """The part of vLLM 0.32's metrics that tells its cache configuration, shortened; one line an engine core."""
    head = (
        "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig\n# TYPE vllm:cache_config_info gauge\n"
    )
    labels = 'mamba_block_size="7",block_size="{}",cache_dtype="auto",engine="{}",hash_block_size="None"'
    lines = [f"vllm:cache_config_info{{{labels.format(size, core)}}} 1.0\n" for core, size in enumerate(sizes)]
    return (head + "".join(lines) + 'vllm:num_requests_running{engine="0"} 0.0\n').encode()


def _shows(metrics: bytes) -> Script:
    async def show(request: Received, exchange: Exchange) -> bool:
        if request.path == "/metrics":
            await exchange.answer(200, metrics, {"content-type": "text/plain"})
            return True
        return await fine(request, exchange)

    return show


def _is_ready(engine: RemoteEngine) -> Any:
    async def check() -> bool:
        return engine.health().ready

    return check


class TestFailures:
    @pytest.mark.parametrize("upload", [0, 1 << 20])
    async def test_no_answer_in_time(self, upload: int) -> None:
        async def silent(request: Received, exchange: Exchange) -> bool:
            await exchange.left()
            return False

        async with scripted(silent) as upstream, _started(upstream, read_timeout_seconds=0.1) as engine:
            with pytest.raises(EngineTimeout):
                await _ask(engine, content="x" * upload)
        assert len(upstream.chats) == 1

    async def test_no_more_in_time(self) -> None:
        async def stalls(request: Received, exchange: Exchange) -> bool:
            await exchange.head(200, {"content-length": "10"})
            await exchange.raw(b"half")
            await exchange.left()
            return False

        async with scripted(stalls) as upstream, _started(upstream, read_timeout_seconds=0.1) as engine:
            chat = engine.chat(_request())
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

        async with scripted(deaf, reads_body=False) as upstream, _started(upstream, read_timeout_seconds=0.2) as engine:
            async with engine.forward("GET", "/v1/models", headers={}) as reply:
                await reply.read()
            with pytest.raises(EngineTimeout):
                async with engine.forward("POST", "/big", headers={}, body=[b"x" * (1 << 25)]):
                    pass
            await eventually(_no_connection(upstream.url))

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

        async with scripted(odd) as upstream, _started(upstream) as engine:
            with pytest.raises(EngineProtocolError) as failed:
                await _ask(engine)
        assert len(upstream.chats) == 1
        assert "127.0.0.1" not in failed.value.message

    async def test_an_answer_that_breaks_off(self) -> None:
        async def breaks(request: Received, exchange: Exchange) -> bool:
            await exchange.head(200, {"transfer-encoding": "chunked"})
            await exchange.raw(b"4\r\nhalf\r\n")
            return False

        async with scripted(breaks) as upstream, _started(upstream) as engine, engine.chat(_request()) as reply:
            with pytest.raises(EngineProtocolError):
                await reply.read()
        assert len(upstream.chats) == 1

    async def test_a_header_that_cannot_be_sent(self) -> None:
        async with scripted(fine) as upstream, _started(upstream) as engine:
            with pytest.raises(RequestError):
                await _ask(engine, authorization="Bearer a\r\nx: y")


class TestRetries:
    async def test_a_stale_connection_is_replaced(self) -> None:
        async def once(request: Received, exchange: Exchange) -> bool:
            if len(upstream.chats) == 2:
                return False
            return await fine(request, exchange)

        async with scripted(once) as upstream, _started(upstream) as engine:
            assert [(await _ask(engine))[0] for _ in range(2)] == [200, 200]
            assert engine.health().ready
        assert [request.connection for request in upstream.chats] == [0, 0, 1]

    async def test_a_stale_connection_does_not_fail_a_probe(self) -> None:
        async def once(request: Received, exchange: Exchange) -> bool:
            return len(upstream.chats) > 1 and await fine(request, exchange)

        async with scripted(once, models=VLLM_MODELS) as upstream, _started(upstream) as engine:
            assert engine.health().ready
        assert [request.connection for request in upstream.chats[:2]] == [0, 1]

    async def test_a_request_that_kills_is_not_carried_on(self) -> None:
        """It looks like a stale connection, and must not take the next upstream with it."""

        async def dies(request: Received, exchange: Exchange) -> bool:
            if b"poison" not in request.body:
                return await fine(request, exchange)
            exchange.abort()
            return False

        async with scripted(dies) as one, scripted(dies) as two, _started(one, two, retries=5) as engine:
            await _ask(engine, affinity="a")
            with pytest.raises(EngineUnavailable):
                await _ask(engine, affinity="a", content="poison")
        assert sorted((len(one.chats), len(two.chats))) == [0, 3]

    async def test_a_fresh_connection_that_ends_is_not_tried_again(self) -> None:
        async def dies(request: Received, exchange: Exchange) -> bool:
            return False

        # The probe's connection must not be reused: this is about a new one.
        async with scripted(dies) as upstream, _started(upstream, keep_alive_seconds=0.0) as engine:
            with pytest.raises(EngineUnavailable):
                await _ask(engine)
        assert len(upstream.chats) == 1

    @pytest.mark.parametrize(("status", "tries"), [(503, 2), (429, 2), (500, 1), (502, 1), (504, 1), (404, 1)])
    async def test_only_what_was_refused_goes_to_the_next(self, status: int, tries: int) -> None:
        async def refuses(request: Received, exchange: Exchange) -> bool:
            await exchange.answer(status, b'{"error":{}}')
            return True

        async with scripted(refuses) as one, scripted(refuses) as two, _started(one, two) as engine:
            assert (await _ask(engine))[0] == status
        assert len(one.chats) + len(two.chats) == tries

    async def test_a_refusal_is_healed_by_the_next(self) -> None:
        async def refuses(request: Received, exchange: Exchange) -> bool:
            await exchange.answer(503, b"{}")
            return True

        async with scripted(refuses) as one, scripted(fine) as two, _started(one, two) as engine:
            assert [(await _ask(engine, affinity=str(number)))[0] for number in range(8)] == [200] * 8
        assert len(one.chats) > 0

    async def test_nothing_is_tried_again_behind_the_first_byte(self) -> None:
        async def breaks(request: Received, exchange: Exchange) -> bool:
            await exchange.head(200, {"content-length": "100"})
            return False

        async with scripted(breaks) as one, scripted(breaks) as two, _started(one, two) as engine:
            with pytest.raises(EngineProtocolError):
                await _ask(engine)
        assert len(one.chats) + len(two.chats) == 1


class TestSeveralUpstreams:
    async def test_a_conversation_stays_where_it_is(self) -> None:
        async with scripted(fine) as one, scripted(fine) as two, _started(one, two) as engine:
            for _ in range(3):
                for number in range(16):
                    await _ask(engine, affinity=f"conversation-{number}", request_id=str(number))
        seen = [{request.headers["x-request-id"] for request in upstream.chats} for upstream in (one, two)]
        assert not seen[0] & seen[1]
        assert min(map(len, seen)) > 1

    async def test_the_order_of_the_settings_does_not_matter(self) -> None:
        async with (
            scripted(fine) as one,
            scripted(fine) as two,
            _started(one, two) as engine,
            _started(two, one) as other,
        ):
            for each in (engine, other):
                await _ask(each, affinity="conversation")
        assert sorted((len(one.chats), len(two.chats))) == [0, 2]

    async def test_without_affinity_the_least_loaded(self) -> None:
        leave = asyncio.Event()

        async def waits(request: Received, exchange: Exchange) -> bool:
            await leave.wait()
            return await fine(request, exchange)

        async with scripted(waits) as one, scripted(waits) as two, _started(one, two) as engine:
            asked = [asyncio.create_task(_ask(engine)) for _ in range(6)]

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
            async with _started(one, two) as engine:
                await stack.aclose()
                await eventually(_no_connection(two.url))
                assert [(await _ask(engine, affinity=str(number)))[0] for number in range(16)] == [200] * 16
                assert engine.health().ready
                assert "Upstream 2" in engine.health().reason
                async with scripted(fine, port) as again:

                    async def all_up() -> bool:
                        return not engine.health().reason

                    await eventually(all_up)
                    for number in range(16):
                        await _ask(engine, affinity=str(number))
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
        async with scripted(fine, models=other) as one, scripted(fine) as two, _started(one, two) as engine:
            for number in range(8):
                await _ask(engine, affinity=str(number))
            assert engine.info().models == ("other", "m")
        assert (len(one.chats), len(two.chats)) == (0, 8)


class TestBeingDown:
    async def test_starts_without_and_becomes_ready(self) -> None:
        port = free_port()
        engine = RemoteEngine(RemoteSettings((f"http://127.0.0.1:{port}",), cooling_seconds=0.01))
        with pytest.raises(EngineUnavailable) as failed:
            await engine.start()
        assert str(port) not in failed.value.message
        assert engine.health().state == "starting"
        with pytest.raises(EngineUnavailable) as refused:
            await _ask(engine)
        assert refused.value.retry_after_seconds == 1
        async with scripted(fine, port):
            await eventually(_is_ready(engine))
            assert (await _ask(engine))[0] == 200
        await engine.stop()

    async def test_one_that_comes_back_holds_no_image(self) -> None:
        port = free_port()
        async with AsyncExitStack() as stack:
            upstream = await stack.enter_async_context(scripted(fine, port))
            async with _started(upstream, accepts_uuid=True) as engine:
                assert await self._sent(engine) > 0
                assert await self._sent(engine) == 0
                await stack.aclose()
                await eventually(_no_connection(upstream.url))
                with pytest.raises(EngineUnavailable):
                    await _ask(engine)
                assert engine.health().state == "crashed"
                async with scripted(fine, port):
                    await eventually(_is_ready(engine))
                    assert await self._sent(engine) > 0

    async def _sent(self, engine: RemoteEngine) -> int:
        async with engine.chat(_request(Picture("u"))) as reply:
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

        async with scripted(no_such) as upstream, _started(upstream) as engine:
            with pytest.raises(EngineUnavailable, match="does not reset"):
                await engine.reset_caches()
        assert [request.path for request in upstream.chats] == ["/reset_prefix_cache"]


def _no_connection(url: str) -> Any:
    async def check() -> bool:
        return _connections(url) == 0

    return check


class TestLeaving:
    async def test_before_the_head_closes_the_connection(self) -> None:
        came, left = asyncio.Event(), asyncio.Event()

        async def silent(request: Received, exchange: Exchange) -> bool:
            came.set()
            await exchange.left()
            left.set()
            return False

        async with scripted(silent) as upstream, _started(upstream) as engine:
            work = asyncio.create_task(_ask(engine))
            await came.wait()
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
            async with asyncio.timeout(20):
                await left.wait()

    async def test_behind_the_head_closes_the_connection(self) -> None:
        left = asyncio.Event()

        async def endless(request: Received, exchange: Exchange) -> bool:
            await exchange.head(200, {"transfer-encoding": "chunked"})
            await exchange.left()
            left.set()
            return False

        async with scripted(endless) as upstream, _started(upstream) as engine:
            async with engine.chat(_request()):
                pass
            async with asyncio.timeout(20):
                await left.wait()

    async def test_with_a_body_half_sent(self) -> None:
        came = asyncio.Event()

        async def deaf(request: Received, exchange: Exchange) -> bool:
            exchange.writer.transport.pause_reading()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
            came.set()
            await asyncio.Event().wait()
            return False

        async def upload(engine: RemoteEngine) -> None:
            async with engine.forward("POST", "/big", headers={}, body=[b"x" * (1 << 25)]):
                pass

        async with scripted(deaf, reads_body=False) as upstream, _started(upstream) as engine:
            for ends in ("cancel", "stop"):
                came.clear()
                work = asyncio.create_task(upload(engine))
                await came.wait()
                if ends == "cancel":
                    work.cancel()
                else:
                    await engine.stop()
                with pytest.raises((asyncio.CancelledError, EngineUnavailable)):
                    await work
                await eventually(_no_connection(upstream.url))

    async def test_waiting_for_a_connection_can_be_left(self) -> None:
        came = asyncio.Event()

        async def silent(request: Received, exchange: Exchange) -> bool:
            came.set()
            await exchange.left()
            return False

        async with scripted(silent) as upstream, _started(upstream, connections=1) as engine:
            first, second = asyncio.create_task(_ask(engine)), asyncio.create_task(_ask(engine))
            await came.wait()
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
            assert len(upstream.chats) == 1
            third = asyncio.create_task(_ask(engine))
            await engine.stop()
            for task in (first, third):
                with pytest.raises(EngineUnavailable):
                    await task

    async def test_stop_leaves_no_socket_and_no_task(self) -> None:
        async with scripted(fine) as upstream:
            before = asyncio.all_tasks()
            engine = RemoteEngine(RemoteSettings((upstream.url, f"http://127.0.0.1:{free_port()}")))
            with_one_down = await asyncio.gather(engine.start(), return_exceptions=True)
            assert with_one_down == [None]
            await asyncio.gather(*(_ask(engine) for _ in range(8)))
            assert _connections(upstream.url) > 0
            ours = {task for task in asyncio.all_tasks() - before if "watch" in task.get_name()}
            assert ours
            await engine.stop()
            assert _connections(upstream.url) == 0
            assert all(task.done() for task in ours)


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
