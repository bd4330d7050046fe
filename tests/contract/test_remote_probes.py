"""What is found out about an upstream, at the start and on the way."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_core import from_json, to_json

from context.errors import EngineUnavailable
from engine.remote import RemoteEngine, RemoteSettings
from tests.contract.cases import eventually
from tests.contract.remote_engines import ask, is_ready, started
from tests.contract.remote_fixtures import (
    VLLM_MODELS,
    Exchange,
    Received,
    Script,
    Scripted,
    fine,
    scripted,
)

MISS = to_json(
    {"error": {"message": "Cache miss for image at index 0 but data is not provided.", "code": 400, "param": None}}
)


class TestWhatIsFoundOut:
    async def _chat_bodies(self, upstream: Scripted) -> list[dict[str, Any]]:
        async with started(upstream) as engine:
            self.info = engine.info()
            await ask(engine)
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
            await exchange.answer(400 if asked else 200, MISS if asked else b"{}")
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
                await exchange.answer(400, MISS)
            else:
                await exchange.answer(200, b"{}")
            return True

        async with scripted(strict, models=VLLM_MODELS) as upstream:
            bodies = await self._chat_bodies(upstream)
        assert self.info.accepts_uuid
        assert "cache_salt" not in bodies[-1]

    async def test_a_setting_is_not_asked(self) -> None:
        settled = {"accepts_uuid": True, "accepts_cache_salt": False}
        async with scripted(fine, models=VLLM_MODELS) as upstream, started(upstream, **settled) as engine:
            assert engine.info().accepts_uuid
        assert [request.path for request in upstream.chats] == ["/metrics"]

    @pytest.mark.parametrize(
        ("sizes", "known"),
        [((16,), 16), ((16, 16), 16), ((16, 32), None), ((), None), ((0,), None), (("None",), None)],
    )
    async def test_blocks_are_those_of_vllms_metrics(self, sizes: tuple[object, ...], known: int | None) -> None:
        told = shows(cache_config(*sizes))
        options: dict[str, Any] = {**SETTLED, "api_key": "secret"}
        async with scripted(told, models=VLLM_MODELS) as upstream, started(upstream, **options) as engine:
            assert engine.info().block_tokens == known
        (asked,) = [request for request in upstream.chats if request.path == "/metrics"]
        assert (asked.method, asked.headers["authorization"]) == ("GET", "Bearer secret")

    async def test_upstreams_with_other_blocks_have_none_together(self) -> None:
        async with (
            scripted(shows(cache_config(16)), models=VLLM_MODELS) as one,
            scripted(shows(cache_config(16)), models=VLLM_MODELS) as same,
            scripted(shows(cache_config(32)), models=VLLM_MODELS) as other,
        ):
            async with started(one, same, **SETTLED) as engine:
                assert engine.info().block_tokens == 16
            async with started(one, other, **SETTLED) as engine:
                assert engine.info().block_tokens is None

    @pytest.mark.parametrize(
        ("told", "known"),
        [(("True",), True), (("False",), False), (("True", "False"), False), (("None",), None), ((), None)],
    )
    async def test_whether_there_is_a_prefix_cache_is_told_by_vllms_metrics(
        self, told: tuple[str, ...], known: bool | None
    ) -> None:
        lines = [f'vllm:cache_config_info{{block_size="16",enable_prefix_caching="{one}"}} 1.0\n' for one in told]
        answer = shows("".join(lines).encode())
        async with scripted(answer, models=VLLM_MODELS) as upstream, started(upstream, **SETTLED) as engine:
            assert engine.info().caches_prefix is known

    @pytest.mark.parametrize(("salted", "status"), [(True, 200), (False, 200), (True, 500)])
    async def test_an_answer_is_asked_for_twice_where_the_settings_say_so(self, salted: bool, status: int) -> None:
        usage = to_json({"usage": {"prompt_tokens": 310, "prompt_tokens_details": {"cached_tokens": 304}}})

        async def answers(request: Received, exchange: Exchange) -> bool:
            await exchange.answer(status, usage)
            return True

        options: dict[str, Any] = {"accepts_uuid": True, "accepts_cache_salt": salted, "probe_usage": True}
        async with scripted(answers) as upstream, started(upstream, **options) as engine:
            told = engine.info().asked_answers
        bodies = [from_json(request.body) for request in upstream.chats]
        # One that does not answer is used without, as all others are.
        assert told == ((from_json(usage),) if status == 200 else ())
        assert len(bodies) == 2
        assert bodies[0] == bodies[1]
        assert bodies[0]["max_tokens"] == 1
        assert ("cache_salt" in bodies[0]) is salted
        assert len(bodies[0]["messages"][0]["content"].split()) > 256

    @pytest.mark.parametrize("status", [401, 404, 500, 0])
    async def test_one_that_hides_its_metrics_is_used(self, status: int) -> None:
        async def hides(request: Received, exchange: Exchange) -> bool:
            if request.path != "/metrics":
                return await fine(request, exchange)
            if status:
                await exchange.answer(status, cache_config(16))
            return bool(status)

        async with scripted(hides, models=VLLM_MODELS) as upstream, started(upstream, **SETTLED) as engine:
            assert engine.info().block_tokens is None
            assert (await ask(engine))[0] == 200

    @pytest.mark.parametrize("status", [401, 404])
    async def test_an_upstream_that_lists_no_models_is_used(self, status: int) -> None:
        async with scripted(fine, models_status=status) as upstream, started(upstream) as engine:
            assert engine.info().models == ()
            assert (await ask(engine))[0] == 200

    async def test_an_upstream_that_is_not_ready_is_waited_for(self) -> None:
        async with scripted(fine, models_status=503) as upstream:
            engine = RemoteEngine(RemoteSettings((upstream.url,), cooling_seconds=0.01))
            with pytest.raises(EngineUnavailable):
                await engine.start()
            upstream.models_status = 200
            await eventually(is_ready(engine))
            await engine.stop()


SETTLED = {"accepts_uuid": True, "accepts_cache_salt": True}


def cache_config(*sizes: object) -> bytes:
    """The part of vLLM 0.32's metrics that tells its cache configuration, shortened; one line an engine core."""
    head = (
        "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig\n# TYPE vllm:cache_config_info gauge\n"
    )
    labels = 'mamba_block_size="7",block_size="{}",cache_dtype="auto",engine="{}",hash_block_size="None"'
    lines = [f"vllm:cache_config_info{{{labels.format(size, core)}}} 1.0\n" for core, size in enumerate(sizes)]
    return (head + "".join(lines) + 'vllm:num_requests_running{engine="0"} 0.0\n').encode()


def shows(metrics: bytes) -> Script:
    async def show(request: Received, exchange: Exchange) -> bool:
        if request.path == "/metrics":
            await exchange.answer(200, metrics, {"content-type": "text/plain"})
            return True
        return await fine(request, exchange)

    return show
