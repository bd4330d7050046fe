"""Which recorded turns are tried under other policies, and what comes of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from context.conversations import Conversations
from context.estimates import message_tokens
from context.images.base import ImageRef
from context.ledger import Ledger
from context.policies.choice import load_policy
from context.store.turn_reader import TurnReader
from context.transcript import ImagePart
from metrics.dashboard.recorded import choose, namings
from metrics.dashboard.whatif import compare
from metrics.records.record import TurnRecord
from metrics.records.store import RecordStore

KEY = b"k"


def key_of(_: str) -> bytes:
    return KEY


async def record(path: Path, name: str, turns: int, tenant: str = "acme") -> None:
    """A conversation with an image in each turn, as a gateway keeps it."""
    ledger = await Ledger.open(path)
    conversations, messages = Conversations(ledger), list[dict[str, Any]]()
    for turn in range(turns):
        image = ImagePart(ImageRef(f"{name}{turn}".encode().hex().ljust(64, "0"), 640, 480, "image/png", 9000))
        messages.append({"role": "user", "content": [{"type": "text", "text": f"{name} {turn} " * 30}, image]})
        begun = await conversations.begin(
            messages, None, tenant=tenant, key=KEY, policy=load_policy("stable"), conversation=name
        )
        messages.append({"role": "assistant", "content": f"done {turn}"})
        await conversations.accept(begun, messages[-1])
    await ledger.close()


@pytest.fixture
async def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.db"
    await record(path, "long", 6)
    await record(path, "short", 2, tenant="globex")
    RecordStore(path, 5.0).close()
    return path


async def test_the_latest_whole_conversations_are_taken_within_bounds(ledger: Path) -> None:
    reader = TurnReader(ledger)
    try:
        every, few, own = choose(reader), choose(reader, most_turns=3), choose(reader, "acme", most_turns=4)
    finally:
        reader.close()
    assert (len(every.turns), every.conversations, every.beyond) == (8, 2, 0)
    assert [one.conversation for one in few.turns] == ["short", "short"]
    assert few.beyond == 1
    # The only one there is: as far as its first turns go.
    assert [one.conversation for one in own.turns] == ["long"] * 4


async def test_policies_are_compared_over_the_same_turns(ledger: Path) -> None:
    told: list[tuple[int, int, str]] = []

    def progress(done: int, of: int, policy: str) -> None:
        told.append((done, of, policy))

    made = await compare(
        ledger,
        [load_policy("stable"), load_policy("sliding")],
        message_tokens,
        key_of=key_of,
        progress=progress,
    )
    stable, sliding = made["policies"]
    assert (stable["turns"], stable["refused"], stable["breaks"]) == (8, 0, {})
    assert stable["prompt_tokens"] == stable["read_tokens"] + stable["computed_tokens"]
    assert sliding["breaks"] == {"policy_eviction": 3}
    assert sliding["images"] < stable["images"]
    assert sliding["computed_tokens"] > stable["computed_tokens"]
    assert told[-1] == (16, 16, "sliding")
    assert made["measured"] is None


async def test_a_tenants_comparison_is_over_its_own_turns(ledger: Path) -> None:
    made = await compare(ledger, [load_policy("stable")], message_tokens, key_of=key_of, tenant="globex")
    assert (made["turns"], made["conversations"]) == (2, 1)


def reported(path: Path, name: str, tenant: str, prompts: list[int]) -> None:
    """A record of each of a conversation's turns, put a moment before the turn was kept."""
    reader, store = TurnReader(path), RecordStore(path, 5.0)
    try:
        turns = [one for one in reader.latest(100, tenant) if one[2] == name][::-1]
        for (id, *_, number), prompt in zip(turns, prompts, strict=True):
            figures: dict[str, Any] = {"prompt_tokens": prompt, "read_tokens": 1, "write_tokens": prompt - 1}
            figures["uncached_tokens"] = 0
            kind = (name, number, "model", "stable", "1", False, "completed")
            store.write([TurnRecord(id - 1000, f"r{id}", tenant, *kind, **figures)])
    finally:
        reader.close()
        store.close()


