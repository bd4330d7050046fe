"""The contract that every engine keeps. A module for an engine makes a class of the suite and gives it a `case`:

    class TestFake(EngineSuite):
        @pytest.fixture
        def case(self) -> EngineCase: ...

It shares whatever engine the fixture `engine` gives; `tests/contract/lifecycle_suite.py` starts its own ones.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from pydantic_core import from_json

from context.errors import RequestError
from engine.base import ChatRequest, Engine
from tests.contract.cases import (
    ENDLESS,
    EngineCase,
    Picture,
    ask,
    busy,
    encoder_events,
    events_of,
    full_blocks,
    hello,
    idle,
    stored_tokens,
    user,
    words,
)


@pytest.fixture
def name() -> str:
    """A name that no other test has used: for uuids, salts and request ids."""
    return uuid.uuid4().hex[:12]


@pytest.fixture
def cold(case: EngineCase) -> None:
    """For tests that count: only where the engine can count."""
    if not case.reports_cache:
        pytest.skip("this engine does not report its prefix cache")


class EngineSuite:
    """Chats, caches, events and cancellation on a started engine."""

    async def test_answers_a_chat(self, engine: Engine, case: EngineCase, name: str) -> None:
        async with engine.chat(ChatRequest(name, hello(case), name)) as reply:
            body = from_json(await reply.read())
        assert reply.status == 200
        assert reply.headers["content-type"].startswith("application/json")
        assert body["choices"][0]["message"]["role"] == "assistant"
        assert body["id"] == f"chatcmpl-{name}"
        assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + body["usage"]["completion_tokens"]

    async def test_streams_a_chat(self, engine: Engine, case: EngineCase, name: str) -> None:
        body = hello(case) | {"stream": True, "max_tokens": 300, "ignore_eos": True}
        async with engine.chat(ChatRequest(name, body, name)) as reply:
            chunks = [chunk async for chunk in reply.chunks]
        events = events_of(b"".join(chunks))
        assert len(chunks) > 1
        assert reply.headers["content-type"].startswith("text/event-stream")
        assert events[0]["choices"][0]["delta"]["role"] == "assistant"
        assert [event["choices"][0]["finish_reason"] for event in events][-1] == "length"
        assert not any("usage" in event and event["usage"] for event in events)

    @pytest.mark.case("MC-092")
    async def test_usage_is_the_same_in_both_modes(self, engine: Engine, case: EngineCase, name: str) -> None:
        messages = [user(words(60), Picture(name))]
        first = await ask(engine, case, messages, salt=f"{name}-1")
        streamed = await ask(engine, case, messages, salt=f"{name}-2", stream=True)
        assert first.usage == streamed.usage
        assert first.text == streamed.text

    async def test_parameters_pass(self, engine: Engine, case: EngineCase) -> None:
        several: dict[str, Any] = {"n": 2, "temperature": 1, "seed": 7, "logprobs": True, "top_logprobs": 2}
        answered = await ask(
            engine, case, [user("hi")], max_tokens=3, ignore_eos=True, unknown_to_all={"x": [1]}, **several
        )
        body = from_json(answered.body)
        assert answered.status == 200
        assert [choice["index"] for choice in body["choices"]] == [0, 1]
        logprobs = body["choices"][1]["logprobs"]["content"]
        assert len(logprobs) == 3
        assert len(logprobs[0]["top_logprobs"]) >= 2

    async def test_a_refusal_is_a_reply(self, engine: Engine, case: EngineCase) -> None:
        answered = await ask(engine, case, [user("hi")], max_tokens=0)
        assert answered.status == 400
        assert from_json(answered.body)["error"]["message"]

    async def test_an_unknown_model_is_a_reply(self, engine: Engine, case: EngineCase) -> None:
        answered = await ask(engine, case, [user("hi")], model="no-such-model")
        assert answered.status == 404

    async def test_what_is_not_json_is_refused(self, engine: Engine, case: EngineCase) -> None:
        with pytest.raises(RequestError):
            await ask(engine, case, [user("hi")], metadata=object())

    async def test_forwards_as_it_is(self, engine: Engine, case: EngineCase) -> None:
        async with engine.forward("GET", "/v1/models", headers={}) as reply:
            body = from_json(await reply.read())
        assert case.model in [model["id"] for model in body["data"]]

    async def test_info(self, engine: Engine, case: EngineCase) -> None:
        info = engine.info()
        assert case.model in info.models
        assert info.accepts_uuid == case.accepts_uuid
        if info.block_tokens is not None:
            assert info.block_tokens == case.block_tokens
        if info.kind != "remote":
            assert (info.caches_prefix, info.reports_read) == (True, case.reports_cache)

    @pytest.mark.usefixtures("cold")
    async def test_identical_request_reads_every_full_block(self, engine: Engine, case: EngineCase, name: str) -> None:
        messages = [user(words(80), Picture(name), "and?")]
        first = await ask(engine, case, messages, salt=name)
        second = await ask(engine, case, messages, salt=name)
        assert first.read_tokens == 0
        assert second.read_tokens == full_blocks(first.prompt_tokens, case.block_tokens)
        assert second.prompt_tokens == first.prompt_tokens
        assert first.image_tokens == second.image_tokens > 0

    @pytest.mark.usefixtures("cold")
    async def test_a_prompt_of_whole_blocks_reads_one_less(self, engine: Engine, case: EngineCase, name: str) -> None:
        # Some length hits the boundary: one token more each time, for a whole block of lengths.
        lengths: set[int] = set()
        for extra in range(2 * case.block_tokens):
            messages = [user(words(60) + " a" * extra)]
            first = await ask(engine, case, messages, salt=f"{name}-{extra}")
            again = await ask(engine, case, messages, salt=f"{name}-{extra}")
            assert again.read_tokens == full_blocks(first.prompt_tokens, case.block_tokens)
            lengths.add(first.prompt_tokens % case.block_tokens)
            if 0 in lengths:
                return
        pytest.fail("no prompt had a whole number of blocks")

    @pytest.mark.usefixtures("cold")
    @pytest.mark.case("MC-025")
    async def test_appending_reads_the_old_prefix(self, engine: Engine, case: EngineCase, name: str) -> None:
        messages = [user(words(80), Picture(name))]
        turn = [*messages, {"role": "assistant", "content": "x"}]
        longer = {"text": user("more " + words(8)), "image": user("look", Picture(f"{name}-b", shade=1))}
        for kind, message in longer.items():
            first = await ask(engine, case, messages, salt=f"{name}-{kind}")
            later = await ask(engine, case, [*turn, message], salt=f"{name}-{kind}")
            # The first prompt ends with the opening of the answer, which the second goes on from.
            assert later.read_tokens == first.prompt_tokens // case.block_tokens * case.block_tokens

    @pytest.mark.usefixtures("cold")
    async def test_salts_share_nothing(self, engine: Engine, case: EngineCase, name: str) -> None:
        messages = [user(words(80))]
        await ask(engine, case, messages, salt=f"{name}-1")
        other = await ask(engine, case, messages, salt=f"{name}-2")
        same = await ask(engine, case, messages, salt=f"{name}-1")
        assert (other.read_tokens, same.read_tokens > 0) == (0, True)

    async def test_bytes_go_once(self, engine: Engine, case: EngineCase, name: str) -> None:
        if not case.accepts_uuid:
            pytest.skip("this engine knows no uuid")
        picture = Picture(name)
        first = await ask(engine, case, [user("look", picture)])
        second = await ask(engine, case, [user("look again", picture)])
        assert first.sent_image_bytes > 0
        assert (second.sent_image_bytes, second.image_misses, picture.loads) == (0, 0, 1)

    async def test_bytes_go_always_without_uuids(self, engine: Engine, case: EngineCase, name: str) -> None:
        if case.accepts_uuid:
            pytest.skip("this engine knows uuids")
        picture = Picture(name)
        first = await ask(engine, case, [user("look", picture)])
        second = await ask(engine, case, [user("look", picture)])
        assert first.status == second.status == 200
        assert second.sent_image_bytes == first.sent_image_bytes > 0

    async def test_an_image_that_stands_twice(self, engine: Engine, case: EngineCase, name: str) -> None:
        picture = Picture(name)
        first = await ask(engine, case, [user(picture, "and", picture)])
        second = await ask(engine, case, [user(picture, "and", picture)])
        assert first.status == second.status == 200
        assert first.image_misses == second.image_misses == 0

    async def test_a_miss_is_healed_unseen(self, engine: Engine, case: EngineCase, name: str) -> None:
        if not (case.accepts_uuid and case.resets_caches):
            pytest.skip("this engine knows no uuid, or its cache cannot be emptied")
        kept, dropped = Picture(name), Picture(f"{name}-b", shade=1)
        await ask(engine, case, [user("look", kept, dropped)])
        async with engine.forward("POST", "/reset_mm_cache", headers={}) as reply:
            await reply.read()
        healed = await ask(engine, case, [user("look", kept, dropped)])
        after = await ask(engine, case, [user("look", kept, dropped)])
        assert healed.status == 200
        assert (healed.image_misses, healed.sent_image_bytes > 0) == (2, True)
        assert (after.image_misses, after.sent_image_bytes) == (0, 0)

    async def test_reset_caches(self, engine: Engine, case: EngineCase, name: str) -> None:
        if not case.resets_caches:
            pytest.skip("this engine's caches cannot be emptied")
        messages = [user(words(80), Picture(name))]
        await ask(engine, case, messages, salt=name)
        await idle(engine, case)
        await engine.reset_caches()
        after = await ask(engine, case, messages, salt=name)
        assert (after.read_tokens, after.image_misses) == (0, 0)
        assert after.sent_image_bytes > 0

    async def test_encoder_runs_once_for_an_image(self, engine: Engine, case: EngineCase, name: str) -> None:
        _needs(case.encoder_events, "encoder events")
        first, second = Picture(f"{name}-a"), Picture(f"{name}-b", shade=1)
        async with engine.events() as batches:
            await ask(engine, case, [user(words(40), first, second)], request_id=f"{name}-1", salt=name)
            runs = await encoder_events(batches, f"{name}-1")
            await ask(engine, case, [user(words(40), first, second)], request_id=f"{name}-2", salt=name)
            again = await encoder_events(batches, f"{name}-2")
        assert [(event.kind, event.uuid) for event in runs[:-1]] == [("run", first.uuid), ("run", second.uuid)]
        # The last block is computed anew: it may touch the last image, whose features are there.
        assert not [event for event in again if event.kind == "run"]

    @pytest.mark.usefixtures("cold")
    async def test_deleting_an_image(self, engine: Engine, case: EngineCase, name: str) -> None:
        _needs(case.encoder_events, "encoder events")
        gone, kept = Picture(f"{name}-a"), Picture(f"{name}-b", shade=1)
        system = {"role": "system", "content": words(80)}
        before = await ask(engine, case, [system], salt=name)
        async with engine.events() as batches:
            await ask(engine, case, [system, user("one", gone), user("two", kept)], request_id=f"{name}-1", salt=name)
            later = await ask(engine, case, [system, user("one"), user("two", kept)], request_id=f"{name}-2", salt=name)
            events = await encoder_events(batches, f"{name}-2")
        # Read stops where the image stood, right behind the system message; the other image is not encoded again.
        assert (
            before.prompt_tokens - 2 * case.block_tokens < later.read_tokens <= before.prompt_tokens + case.block_tokens
        )
        assert [(event.kind, event.uuid) for event in events[:-1]] == [("hit", kept.uuid)]

    async def test_tenants_share_no_image(self, engine: Engine, case: EngineCase, name: str) -> None:
        _needs(case.encoder_events, "encoder events")
        mine, theirs = Picture(f"{name}-mine"), Picture(f"{name}-theirs")
        async with engine.events() as batches:
            await ask(engine, case, [user("look", mine)], salt=f"{name}-1")
            other = await ask(engine, case, [user("look", theirs)], request_id=name, salt=f"{name}-2")
            events = await encoder_events(batches, name)
        assert other.sent_image_bytes > 0
        assert [(event.kind, event.uuid) for event in events[:-1]] == [("run", theirs.uuid)]

    @pytest.mark.usefixtures("cold")
    async def test_block_events_follow_the_usage(self, engine: Engine, case: EngineCase, name: str) -> None:
        _needs(case.kv_events, "KV events")
        picture = Picture(name)
        async with engine.events() as batches:
            answered = await ask(engine, case, [user(words(80), picture)], salt=name)
            stored = await stored_tokens(batches, name, answered.write_tokens)
        hashes = [block for event in stored for block in event.block_hashes]
        tokens = sum(len(event.token_ids) for event in stored)
        assert stored[0].parent_block_hash is None
        assert {event.request_id for event in stored} == {"contract"}
        assert all(event.block_size == case.block_tokens for event in stored)
        assert len(hashes) * case.block_tokens == tokens == answered.write_tokens
        keys = [key for event in stored for block in event.extra_keys if block for key in block]
        assert name in keys
        assert picture.uuid in [key[0] for key in keys if key != name]

    async def test_event_sequences_have_no_gap(self, engine: Engine, case: EngineCase, name: str) -> None:
        _needs(case.kv_events, "KV events")
        async with engine.events() as batches:
            seen: list[int] = []
            for number in range(3):
                await ask(engine, case, [user(words(80, seed=number))], salt=name)
            async with asyncio.timeout(20):
                async for batch in batches:
                    seen += [batch.sequence] if batch.stream == "kv" else []
                    if len(seen) == 3:
                        break
        assert seen == list(range(seen[0], seen[0] + 3))

    async def test_leaving_before_the_first_byte(self, engine: Engine, case: EngineCase, name: str) -> None:
        work = asyncio.create_task(ask(engine, case, [user("hi")], request_id=name, **ENDLESS))
        await busy(engine, case)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        await idle(engine, case)

    async def test_leaving_in_the_middle(self, engine: Engine, case: EngineCase, name: str) -> None:
        body = hello(case) | ENDLESS | {"stream": True}
        async with engine.chat(ChatRequest(name, body, name)) as reply:
            assert await anext(aiter(reply.chunks))
            await busy(engine, case)
        await idle(engine, case)

    async def test_many_at_a_time(self, engine: Engine, case: EngineCase, name: str) -> None:
        asked = [
            ask(engine, case, [user(words(30, seed=number), Picture(f"{name}-{number % 3}", shade=number % 3))])
            for number in range(12)
        ]
        answers = await asyncio.gather(*asked)
        assert [answer.status for answer in answers] == [200] * 12
        await idle(engine, case)


def _needs(reported: bool, what: str) -> None:
    if not reported:
        pytest.skip(f"this engine reports no {what}")
