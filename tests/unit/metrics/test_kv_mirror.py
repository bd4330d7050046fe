"""What the mirror knows of blocks: resident, of which image, whose, and for how long."""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic_core import from_json

from engine.base import BlockRemoved, BlockStored, ChatRequest, EventBatch
from engine.fake import FakeConfig, FakeEngine
from engine.fake.sequence import PlacedImage
from metrics.kv_mirror import Ending, KvMirror, MirrorView, Owner
from tests.contract.cases import Picture, user, words
from tests.unit.metrics.kv_source import BLOCK, KvSource

ANN, BEN = Owner("tenant", "ann"), Owner("tenant", "ben")


class Pair:
    """An engine and its mirror."""

    def __init__(self, num_blocks: int = 33, **bounds: int) -> None:
        self.source, self.mirror = KvSource(num_blocks), KvMirror(BLOCK, **bounds)
        self.turns = 0

    def run(self) -> None:
        for batch in self.source.run():
            self.mirror.take(batch)

    async def turn(
        self, owner: Owner, tokens: list[int], *images: PlacedImage, parent: int | None = None
    ) -> MirrorView:
        """One request from begin to end, and what is said of it."""
        return self.ended(owner, tokens, *images, parent=parent).view()

    def ended(self, owner: Owner, tokens: list[int], *images: PlacedImage, parent: int | None = None) -> Ending:
        """One request from begin to end."""
        self.turns += 1
        name = f"request-{self.turns}"
        self.mirror.begin(name, owner)
        sequence = self.source.add(tokens, *images, request_id=name)
        self.run()
        ending = self.mirror.end(
            name, self.turns, parent=parent, prompt_tokens=len(tokens), read_tokens=sequence.read_tokens
        )
        assert ending.is_settled
        return ending


async def test_blocks_that_two_conversations_share_belong_to_both() -> None:
    pair = Pair()
    await pair.turn(ANN, [*range(9)])
    await pair.turn(BEN, [*range(8), *range(50, 60)])
    assert [one.users for one in pair.mirror.blocks(ANN)] == [(BEN, ANN)] * 2
    assert [one.users for one in pair.mirror.blocks(BEN)] == [(BEN, ANN)] * 2 + [(BEN,)] * 2


async def test_a_request_that_only_reads_has_its_blocks() -> None:
    pair = Pair()
    await pair.turn(ANN, [*range(18)])
    # A shorter prompt of the same beginning stores nothing.
    await pair.turn(ANN, [*range(10)], parent=1)
    assert pair.mirror.resident_prefix(ANN) == 8
    view = await pair.turn(ANN, [*range(10), *range(70, 80)], parent=2)
    assert view == MirrorView(common_tokens=8)


async def test_the_readable_prefix_ends_where_a_block_is_gone() -> None:
    pair = Pair(num_blocks=9)
    await pair.turn(ANN, [*range(19)])
    assert pair.mirror.resident_prefix(ANN) == 16
    await pair.turn(BEN, [*range(100, 121)])
    assert pair.mirror.resident_prefix(ANN) == 8
    assert pair.mirror.resident_prefix(BEN) == 20
    assert pair.mirror.resident_prefix(Owner("other tenant", "ann")) == 0


async def test_evictions_say_what_and_whose() -> None:
    pair = Pair(num_blocks=9)
    await pair.turn(ANN, [*range(8), *[7] * 6, *range(8, 13)], PlacedImage("picture", 8, 6))
    await pair.turn(BEN, [*range(100, 121)])
    gone = pair.mirror.evictions()
    assert [(one.depth, one.image, one.owners, one.tokens) for one in gone] == [
        (4, "picture", (ANN,), 4),
        (3, "picture", (ANN,), 4),
    ]
    assert [one.number for one in gone] == [1, 2]
    assert pair.mirror.evictions(since=1) == gone[1:]
    # What takes a block's place later is no longer theirs.
    view = await pair.turn(ANN, [*range(8), *[7] * 6, *range(8, 13)], PlacedImage("picture", 8, 6), parent=1)
    assert (view.common_tokens, view.evicted) == (16, tuple(reversed(gone)))


async def test_what_is_evicted_behind_a_turn_is_not_that_turns() -> None:
    """What is said of a turn is asked for a moment after its end; meanwhile other requests evict, too."""
    pair, prompt = Pair(num_blocks=9), [*range(8), *[7] * 6, *range(8, 13)]
    image = PlacedImage("picture", 8, 6)
    await pair.turn(ANN, prompt, image)
    kept = pair.ended(ANN, prompt, image, parent=1)
    await pair.turn(BEN, [*range(100, 121)])
    first = pair.mirror.evictions()
    assert kept.view() == MirrorView(common_tokens=16)
    paid = pair.ended(ANN, prompt, image, parent=2)
    await pair.turn(BEN, [*range(200, 221)])
    await pair.turn(BEN, [*range(300, 321)])
    later = [one for one in pair.mirror.evictions() if one.number > first[-1].number and ANN in one.owners]
    assert later
    # Its blocks went once more; it paid for the first time.
    assert paid.view() == MirrorView(common_tokens=16, evicted=tuple(reversed(first)))
    assert paid.view() is paid.view()


