"""Images' KV under load: batches of hits and misses, chunks, preemptions and aborts change no answer, leak nothing."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from engine.base import ChatRequest
from tests.contract.cases import user, words
from tests.contract.image_kv_rig import BLOCK_TOKENS, Rig, Said, picture, same

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

JOBS = 200 if os.environ.get("STILLFRAME_LONG") == "1" else 20
KINDS, IMAGES, AT_ONCE = 10, 5, 10
# Two blocks: those that fill the cache with their prompts have no room for their replies.
TOKENS = 2 * BLOCK_TOKENS
KNOWN = range(900, 900 + IMAGES)


@dataclass(frozen=True, slots=True)
class Kind:
    """A request: no other begins as it does, so that what it reads from the prefix cache is its own."""

    number: int
    shades: tuple[int, ...]
    ratio: float | None

    async def send(self, rig: Rig, name: str) -> Said:
        content = [words(8 + self.number, seed=5000 + self.number)]
        for at, shade in enumerate(self.shades):
            content += [picture(shade), words(9, seed=6000 + at)]
        return await rig.ask(name, [user(*content)], ratio=self.ratio, tokens=TOKENS)


def kinds(random: Random) -> list[Kind]:
    """Hits and misses, exact and approximate, one image to three, the same one twice."""
    made: list[Kind] = []
    for number in range(KINDS):
        shades = tuple(random.choice(KNOWN) for _ in range(random.randrange(1, 4)))
        made.append(Kind(number, shades, random.choice([None, 0, 0.05, 0.5])))
    return made


def preemptions(rig: Rig) -> int:
    """By the engine's own counters: the page of metrics is that of the engine which this process started last."""
    found: list[Any] = rig.engine._client.logger_manager.stat_loggers  # pyright: ignore[reportPrivateUsage]
    counters = [one for logger in found for one in getattr(logger, "counter_num_preempted_reqs", {}).values()]
    samples = [sample for one in counters for metric in one.collect() for sample in metric.samples]
    return sum(int(sample.value) for sample in samples if sample.name.endswith("_total"))


@asynccontextmanager
async def most_blocks(rig: Rig) -> AsyncGenerator[None]:
    """A request that has two thirds of the blocks while it runs: for as long as some of the others."""
    body = {
        "model": "demo",
        "messages": [user(words(200, seed=7000))],
        "max_tokens": 300,
        "ignore_eos": True,
        "stream": True,
    }
    async with rig.engine.chat(ChatRequest("load-ballast", body, "ballast")) as reply:
        assert reply.status == 200
        assert await anext(aiter(reply.chunks))
        yield


async def test_jobs_side_by_side_with_preemptions_and_aborts_answer_as_each_alone(image_rig: Rig) -> None:
    rig, random = image_rig, Random(11)  # noqa: S311
    for shade in KNOWN:
        await rig.ask(f"load-donor-{shade}", [user(words(11, seed=shade), picture(shade))])
    asked = kinds(random)
    alone: list[Said] = []
    for kind in asked:
        await rig.forget_prefixes()
        alone.append(await kind.send(rig, f"load-alone-{kind.number}"))
    await rig.forget_prefixes()
    before, gate, wrong = preemptions(rig), asyncio.Semaphore(AT_ONCE), list[str]()

    async def job(number: int, kind: Kind, leaves: bool) -> None:
        async with gate:
            sent = asyncio.create_task(kind.send(rig, f"load-{number}"))
            if leaves:
                await asyncio.wait([sent], timeout=random.random())
                sent.cancel()
                with suppress(asyncio.CancelledError):
                    await sent
            elif not same(await sent, alone[kind.number]):
                wrong.append(f"{number}: {kind}: {sent.result().distance(alone[kind.number])}")

    # The first ones share no block and stay; with what another one has for as long, two of them have no room.
    first = [job(number, kind, False) for number, kind in enumerate(asked[:AT_ONCE])]
    others = [job(number, random.choice(asked), random.random() < 0.2) for number in range(AT_ONCE, JOBS)]
    async with most_blocks(rig):
        await asyncio.gather(*first, *others)
    assert not wrong
    assert preemptions(rig) > before
    # Every block is free, or this fails; and nothing is held, captured or known of any request.
    await rig.forget_prefixes()
    pool = await rig.pool()
    assert pool.memory_entries >= IMAGES
    assert rig.engine.running() == 0