async def test_what_the_engine_reported_is_of_the_same_turns(ledger: Path) -> None:
    """Of a long conversation its first turns are replayed; those that came later are none of the comparison's."""
    reported(ledger, "long", "acme", [10, 20, 40, 80, 160, 320])
    made = await compare(ledger, [load_policy("stable")], message_tokens, key_of=key_of, tenant="acme", most_turns=3)
    assert made["turns"] == 3
    assert made["measured"] == {"turns": 3, "prompt_tokens": 70, "read_tokens": 3, "computed_tokens": 67}


async def test_a_beginning_that_is_further_back_is_not_gone(ledger: Path) -> None:
    reader = TurnReader(ledger)
    try:
        near = choose(reader, "acme", looked_at=3)
    finally:
        reader.close()
    # All six turns are kept; only the latest three were looked at.
    assert (near.conversations, near.cut, near.beyond) == (0, 0, 1)


async def say(
    path: Path, *chats: tuple[str | None, bool, list[str]], system: Sequence[str] = ("", "")
) -> tuple[dict[str, str], Counter[str]]:
    """Chats, their turns in turn: the client's name, whether others may have it, what the user says. Gives how the
    conversation of each name is taken to be named, and what broke."""
    ledger = await Ledger.open(path)
    conversations, names, broke = Conversations(ledger), set[str](), Counter[str]()
    histories: list[list[dict[str, Any]]] = [[] for _ in chats]
    for turn in range(max(len(words) for *_, words in chats)):
        for history, (name, is_shared, words) in zip(histories, chats, strict=True):
            history.append({"role": "user", "content": words[turn]})
            head = [{"role": "system", "content": system[turn]}] if system[turn] else []
            begun = await conversations.begin(
                [*head, *history],
                None,
                tenant="t",
                key=KEY,
                policy=load_policy("stable"),
                conversation=name,
                is_shared=is_shared,
            )
            history.append({"role": "assistant", "content": f"{words[turn]}, you say"})
            await conversations.accept(begun, history[-1])
            names.add(begun.conversation)
            broke.update(one.cause for one in begun.plan.breaks)
    await ledger.close()
    RecordStore(path, 5.0).close()
    reader = TurnReader(path)
    try:
        found = namings(reader, choose(reader), key_of)
    finally:
        reader.close()
    return {name: found["t", name] for name in names}, broke


async def test_a_conversation_is_known_by_what_it_was_named_by(tmp_path: Path) -> None:
    one, two = ["about cats " * 30, "more of them"], ["the tides " * 30, "and the moon"]
    assert (await say(tmp_path / "a.db", ("mine", False, one)))[0] == {"mine": "own"}
    assert (await say(tmp_path / "b.db", ("app", True, one), ("app", True, two)))[0] == {"app": "shared"}
    assert set((await say(tmp_path / "c.db", (None, False, one), (None, False, two)))[0].values()) == {"content"}


@pytest.mark.parametrize(("name", "is_shared"), [("app", True), ("app", False), (None, False)])
async def test_under_the_policy_of_then_breaks_what_broke_then(
    tmp_path: Path, name: str | None, is_shared: bool
) -> None:
    """Two chats side by side, each with the time in its system prompt."""
    path = tmp_path / "ledger.db"
    clock = [f"You help. It is 2026-11-30 10:0{turn}. " + "Be brief and exact. " * 40 for turn in range(3)]
    chats = [(name, is_shared, ["about cats", "more of them", "and dogs"])]
    if is_shared or name is None:
        # Without a name two that begin alike have the same one.
        chats.append((name, is_shared, ["the tides" if name else "about cats", "and the moon", "and the sun"]))
    _, broke = await say(path, *chats, system=clock)
    assert broke
    made = await compare(path, [load_policy("stable")], message_tokens, key_of=key_of)
    assert (made["turns"], made["policies"][0]["breaks"]) == (3 * len(chats), broke)
