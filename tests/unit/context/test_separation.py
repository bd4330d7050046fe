"""From which message on the engine keeps a conversation's blocks apart, turn by turn, over a real ledger."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import pytest_asyncio

from context.conversations import Begun, Conversations
from context.images.base import ImageRef
from context.ledger import Ledger
from context.policies.base import Request
from context.policies.keep import STABLE
from context.reuse import Reuse
from context.separation import Allowance
from context.transcript import ImagePart, parts_of

LOW, HIGH = Reuse(0.05), Reuse(0.2)


class Chat:
    """One client, whose turns the engine keeps apart or not as `apart` says; it says nothing of those not in there."""

    def __init__(self, ledger: Ledger) -> None:
        self.conversations = Conversations(ledger)
        self.history: list[Any] = []
        self.apart: dict[int, bool] = {}
        self.turns: list[int] = []

    async def ask(self, text: str, image: int | None, reuse: Reuse | None, *, own: bool = False) -> Begun:
        parts: list[Any] = [{"type": "text", "text": text}]
        if image is not None:
            parts.append(ImagePart(ImageRef(f"{image:064x}", 64, 64, "image/png", 9)))
        self.history.append({"role": "user", "content": parts})
        request = Request(estimate=_parts, allowance=Allowance(reuse, own, self.apart.get))
        begun = await self.conversations.begin(
            self.history, None, tenant="one", key=b"one", policy=STABLE, request=request, conversation="c"
        )
        begun = await self.conversations.accept(begun, {"role": "assistant", "content": "yes"})
        self.history.append({"role": "assistant", "content": "yes"})
        assert begun.turn is not None
        self.turns.append(begun.turn.id)
        return begun


def _parts(wire: Mapping[str, Any]) -> int:
    """Ten for each image, one for each text."""
    return sum(10 if isinstance(part, ImagePart) else 1 for part in parts_of(wire))


@pytest_asyncio.fixture
async def chat() -> AsyncGenerator[Chat]:
    ledger = await Ledger.open(None)
    yield Chat(ledger)
    await ledger.close()


def told(begun: Begun) -> tuple[str, str, int, int | None, int] | None:
    if not begun.plan.breaks:
        return None
    (one,) = begun.plan.breaks
    return one.cause, one.actor, one.message, one.part, one.lost_tokens


async def test_what_was_exact_is_read_on_and_what_came_behind_it_stands_apart(chat: Chat) -> None:
    assert told(await chat.ask("one", 1, None)) is None
    assert told(await chat.ask("two", None, None)) is None
    assert told(await chat.ask("three", 2, LOW)) is None
    assert told(await chat.ask("four", 3, LOW)) is None
    # Up to the second image all is exact, and of its message the text in front of it; lost are two images, a text and
    # two replies.
    assert told(await chat.ask("five", None, HIGH)) == ("salt", "policy", 4, 1, 23)
    assert told(await chat.ask("six", None, None)) == ("salt", "policy", 4, 1, 25)
    assert told(await chat.ask("seven", None, LOW)) is None


async def test_by_layer_is_another_allowance_and_a_whole_number_is_none(chat: Chat) -> None:
    await chat.ask("one", 1, Reuse(0))
    assert told(await chat.ask("two", None, Reuse(0.0))) is None
    assert told(await chat.ask("three", None, Reuse(0.0, profile=True))) is not None


async def test_who_said_it_now_or_before(chat: Chat) -> None:
    await chat.ask("one", 1, LOW, own=True)
    found = told(await chat.ask("two", None, HIGH))
    assert found is not None
    assert found[:2] == ("salt", "client")
    found = told(await chat.ask("three", None, LOW))
    assert found is not None
    assert found[:2] == ("salt", "policy")


async def test_a_turn_that_the_engine_left_among_exact_ones_ends_nothing(chat: Chat) -> None:
    await chat.ask("one", 1, LOW)
    chat.apart[chat.turns[-1]] = False
    assert told(await chat.ask("two", 2, HIGH)) is None
    # Of this one it said nothing: its own image may have been loaded.
    assert told(await chat.ask("three", None, LOW)) == ("salt", "policy", 2, 1, 11)


async def test_it_is_known_after_a_restart_and_a_file_without_it_says_nothing(tmp_path: Path) -> None:
    history: list[Any] = []
    for reuse, expected in ((LOW, None), (HIGH, "salt"), (None, "salt"), (LOW, None)):
        ledger = await Ledger.open(tmp_path / "ledger.db")
        chat = Chat(ledger)
        chat.history = history
        found = told(await chat.ask("and", None if history else 1, reuse))
        assert (None if found is None else found[0]) == expected
        history = chat.history
        await ledger.close()


async def test_without_images_there_is_nothing_to_keep_apart(chat: Chat) -> None:
    begun = await chat.ask("one", None, LOW)
    assert "reuse" not in begun.plan.state
    assert told(await chat.ask("two", None, HIGH)) is None
