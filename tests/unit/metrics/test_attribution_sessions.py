"""Sessions with many turns: causes one after the other, and two conversations in a cache that holds one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from context.policies.choice import load_policy
from context.policies.summary import Summary
from engine.base import BlockRemoved, BlockStored
from engine.fake.template import ChatMLTemplate
from metrics.attribution import Attribution
from metrics.kv_mirror import Eviction
from metrics.kv_mirror.base import BlockHash
from tests.contract.cases import words
from tests.unit.metrics.attribution_rig import BLOCK, Client, OtherTemplate, Rig, picture, rig, uuid_of

TURNS = 300
LONGEST = 16


@dataclass(slots=True)
class Session:
    """One client after the other, and something that happens to each of its turns."""

    rig: Rig
    random: Random
    client: Client
    number: int = 0
    left: bool = False

    def text(self, count: int = 25) -> str:
        """Text that was never said."""
        self.number += 1
        return words(count, seed=self.number)

    async def ask(self) -> Attribution:
        """The client asks on, now and then with an image."""
        self.number += 1
        image = [picture(self.number)] if self.random.random() < 0.4 else []
        return await self.rig.ask(self.client, self.text(), *image)

    def renew(self) -> None:
        """Another client."""
        self.number += 1
        self.rig.core.template = ChatMLTemplate()
        self.client = Client(f"client-{self.number}", [{"role": "system", "content": self.system()}])
        self.left = False

    def system(self) -> str:
        """A system prompt with the time in it."""
        self.number += 1
        return f"You help. It is 2026-11-03 10:{self.number // 60 % 60:02}:{self.number % 60:02}. {words(30)}"

    async def nothing(self) -> Attribution:
        return await self.ask()

    async def cold(self) -> Attribution:
        self.renew()
        return await self.ask()

    async def client_edit(self) -> Attribution:
        asked = [at for at, one in enumerate(self.client.messages[:-2]) if one["role"] == "user"]
        self.client.messages[self.random.choice(asked)]["content"][0]["text"] = self.text(8)
        return await self.ask()

    async def client_window(self) -> Attribution:
        del self.client.messages[1 : 1 + 2 * self.random.randrange(1, len(self.client.messages) // 2 - 1)]
        return await self.ask()

    async def volatile_text(self) -> Attribution:
        before = self.client.messages[0]["content"]
        self.client.system(f"{before[:25]}{self.system()[25:44]}{before[44:]}")
        return await self.ask()

    async def tools_changed(self) -> Attribution:
        function: dict[str, Any] = {"name": f"look_{self.number}", "description": self.text(10), "parameters": {}}
        self.client.tools = [{"type": "function", "function": function}]
        return await self.ask()

    async def policy_eviction(self) -> Attribution:
        for _ in range(2):
            await self.rig.ask(self.client, self.text(), picture(self.number), picture(self.number + 10_000))
        self.client.policy, self.left = load_policy("sliding"), True
        return await self.ask()

    async def summary(self) -> Attribution:
        self.client.policy, self.left = Summary("turns", 2, 1), True
        return await self.ask()

    async def engine_eviction(self) -> Attribution:
        self.rig.fill(self.rig.core.config.max_model_tokens - 100, seed=self.number)
        return await self.ask()

    async def template(self) -> Attribution:
        # It breaks every prompt from now on.
        self.rig.core.template, self.left = OtherTemplate(), True
        return await self.ask()

    async def salt(self) -> Attribution:
        self.client.salt = f"salt-{self.number}"
        return await self.ask()

    async def below_block(self) -> Attribution:
        self.renew()
        self.client.messages, self.left = [], True
        await self.rig.ask(self.client, "hi", reply="yes")
        return await self.ask()

    async def engine_unreported(self) -> Attribution:
        self.rig.reports = False
        try:
            return await self.ask()
        finally:
            self.rig.reports = True


Happens = Callable[[Session], Awaitable[Attribution]]
CAUSES: tuple[Happens, ...] = (
    Session.cold,
    Session.client_edit,
    Session.client_window,
    Session.volatile_text,
    Session.tools_changed,
    Session.policy_eviction,
    Session.summary,
    Session.engine_eviction,
    Session.template,
    Session.salt,
    Session.below_block,
    Session.engine_unreported,
)


@pytest.mark.parametrize("seed", range(2))
async def test_a_mixed_session(seed: int) -> None:
    """Of 300 turns in which something happens, 98 in 100 are put down to what it was."""
    wrong: Counter[tuple[str, str | None]] = Counter()
    seen: Counter[str] = Counter()
    async with rig(num_blocks=321) as made:
        session = Session(made, Random(seed), Client(""))  # noqa: S311
        session.renew()
        for _ in range(TURNS):
            happens = session.random.choice((Session.nothing, *CAUSES))
            if happens not in (Session.cold, Session.below_block):
                await _ready(session)
            found = await happens(session)
            expected = None if happens is Session.nothing else happens.__name__
            seen[happens.__name__] += 1
            if found.cause != expected:
                wrong[(happens.__name__, found.cause)] += 1
    assert len(seen) == 1 + len(CAUSES)
    assert wrong.total() <= TURNS * 0.02, wrong


async def _ready(session: Session) -> None:
    """A client with some turns behind it that nothing has happened to."""
    if session.left or len(session.client.messages) > LONGEST:
        session.renew()
    while len(session.client.messages) < 7:
        await session.ask()


class Witness:
    """What the engine evicts, looked at from its own events: the truth for the mirror's."""

    def __init__(self) -> None:
        # The image that has the most of its 16 tokens in the block.
        self.images: dict[BlockHash, str | None] = {}
        self.places: dict[BlockHash, int] = {}
        self.users: dict[BlockHash, str] = {}
        self.removed: list[BlockHash] = []

    def take(self, rig: Rig, user: str) -> None:
        """Take note of one turn's events, without taking them from the mirror."""
        events = rig.heard
        for event in events:
            if isinstance(event, BlockRemoved):
                self.removed += event.block_hashes
            elif isinstance(event, BlockStored):
                before = self.places.get(event.parent_block_hash or b"", 0)
                for at, digest in enumerate(event.block_hashes):
                    keys = [key for key in event.extra_keys[at] or () if not isinstance(key, str)]
                    sizes = {uuid: min(BLOCK, offset + 16) - max(0, offset) for uuid, offset in keys}
                    self.images[digest] = max(sizes, key=lambda uuid: sizes[uuid]) if sizes else None
                    self.places[digest] = before + at + 1
                    self.users[digest] = user


