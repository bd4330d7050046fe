"""An engine with tiers for blocks below a small prefix cache, and what their tests ask of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.base import BlockTierState
from engine.events import followed
from engine.vllm.embedded import VllmEngine
from engine.vllm.options import VllmSettings
from tests.contract.cases import user, words
from tests.contract.image_kv_rig import BLOCK_TOKENS, OPTIONS, Rig, Said, picture

# Of the demo model in single precision.
BLOCK_BYTES = 196_608
MEMORY_BLOCKS = 68
SETTINGS: dict[str, Any] = {"memory_gib": (MEMORY_BLOCKS + 0.5) * BLOCK_BYTES / 1024**3, "folder_gib": 0.04}


@dataclass(slots=True)
class TierRig(Rig):
    """The engine with what its tiers tell."""

    async def tiers(self, fits: Callable[[BlockTierState], bool] = lambda _: True) -> BlockTierState:
        """The tiers once nothing is under way and, where it is given, `fits`."""

        def is_quiet(state: BlockTierState) -> bool:
            return not state.requests + state.busy_blocks and fits(state)

        async with asyncio.timeout(20):
            while True:
                states = [event for event in self.events if isinstance(event, BlockTierState)]
                if states and is_quiet(states[-1]):
                    return states[-1]
                self.came.clear()
                await self.came.wait()

    async def push_out(self, seed: int, blocks: int = MEMORY_BLOCKS + 8) -> None:
        """Send other requests until at least so many blocks came after all that was there."""
        before = (await self.tiers()).memory_stored
        for number in range(20):
            await self.ask(f"other-{seed}-{number}", [user(words(220, seed=1000 * seed + number))], salt="others")
            if (await self.tiers()).memory_stored >= before + blocks:
                return
        raise AssertionError("other requests store no blocks")

    async def until(self, ready: bool) -> None:
        """Wait for the engine to be ready, or not to be."""
        for _ in range(6000):
            if self.engine.health().ready == ready:
                return
            await asyncio.sleep(0.05)
        raise AssertionError(self.engine.health())

    async def alone(self, name: str, messages: Sequence[Mapping[str, Any]], **parameters: Any) -> Said:
        """The same chat of a tenant that has nothing in any cache."""
        said = await self.ask(name, messages, salt=f"nobody {name}", **parameters)
        assert said.read_tokens == 0
        return said


def conversation(number: int) -> list[dict[str, Any]]:
    """The first turn of a conversation with an image."""
    return [user(words(30, seed=100 + number), picture(40 + number), words(30, seed=200 + number))]


def next_turn(messages: Sequence[Mapping[str, Any]], said: Said, number: int) -> list[Any]:
    """The conversation with the engine's reply and a question."""
    reply = {"role": "assistant", "content": "".join(said.tokens)}
    return [*messages, reply, user(words(12, seed=300 + number))]


def full_blocks(tokens: int) -> int:
    """How many of these tokens stand in full blocks."""
    return tokens // BLOCK_TOKENS * BLOCK_TOKENS


@contextmanager
def output_to(path: Path) -> Generator[None]:
    """Let processes that are started write to this file, for good."""
    kept = [os.dup(number) for number in (1, 2)]
    with path.open("wb") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    try:
        yield
    finally:
        for number, was in zip((1, 2), kept, strict=True):
            os.dup2(was, number)
            os.close(was)


@asynccontextmanager
async def started(checkpoint: Path, folder: Path, **options: Any) -> AsyncGenerator[TierRig]:
    """An engine with tiers, until the context is left."""
    given = {**OPTIONS, "block-tiers": {**SETTINGS, "folder": str(folder)}, **options}
    engine = VllmEngine(VllmSettings(str(checkpoint), "demo", given, kv_cache_gib=1))
    await engine.start()
    try:
        rig = TierRig(engine)
        async with followed(engine, rig.follow):
            yield rig
    finally:
        await engine.stop()
