"""Whatever the engine does, the mirror knows what it holds; after a gap it never claims what is not there."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from engine.base import EventBatch
from engine.fake.sequence import FakeSequence
from metrics.kv_mirror import KvMirror
from tests.unit.metrics.kv_source import BLOCK, KvSource

EVENTS = 10_000
# A smaller example of 10,000 events tells nothing more.
_PROPERTY = settings(
    max_examples=3,
    deadline=None,
    suppress_health_check=(HealthCheck.too_slow,),
    phases=(Phase.explicit, Phase.generate),
)


class Traffic:
    """Prompts with common beginnings, some of them at the same time, aborted ones and resets among them."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)  # noqa: S311
        self.source = KvSource(self.random.choice((17, 33, 65)))
        self.running: list[FakeSequence] = []
        self.history: list[list[int]] = [[]]

    def step(self, *, resets: bool = True) -> list[EventBatch]:
        random, source = self.random, self.source
        longest = source.scheduler.pool.num_blocks - 2
        self.running = [one for one in self.running if not one.finished]
        if len(self.running) < 3 and random.random() < 0.6:
            begun = random.choice(self.history)
            begun = begun[: random.randrange(len(begun) + 1)] if random.random() < 0.3 else begun
            tokens = begun + [random.randrange(6) for _ in range(random.randrange(1, 4 * BLOCK))]
            if len(tokens) + 2 * BLOCK > longest * BLOCK:
                tokens = tokens[:BLOCK]
            self.history = [*self.history[-5:], tokens]
            self.running.append(source.add(tokens, reply=random.randrange(1, 2 * BLOCK)))
        if self.running and random.random() < 0.05:
            source.scheduler.abort(random.choice(self.running))
        if resets and random.random() < 0.002:
            source.scheduler.reset_prefix_cache()
        return source.step()


@_PROPERTY
@given(st.integers(0, 2**32))
def test_the_mirror_equals_the_engine(seed: int) -> None:
    traffic, mirror = Traffic(seed), KvMirror(BLOCK)
    steps = 0
    while traffic.source.events < EVENTS:
        for batch in traffic.step():
            mirror.take(batch)
        steps += 1
        if not steps % 500:
            assert mirror.resident() == traffic.source.resident()
    assert mirror.resident() == traffic.source.resident()
    assert mirror.resident_blocks == len(mirror.resident())
    assert (mirror.gaps, mirror.uncertain_blocks, mirror.forgotten) == (0, 0, 0)


@_PROPERTY
@given(st.integers(0, 2**32), st.integers(1, 40))
def test_after_a_gap_it_claims_only_what_is_there(seed: int, missed: int) -> None:
    traffic, mirror = Traffic(seed), KvMirror(BLOCK)
    source = traffic.source
    while source.events < 500:
        for batch in traffic.step(resets=False):
            mirror.take(batch)
    begun = source.sequence
    while source.sequence < begun + missed:
        traffic.step(resets=False)
    begun, steps = source.events, 0
    while source.events < begun + EVENTS:
        for batch in traffic.step(resets=False):
            mirror.take(batch)
        steps += 1
        # Before the next batch nobody can know of the gap.
        if mirror.gaps and (steps < 500 or not steps % 100):
            assert mirror.resident() <= source.resident()
    assert mirror.gaps == 1
    # By now every block of the pool has held something else.
    assert mirror.resident() == source.resident()


def test_a_reset_ends_all_doubt() -> None:
    source, mirror = KvSource(), KvMirror(BLOCK)
    source.add(range(20))
    for batch in source.run():
        mirror.take(batch)
    source.add(range(100, 120))
    source.run()
    source.add(range(200, 210))
    for batch in source.run():
        mirror.take(batch)
    assert (mirror.gaps, mirror.resident_blocks, mirror.uncertain_blocks) == (1, 2, 5)
    assert source.scheduler.reset_prefix_cache()
    source.add(range(100, 120))
    for batch in source.run():
        mirror.take(batch)
    assert mirror.uncertain_blocks == 0
    assert mirror.resident() == source.resident()


@pytest.mark.parametrize("kept", [1, 3])
def test_a_block_in_use_proves_those_before_it(kept: int) -> None:
    """A prompt that goes on from blocks of before the gap makes them certain again."""
    source, mirror = KvSource(), KvMirror(BLOCK)
    source.add(range(20))
    for batch in source.run():
        mirror.take(batch)
    source.add(range(100, 104))
    source.run()
    # It reads `kept` blocks and stores one more.
    source.add([*range(kept * BLOCK), *range(50, 54)])
    for batch in source.run():
        mirror.take(batch)
    assert (mirror.resident_blocks, mirror.uncertain_blocks) == (kept + 1, 5 - kept)
    assert mirror.resident() <= source.resident()


def test_what_was_stored_in_a_gap_is_learnt_when_it_is_used() -> None:
    source, mirror = KvSource(), KvMirror(BLOCK)
    source.add(range(4))
    for batch in source.run():
        mirror.take(batch)
    source.add(range(100, 112))
    source.run()
    source.add([*range(100, 112), *range(4)])
    for batch in source.run():
        mirror.take(batch)
    # Of what stood before only the last block is named.
    assert mirror.resident_blocks == 2
    assert mirror.resident() <= source.resident()
