"""The fake engine's caches, one rule of vLLM's after the other."""

from __future__ import annotations

from typing import Any

import pytest

from context.errors import ConfigError
from engine.base import AllBlocksCleared, BlockRemoved, BlockStored, EncoderEvent
from engine.fake import FakeConfig, FakeCore, Refused
from engine.fake.blocks import BlockPool
from engine.fake.encoder import EncoderCache
from engine.fake.processor import ImagePart, ProcessorCache
from engine.fake.scheduler import Scheduler
from engine.fake.sequence import FakeSequence, PlacedImage, Prompt
from tests.contract.cases import data_url, words

SMALL = FakeConfig(block_tokens=4, num_blocks=9, max_model_tokens=32, max_batched_tokens=64)


def _sequence(tokens: range | list[int], *images: PlacedImage, salt: str | None = None, plan: int = 1) -> FakeSequence:
    return FakeSequence("r", Prompt(list(tokens), images, salt), [9] * plan, "length", 4)


def _run(scheduler: Scheduler, sequence: FakeSequence) -> FakeSequence:
    scheduler.add(sequence)
    while not sequence.finished:
        scheduler.finish(scheduler.schedule())
    return sequence


def _text(text: str, **parameters: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 1} | parameters


def test_the_last_token_is_computed() -> None:
    scheduler = Scheduler(SMALL)
    first = _run(scheduler, _sequence(range(12)))
    again = _run(scheduler, _sequence(range(12)))
    assert (first.read_tokens, first.write_tokens) == (0, 12)
    # All three blocks are there, yet the last is computed for its logits, and written anew.
    assert (again.read_tokens, again.write_tokens) == (8, 4)


def test_generated_tokens_are_stored_but_for_the_last() -> None:
    scheduler = Scheduler(SMALL)
    first = _run(scheduler, _sequence(range(6), plan=6))
    assert first.write_tokens == 4
    # 6 + 6 tokens, of which 11 were computed: two blocks.
    assert _run(scheduler, _sequence([*range(6), *[9] * 8])).read_tokens == 8


def test_the_tail_is_evicted_first() -> None:
    scheduler = Scheduler(SMALL)
    _run(scheduler, _sequence(range(16)))
    # 8 blocks, 4 of them free and never used: 5 take one more than those, the old tail.
    _run(scheduler, _sequence(range(100, 120)))
    assert _run(scheduler, _sequence(range(16))).read_tokens == 12
    events, _ = scheduler.take_events()
    removed = [event for event in events if isinstance(event, BlockRemoved)]
    stored = [event for event in events if isinstance(event, BlockStored)]
    assert removed[0].block_hashes == stored[0].block_hashes[3:]


def test_the_latest_used_stays_longest() -> None:
    scheduler = Scheduler(SMALL)
    for start in (0, 100):
        _run(scheduler, _sequence(range(start, start + 13)))
    _run(scheduler, _sequence(range(13)))
    _run(scheduler, _sequence(range(200, 208)))
    assert _run(scheduler, _sequence(range(13))).read_tokens == 12
    assert _run(scheduler, _sequence(range(100, 113))).read_tokens < 12


def test_salt_and_images_are_part_of_a_block() -> None:
    scheduler = Scheduler(SMALL)
    image = PlacedImage("a", 5, 2)
    _run(scheduler, _sequence(range(13), image, salt="s"))
    assert _run(scheduler, _sequence(range(13), image, salt="s")).read_tokens == 12
    assert _run(scheduler, _sequence(range(13), image, salt="t")).read_tokens == 0
    assert _run(scheduler, _sequence(range(13), PlacedImage("b", 5, 2), salt="s")).read_tokens == 4
    assert _run(scheduler, _sequence(range(13), PlacedImage("a", 6, 2), salt="s")).read_tokens == 4


def test_extra_keys_of_events() -> None:
    scheduler = Scheduler(SMALL)
    _run(scheduler, _sequence(range(13), PlacedImage("a", 2, 5), PlacedImage("b", 7, 1), salt="s"))
    (event,), _ = scheduler.take_events()
    assert isinstance(event, BlockStored)
    assert event.extra_keys == ((("a", 2), "s"), (("a", -2), ("b", 3)), None)
    assert (event.parent_block_hash, event.token_ids, event.block_size) == (None, tuple(range(12)), 4)


def test_a_reset_waits_for_what_runs() -> None:
    pool = BlockPool(4, 4)
    taken = pool.take(1)
    assert not pool.reset()
    pool.release(taken)
    assert pool.reset()
    assert pool.take_events() == [AllBlocksCleared()]


def test_preemption_gives_way_and_comes_back() -> None:
    scheduler = Scheduler(SMALL)
    sequences = [_sequence(range(start, start + 12), plan=12) for start in (0, 100)]
    for sequence in sequences:
        scheduler.add(sequence)
    while not all(sequence.finished for sequence in sequences):
        scheduler.finish(scheduler.schedule())
    # Both need 6 of 8 blocks: the second made room for the first, and was recomputed.
    assert [sequence.preemptions > 0 for sequence in sequences] == [False, True]
    assert [sequence.generated for sequence in sequences] == [12, 12]
    assert scheduler.pool.num_free == 8
    assert scheduler.queries == 24


def test_a_second_choice_reads_what_the_first_stores() -> None:
    core = FakeCore()
    chat = core.accept(_text(words(60), n=2), "r")
    core.start(chat)
    while core.has_work:
        core.finish(core.schedule())
    first, second = chat.sequences
    assert (first.read_tokens, second.read_tokens) == (0, first.write_tokens)


