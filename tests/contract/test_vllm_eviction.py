"""Eviction by modality in the real engine, beside one with vLLM's own order: the same answers, for less work."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from engine.vllm.embedded import VllmEngine
from engine.vllm.options import VllmSettings
from tests.contract.cases import Answered, EngineCase, Picture, ask, idle, user, words
from tests.contract.differential import BLOCK_TOKENS
from tests.contract.test_fake_matches_vllm import VLLM_OPTIONS

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

ROUNDS = 15 if os.environ.get("STILLFRAME_LONG") else 12
OPTIONS: dict[str, Any] = {**VLLM_OPTIONS, "eviction": "modality"}


def _no_other() -> VllmEngine:
    raise AssertionError("the engines are started by the test")


async def _running(engine: Any) -> int:
    return engine.running()


CASE = EngineCase(_no_other, "demo", _running, block_tokens=BLOCK_TOKENS)


@asynccontextmanager
async def started(checkpoint: Path) -> AsyncGenerator[VllmEngine]:
    """An engine that evicts by modality, with a cache that is too small for the load."""
    engine = VllmEngine(VllmSettings(str(checkpoint), "demo", OPTIONS, kv_cache_gib=1))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


@dataclass(slots=True)
class Served:
    """What a load came to: all answers in their order, and the tokens that active conversations did not read."""

    answers: list[str] = field(default_factory=list[str])
    uncached_active: int = 0
    new_active: int = 0

    def add(self, answer: Answered, known_tokens: int | None) -> None:
        """Count an answer. `known_tokens` is what the turn before had, for a conversation that is active."""
        assert answer.status == 200
        self.answers.append(answer.text)
        if known_tokens is not None:
            self.uncached_active += answer.prompt_tokens - answer.read_tokens
            self.new_active += answer.prompt_tokens - known_tokens

    @property
    def recomputed(self) -> int:
        """Tokens of active conversations that were computed again, but for the ends of blocks."""
        return self.uncached_active - self.new_active


async def serve(engine: VllmEngine) -> Served:
    """Three active conversations with images, among those that come once. Two requests at one time."""
    served, histories, known = Served(), [list[dict[str, Any]]() for _ in range(3)], [0, 0, 0]
    for turn in range(ROUNDS):
        for number, history in enumerate(histories):
            name = f"active-{number}-{turn}"
            image = Picture(name, 112, 112, shade=200 * number + turn)
            history.append(user(words(6, 50 * number + turn), image))
            once = [
                ask(
                    engine,
                    CASE,
                    [user(words(40, 9000 + 2 * (3 * turn + number) + at))],
                    request_id=f"once-{name}-{at}",
                )
                for at in range(2)
            ]
            active = ask(engine, CASE, history, request_id=name, max_tokens=4, ignore_eos=True)
            answer, *others = await asyncio.gather(active, *once)
            served.add(answer, known[number])
            for other in others:
                served.add(other, None)
            known[number] = answer.prompt_tokens
            history.append({"role": "assistant", "content": answer.text})
    return served


async def crowd(engine: VllmEngine) -> list[str]:
    """More long answers at one time than there is room for, so that some are pushed out and begin again."""
    rng = Random(5)  # noqa: S311
    prompts = [
        [user(words(rng.randrange(3, 30), number // 2), Picture(f"crowd-{number % 4}", 112, 112, shade=number % 4))]
        for number in range(24)
    ]
    asked = [
        ask(engine, CASE, prompt, request_id=f"crowd-{number}", max_tokens=rng.randrange(40, 120), ignore_eos=True)
        for number, prompt in enumerate(prompts)
    ]
    return [answer.text for answer in await asyncio.gather(*asked)]


async def preemptions(engine: VllmEngine) -> int:
    """How often requests were pushed out, by the engine's own count."""
    async with engine.forward("GET", "/metrics", headers={}) as reply:
        lines = (await reply.read()).decode().splitlines()
    return int(sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_preemptions_total{")))


async def test_active_conversations_compute_less_again_and_no_answer_changes(
    vllm_engine: VllmEngine, demo_checkpoint: Path
) -> None:
    # The engine of all tests, which has vLLM's own order and a cache of the same size.
    await vllm_engine.reset_caches()
    lru, crowd_lru = await serve(vllm_engine), await crowd(vllm_engine)
    async with started(demo_checkpoint) as engine:
        ours, crowd_ours = await serve(engine), await crowd(engine)
        assert await preemptions(engine) > 0
        await idle(engine, CASE)
        # Refused for as long as a block is in use.
        await engine.reset_caches()
        again = await crowd(engine)
    assert ours.answers == lru.answers
    assert crowd_ours == again == crowd_lru
    print(f"recomputed by active conversations: {ours.recomputed} tokens, by vLLM's LRU {lru.recomputed}")
    assert lru.recomputed > 1000
    assert ours.recomputed <= 0.7 * lru.recomputed