async def test_each_eviction_has_its_image_conversation_and_paying_turn() -> None:
    """Two conversations take turns in a cache that is too small for both."""
    witness, paid = Witness(), list[str | None]()
    async with rig(num_blocks=97) as made:
        assert made.mirror is not None
        clients = [Client("one"), Client("two")]
        known, seen = 0, {"one": 0, "two": 0}
        for number in range(18):
            client = clients[number % 2]
            removed = len(witness.removed)
            found = await made.ask(client, words(15, seed=number), picture(number), picture(100 + number))
            witness.take(made, client.name)
            news = made.mirror.evictions(since=known)
            known = news[-1].number if news else known
            assert [one.hash for one in news] == witness.removed[removed:]
            for one in news:
                _check(one, witness)
            if found.cause == "engine_eviction":
                _check_paid(found, client, witness, seen[client.name], made)
                paid.append(found.evicted_image)
            else:
                assert found.lost_tokens == 0
            seen[client.name] = len(witness.removed)
            assert made.mirror.resident_prefix(client.owner) >= (made.usage.prompt_tokens or 0) // BLOCK * BLOCK
    assert len(paid) >= 6
    assert len(set(paid) - {None}) >= 4


def _check(one: Eviction, witness: Witness) -> None:
    assert one.hash is not None
    assert one.image == witness.images[one.hash]
    assert [owner.conversation for owner in one.owners] == [witness.users[one.hash]]
    assert one.depth == witness.places[one.hash]
    assert one.tokens == BLOCK


def _check_paid(found: Attribution, client: Client, witness: Witness, since: int, rig: Rig) -> None:
    """What was evicted of this conversation since its last turn, behind what was read now."""
    read, expected = rig.usage.read_tokens, found.expected_read
    assert read is not None
    assert expected is not None
    lost = [
        digest
        for digest in witness.removed[since:]
        if witness.users[digest] == client.name and read < witness.places[digest] * BLOCK <= expected
    ]
    assert lost
    assert found.evicted_conversation == client.owner
    assert found.evicted_tokens == len(set(lost)) * BLOCK
    images = Counter(witness.images[digest] for digest in set(lost))
    del images[None]
    most = {image for image, count in images.items() if count == max(images.values())} or {None}
    assert found.evicted_image in most
    at = ("one", "two").index(client.name)
    assert images.keys() <= {uuid_of(number) for first in (0, 100) for number in range(first + at, first + 20, 2)}
