"""Who asks the engine core something is told when it dies before it has answered."""

from __future__ import annotations

import asyncio

import pytest

from context.errors import EngineUnavailable
from engine.vllm.core_calls import answered


class Client:
    """vLLM's client of a core, which dies as soon as it is asked; whether its client then says so, or nothing."""

    def __init__(self, says: Exception | None = None) -> None:
        self.errored, self._says, self.is_left = False, says, False

    async def ask(self) -> str:
        self.errored = True
        if self._says is not None:
            raise self._says
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            self.is_left = True


async def test_a_core_that_dies_before_it_answers_is_waited_for_no_longer() -> None:
    client = Client()
    async with asyncio.timeout(5):
        with pytest.raises(EngineUnavailable, match="core died"):
            await answered(client, client.ask())
        while not client.is_left:  # noqa: ASYNC110 - it is cancelled by now
            await asyncio.sleep(0)


async def test_a_library_s_words_of_a_core_that_died_are_not_handed_on() -> None:
    client = Client(RuntimeError("EngineCore encountered an issue"))
    with pytest.raises(EngineUnavailable, match="core died"):
        await answered(client, client.ask())


async def test_what_a_core_that_lives_answers_or_refuses_goes_on() -> None:
    client = Client()

    async def ask() -> str:
        return "yes"

    async def refuse() -> str:
        raise ValueError("no")

    assert await answered(client, ask()) == "yes"
    with pytest.raises(ValueError, match="no"):
        await answered(client, refuse())
