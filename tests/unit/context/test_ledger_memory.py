"""The ledger in memory: what it costs, what it forgets, and that it agrees with a dictionary."""

from __future__ import annotations

import asyncio
import gc
import tempfile
import tracemalloc
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from context.ledger import Found, Ledger, LedgerLimits
from context.plan import Turn
from tests.contract.ledger_chats import (
    Wire,
    answer,
    assistant,
    at,
    chain,
    converse,
    new_reply,
    new_turn,
    same,
    system,
    user,
)


async def remembering(memory_bytes: int) -> Ledger:
    return await Ledger.open(None, LedgerLimits(memory_bytes=memory_bytes))


async def test_memory_is_bounded_and_what_was_used_longest_ago_goes_first() -> None:
    ledger = await remembering(200_000)
    first, _ = await converse(ledger, 3, "first")
    for number in range(50):
        await converse(ledger, 3, f"{number}")
        assert ledger.stats().memory_bytes <= 200_000
        assert await ledger.find("t", chain(first)) is not None
    assert await ledger.latest("t", "0") is None
    assert await ledger.latest("t", "49") is not None
    assert 5 < ledger.stats().turns < 100


async def test_a_conversation_is_whole_or_cut_at_its_end() -> None:
    ledger = await remembering(90_000)
    wires, _ = await converse(ledger, 12, "long")
    await converse(ledger, 12, "other")
    known = [
        found.turn.number
        for end in range(3, len(wires) + 1, 2)
        if (found := await ledger.find("t", chain([*wires[:end], user("x")]))) and found.length == end
    ]
    assert 0 < len(known) < 12
    assert known == list(range(1, len(known) + 1))


async def test_a_turn_larger_than_the_memory_is_not_kept_and_harms_nothing() -> None:
    ledger = await remembering(50_000)
    wires, turn = await converse(ledger, 2)
    large = [*wires, user("x" * 100_000)]
    sent = await ledger.commit("t", new_turn(large, turn))
    assert [len(sent.client), len(sent.sent)] == [6, 6]
    sent = await answer(ledger, sent, large, "y")
    assert sent.replied
    more = [*large, assistant("y"), user("on")]
    assert at(await ledger.find("t", chain(more))) == (turn.id, 5, True)
    assert await ledger.commit("t", new_turn(more, sent)) is not None
    assert ledger.stats().memory_bytes <= 50_000


async def test_a_file_answers_what_the_memory_has_no_room_for(tmp_path: Path) -> None:
    ledger = await Ledger.open(tmp_path / "ledger.db", LedgerLimits(memory_bytes=1))
    wires, turn = await converse(ledger, 6)
    found = await ledger.find("t", chain([*wires, user("x")]))
    assert found is not None
    assert same(found.turn, turn)
    assert (ledger.stats().memory_bytes, ledger.stats().hits, ledger.stats().failures) == (0, 0, 0)
    await ledger.close()


@pytest.mark.parametrize("in_file", [False, True])
async def test_turns_of_one_conversation_share_their_messages(tmp_path: Path, in_file: bool) -> None:
    path = tmp_path / "ledger.db" if in_file else None
    ledger = await Ledger.open(path)
    wires, _ = await converse(ledger, 60)
    if in_file:
        await ledger.close()
        ledger = await Ledger.open(path)
    turns = [
        found.turn
        for end in range(3, len(wires) + 1, 2)
        if (found := await ledger.find("t", chain([*wires[:end], user("x")]))) is not None
    ]
    assert [turn.number for turn in turns] == list(range(1, 61))
    messages = {id(message) for turn in turns for message in turn.client}
    assert len(messages) == len(wires)
    assert len({id(one) for turn in turns for one in turn.sent}) == len(wires)
    # 121 messages on both sides, not 60 times as many.
    assert ledger.stats().memory_bytes < 600_000
    await ledger.close()


async def test_what_two_processes_say_in_turn_is_not_copied(tmp_path: Path) -> None:
    ledgers = [await Ledger.open(tmp_path / "ledger.db") for _ in range(2)]
    wires: list[Wire] = [system()]
    for number in range(40):
        ledger = ledgers[number % 2]
        wires.append(user(f"question {number}", number))
        found = await ledger.find("t", chain(wires))
        assert (found.turn.number if found else 0) == number
        turn = await ledger.commit("t", new_turn(wires, found and found.turn))
        await answer(ledger, turn, wires, f"answer {number}")
        await ledger.flush()
        wires.append(assistant(f"answer {number}"))
    for ledger in ledgers:
        # 80 messages, not 20 times as many.
        assert ledger.stats().memory_bytes < 400_000
        await ledger.close()


@pytest.mark.parametrize("text", ["plain words ", "schön und gut ", "漢字かな交じり文", "mostly plain \U0001f9ea "])
@pytest.mark.parametrize("in_file", [False, True])
async def test_the_estimate_of_memory_is_about_right(tmp_path: Path, text: str, in_file: bool) -> None:
    path = tmp_path / "ledger.db"
    ledger = await Ledger.open(path if in_file else None)
    if in_file:
        await _talk(ledger, text)
        await ledger.close()
        ledger = await Ledger.open(path)
    gc.collect()
    tracemalloc.start()
    if in_file:
        for number in range(30):
            await ledger.latest("t", f"{number}")
    else:
        await _talk(ledger, text)
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.4 < used / ledger.stats().memory_bytes < 1.2
    await ledger.close()


