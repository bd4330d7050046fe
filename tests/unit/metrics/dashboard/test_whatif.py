"""Which recorded turns are tried under other policies, and what comes of them."""

from __future__ import annotations

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
from metrics.dashboard.whatif import choose, compare
from metrics.records.store import RecordStore


async def record(path: Path, name: str, turns: int, tenant: str = "acme") -> None:
    """A conversation with an image in each turn, as a gateway keeps it."""
    ledger = await Ledger.open(path)
    conversations, messages = Conversations(ledger), list[dict[str, Any]]()
    for turn in range(turns):
        image = ImagePart(ImageRef(f"{name}{turn}".encode().hex().ljust(64, "0"), 640, 480, "image/png", 9000))
        messages.append({"role": "user", "content": [{"type": "text", "text": f"{name} {turn} " * 30}, image]})
        begun = await conversations.begin(
            messages, None, tenant=tenant, key=b"k", policy=load_policy("stable"), conversation=name
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
    assert [name for _, _, name in few.turns] == ["short", "short"]
    assert few.beyond == 1
    # The only one there is: as far as its first turns go.
    assert [name for _, _, name in own.turns] == ["long"] * 4


async def test_policies_are_compared_over_the_same_turns(ledger: Path) -> None:
    told: list[tuple[int, int, str]] = []

    def progress(done: int, of: int, policy: str) -> None:
        told.append((done, of, policy))

    made = await compare(
        ledger,
        [load_policy("stable"), load_policy("sliding")],
        message_tokens,
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
    made = await compare(ledger, [load_policy("stable")], message_tokens, tenant="globex")
    assert (made["turns"], made["conversations"]) == (2, 1)