async def test_images_by_their_resident_tokens() -> None:
    pair = Pair()
    tokens = [*range(10, 13), *[7] * 5, *range(20, 22), *[7] * 6, *range(30, 34)]
    await pair.turn(ANN, tokens, PlacedImage("one", 3, 5), PlacedImage("two", 10, 6))
    found = {one.uuid: (one.blocks, one.tokens, one.owners) for one in pair.mirror.images()}
    assert found == {"two": (2, 6, (ANN,)), "one": (2, 5, (ANN,))}
    assert [one.modality for one in pair.mirror.blocks(ANN)] == ["mixed", "image", "mixed", "image", "text"]
    await pair.turn(BEN, [*tokens, 1, 2, 3, 4], PlacedImage("one", 3, 5), PlacedImage("two", 10, 6))
    assert {one.owners for one in pair.mirror.images()} == {(BEN, ANN)}
    assert pair.source.scheduler.reset_prefix_cache()
    for batch in pair.source.batches():
        pair.mirror.take(batch)
    assert pair.mirror.images() == []
    (cleared,) = pair.mirror.evictions()
    assert (cleared.hash, cleared.tokens) == (None, 24)


async def test_equal_blocks_count_once_and_go_last() -> None:
    """The engine stores an equal block twice, and says removed twice."""
    pair = Pair()
    await pair.turn(ANN, [*range(8)])
    await pair.turn(ANN, [*range(8)], parent=1)
    assert pair.mirror.resident_blocks == 2
    last = pair.mirror.blocks(ANN)[-1].hash
    removed = EventBatch("kv", pair.source.sequence, 0.0, (BlockRemoved((last,)),))
    pair.mirror.take(removed)
    assert (pair.mirror.resident_prefix(ANN), pair.mirror.evictions()) == (8, [])
    pair.mirror.take(EventBatch("kv", pair.source.sequence + 1, 0.0, removed.events))
    assert pair.mirror.resident_prefix(ANN) == 4


async def test_an_engine_that_began_anew_holds_nothing() -> None:
    pair = Pair()
    await pair.turn(ANN, [*range(18)])
    pair.source = KvSource()
    view = await pair.turn(ANN, [*range(18), *range(50, 54)], parent=1)
    assert view.restarted
    assert (pair.mirror.restarts, pair.mirror.gaps) == (1, 0)
    assert pair.mirror.resident_prefix(ANN) == 20
    assert pair.mirror.resident() == pair.source.resident()


async def test_a_turn_of_an_earlier_process() -> None:
    """Every turn of this engine is known: what it does not know it never held."""
    pair = Pair()
    assert (await pair.turn(ANN, [*range(18)], parent=77)).restarted
    bounded = Pair(max_requests=1)
    await bounded.turn(ANN, [*range(18)])
    await bounded.turn(BEN, [*range(50, 60)])
    assert not (await bounded.turn(ANN, [*range(18)], parent=1)).restarted


async def test_what_is_gone_is_forgotten_first() -> None:
    pair = Pair(num_blocks=9, max_blocks=8)
    for number in range(20):
        await pair.turn(ANN, [*range(number * 100, number * 100 + 20)])
        assert pair.mirror.resident() == pair.source.resident()
    assert pair.mirror.forgotten == 0
    small = Pair(max_blocks=4)
    await small.turn(ANN, [*range(30)])
    assert (small.mirror.forgotten, small.mirror.resident_blocks) == (3, 4)
    # Where a prompt's first blocks are not known, nothing is said of it.
    assert small.mirror.resident_prefix(ANN) == 0


async def test_other_streams_and_unknown_blocks_are_none_of_its() -> None:
    mirror = KvMirror(BLOCK)
    mirror.take(EventBatch("encoder", 7, 0.0, ()))
    mirror.take(EventBatch("kv", 0, 0.0, (BlockRemoved((b"never seen",)),)))
    assert (mirror.gaps, mirror.resident_blocks, mirror.evictions()) == (0, 0, [])


async def test_pairs_come_as_lists_from_a_decoder() -> None:
    mirror = KvMirror(BLOCK)
    stored = BlockStored((1,), None, (9, 7, 7, 8), BLOCK, ((["picture", 1], "salt"),))
    mirror.take(EventBatch("kv", 0, 0.0, (stored,)))
    assert [(one.uuid, one.tokens) for one in mirror.images()] == [("picture", 2)]


async def test_conversations_at_the_same_time_are_kept_apart() -> None:
    """Through the engine seam: what each request stores bears its id."""
    engine = FakeEngine(FakeConfig(block_tokens=16, decode_seconds_per_token=0.001))
    await engine.start()
    mirror = KvMirror(16)
    following = asyncio.create_task(mirror.follow(engine))
    owners = [Owner("tenant", f"conversation-{number}") for number in range(6)]

    async def ask(number: int) -> int:
        body = {"messages": [user("the same", Picture("shared"), words(30, seed=number))], "max_tokens": 40}
        mirror.begin(f"request-{number}", owners[number])
        async with engine.chat(ChatRequest(f"request-{number}", body, "salt")) as reply:
            usage: dict[str, Any] = from_json(await reply.read())["usage"]
        read = usage["prompt_tokens_details"]["cached_tokens"]
        mirror.end(f"request-{number}", number, parent=None, prompt_tokens=usage["prompt_tokens"], read_tokens=read)
        return usage["prompt_tokens"] + usage["completion_tokens"] - 1

    await asyncio.sleep(0)
    lengths = await asyncio.gather(*(ask(number) for number in range(6)))
    await engine.stop()
    await following
    for owner, length in zip(owners, lengths, strict=True):
        assert mirror.resident_prefix(owner) == length // 16 * 16
        others = [one for block in mirror.blocks(owner) for one in block.users if one != owner]
        assert set(others) == set(owners) - {owner}
        assert mirror.blocks(owner)[-1].users == (owner,)
    (shared,) = mirror.images()
    assert set(shared.owners) == set(owners)