async def _talk(ledger: Ledger, text: str) -> None:
    for number in range(30):
        wires: list[Wire] = []
        turn: Turn | None = None
        for step in range(6):
            # Parsed anew each time, as a request is.
            wires = [dict(wire) for wire in wires] + [user(f"{number} {step} " + text * 20, number)]
            turn = await ledger.commit("t", new_turn(wires, turn, conversation=f"{number}"))
            turn = await answer(ledger, turn, wires, text * 20)
            wires.append(assistant(text * 20))


Place = tuple[int, int, bool]


@dataclass(frozen=True, slots=True)
class Kept:
    """A turn that the model remembers, and the client's messages of its request."""

    tenant: str
    turn: Turn
    wires: list[Wire]


class LedgerAgainstADictionary(RuleBasedStateMachine):
    """Any order of calls finds what a dictionary of all prefixes would."""

    @initialize(in_file=st.booleans(), memory_bytes=st.sampled_from([1, 12_000, 2**26]))
    def begin(self, in_file: bool, memory_bytes: int) -> None:
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.path = Path(self.folder.name) / "ledger.db" if in_file else None
        # Without a file what is forgotten is lost: the model would have to know what.
        self.limits = LedgerLimits(memory_bytes=memory_bytes if in_file else 2**26)
        self.ledger = self.runner.run(Ledger.open(self.path, self.limits))
        self.points: dict[tuple[str, bytes], Place] = {}
        self.turns: dict[int, Kept] = {}
        self.histories: list[list[Wire]] = [[system()]]
        self.latest: dict[tuple[str, str], int] = {}

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            assert self.ledger.stats().failures == 0
            self.runner.run(self.ledger.close())
            self.runner.close()
            self.folder.cleanup()

    def _point(self, tenant: str, digest: bytes, place: Place) -> None:
        if place >= self.points.get((tenant, digest), (0, 0, False)):
            self.points[tenant, digest] = place

    def _look_up(self, tenant: str, wires: list[Wire]) -> Found | None:
        """Both tenants have equal chains: only their names keep them apart."""
        digests = chain(wires)
        found = self.runner.run(self.ledger.find(tenant, digests))
        known = [self.points[tenant, one] for one in digests if (tenant, one) in self.points]
        assert at(found) == (known[-1] if known else None)
        return found

    @rule(
        tenant=st.sampled_from(["a", "b"]),
        pick=st.integers(0, 10**6),
        drop=st.sampled_from([0, 0, 0, 1, 2, 5]),
        words=st.lists(st.sampled_from(["x", "y", "z"]), min_size=1, max_size=3),
        evict=st.sampled_from([0, 0, 0, 1, 3]),
        parent_is=st.sampled_from(["found", "found", "none", "any"]),
    )
    def commit(self, tenant: str, pick: int, drop: int, words: list[str], evict: int, parent_is: str) -> None:
        history = self.histories[pick % len(self.histories)]
        wires = [*history[: max(1, len(history) - drop)], *(user(word) for word in words)]
        found = self._look_up(tenant, wires)
        parent = found and found.turn
        if parent_is == "none":
            parent = None
        elif parent_is == "any" and self.turns:
            parent = list(self.turns.values())[pick % len(self.turns)].turn
        new = new_turn(wires, parent, conversation=words[0])
        half = len(new.sent) // 2
        new = replace(new, sent=(*new.sent[:half], *new.sent[half + evict :]))
        turn = self.runner.run(self.ledger.commit(tenant, new))
        assert turn.sent == new.sent
        assert [one.digest for one in turn.client] == [one.digest for one in new.client]
        assert turn.id > max(self.turns, default=0)
        self.turns[turn.id] = Kept(tenant, turn, wires)
        self.histories.append(wires)
        self.latest[tenant, words[0]] = turn.id
        self._point(tenant, new.chain, (turn.id, len(wires), False))

    @precondition(lambda self: self.turns)
    @rule(pick=st.integers(0, 10**6), word=st.sampled_from(["r", "s"]))
    def reply(self, pick: int, word: str) -> None:
        kept = list(self.turns.values())[pick % len(self.turns)]
        wires = [*kept.wires, assistant(word)]
        replied = self.runner.run(self.ledger.reply(kept.tenant, kept.turn, new_reply(wires)))
        if kept.turn.replied:
            assert replied == kept.turn
            return
        assert replied.replied
        self.turns[replied.id] = replace(kept, turn=replied)
        self.histories.append(wires)
        self._point(kept.tenant, chain(wires)[-1], (replied.id, len(wires), True))

    @rule(pick=st.integers(0, 10**6), tenant=st.sampled_from(["a", "b"]))
    def look_up(self, pick: int, tenant: str) -> None:
        found = self._look_up(tenant, self.histories[pick % len(self.histories)])
        if found is not None:
            assert same(found.turn, self.turns[found.turn.id].turn)

    @precondition(lambda self: self.turns)
    @rule(pick=st.integers(0, 10**6))
    def newest(self, pick: int) -> None:
        (tenant, conversation), id = list(self.latest.items())[pick % len(self.latest)]
        turn = self.runner.run(self.ledger.latest(tenant, conversation))
        assert turn is not None
        assert turn.id == id
        assert same(turn, self.turns[id].turn)

    @precondition(lambda self: self.path is not None)
    @rule()
    def reopen(self) -> None:
        self.runner.run(self.ledger.close())
        self.ledger = self.runner.run(Ledger.open(self.path, self.limits))

    @invariant()
    def is_bounded(self) -> None:
        if hasattr(self, "ledger"):
            assert self.ledger.stats().memory_bytes <= self.limits.memory_bytes


TestLedgerAgainstADictionary = LedgerAgainstADictionary.TestCase
TestLedgerAgainstADictionary.settings = settings(max_examples=30, stateful_step_count=30)