def test_chunked_prefill_encodes_an_image_once() -> None:
    config = FakeConfig(block_tokens=4, num_blocks=65, max_model_tokens=64, max_batched_tokens=8)
    scheduler = Scheduler(config)
    _run(scheduler, _sequence(range(40), PlacedImage("a", 5, 20), PlacedImage("a", 30, 20)))
    _, events = scheduler.take_events()
    assert [(event.kind, event.embeddings) for event in events] == [("run", 20), ("hit", 20)]


def test_images_in_the_read_prefix_need_no_encoder() -> None:
    scheduler = Scheduler(SMALL)
    _run(scheduler, _sequence(range(13), PlacedImage("a", 0, 8)))
    scheduler.encoder.reset()
    scheduler.take_events()
    _run(scheduler, _sequence(range(13), PlacedImage("a", 0, 8)))
    assert scheduler.take_events()[1] == []


def test_encoder_evicts_what_was_let_go_first() -> None:
    cache = EncoderCache(10)
    sequences = {name: _sequence([], PlacedImage(name, 0, 4)) for name in "abc"}
    for name in "ab":
        assert cache.has_room(sequences[name], 0, 10, 0)
        cache.allocate(sequences[name], 0)
    # All in use: no room, and nothing is evicted.
    assert not cache.has_room(sequences["c"], 0, 10, 0)
    cache.free(sequences["b"])
    cache.free(sequences["a"])
    cache.check(sequences["b"], 0)
    cache.free(sequences["b"])
    assert cache.has_room(sequences["c"], 0, 10, 0)
    assert cache.take_events()[-1] == EncoderEvent("evict", "r", "a", 4)
    assert not cache.has_room(sequences["c"], 0, 3, 0)


def test_an_image_in_use_twice_is_let_go_with_the_last() -> None:
    cache = EncoderCache(4)
    twice = _sequence([], PlacedImage("a", 0, 4), PlacedImage("a", 9, 4))
    other = _sequence([], PlacedImage("b", 0, 4))
    cache.allocate(twice, 0)
    cache.check(twice, 1)
    cache.let_go(twice, 0)
    assert not cache.has_room(other, 0, 4, 0)
    cache.let_go(twice, 1)
    assert cache.has_room(other, 0, 4, 0)


def _part(uuid: str | None, shade: int | None) -> ImagePart:
    return ImagePart(uuid, None if shade is None else data_url(56, 56, shade).decode())


def test_processor_cache_knows_uuids_and_content() -> None:
    cache = ProcessorCache(10**9, SMALL.visual)
    known = cache.process([_part("u", 1), _part(None, 2), _part(None, 2)])
    assert known[1].identity == known[2].identity != known[0].identity == "u"
    assert (cache.queries, cache.hits) == (3, 1)
    assert cache.process([_part("u", None)]) == [known[0]]


def test_a_uuid_alone_beside_its_bytes_is_a_miss() -> None:
    cache = ProcessorCache(10**9, SMALL.visual)
    with pytest.raises(Refused, match=r"^Cache miss for image at index 1 but data is not provided\.$"):
        cache.process([_part("u", 1), _part("u", None)])
    assert len(cache) == 0


def test_processor_cache_is_bounded_by_bytes() -> None:
    one = 56 * 56 * 12 + 24
    cache = ProcessorCache(2 * one, SMALL.visual)
    cache.process([_part("a", 1), _part("b", 2)])
    cache.process([_part("a", None)])
    cache.process([_part("c", 3)])
    assert len(cache) == 2
    cache.process([_part("a", None), _part("c", None)])
    with pytest.raises(Refused):
        cache.process([_part("b", None)])


@pytest.mark.parametrize("url", ["http://example.org/a.png", "data:image/png;base64,AAAA", "data:,x", "x"])
def test_what_is_no_image(url: str) -> None:
    with pytest.raises(Refused):
        ProcessorCache(10**9, SMALL.visual).process([ImagePart(None, url)])


def test_a_simulation_needs_no_loop() -> None:
    core = FakeCore()
    text = words(100)
    first, second = core.complete(_text(text)), core.complete(_text(text))
    assert (first.read_tokens, first.image_tokens) == (0, 0)
    assert second.read_tokens == (first.prompt_tokens - 1) // 16 * 16


def test_the_next_turn_reads_the_answer() -> None:
    core = FakeCore(FakeConfig(answer_tokens=60))
    first = core.accept(_text(words(30), max_tokens=100), "r")
    core.start(first)
    while core.has_work:
        core.finish(core.schedule())
    turn = _text(words(30))
    turn["messages"] += [{"role": "assistant", "content": "".join(first.answers[0].texts)}]
    turn["messages"] += [{"role": "user", "content": "go on"}]
    computed = len(first.prompt.tokens) + first.sequences[0].generated - 1
    assert core.complete(turn).read_tokens == computed // 16 * 16


def test_memory_is_returned() -> None:
    core = FakeCore()
    for number in range(20):
        core.complete(_text(words(20, number)), f"r{number}")
    assert core.running == 0
    assert core.scheduler.pool.num_free == core.config.num_blocks - 1
    assert not core._chats  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"block_tokens": 0}, "block_tokens"),
        ({"num_blocks": 10}, "max_model_tokens"),
        ({"decode_seconds_per_token": -1.0}, "decode_seconds_per_token"),
    ],
)
def test_impossible_settings(change: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        FakeCore(FakeConfig(**change))
    assert refused.value.key == key
