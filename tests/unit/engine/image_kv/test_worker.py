"""The worker's side: what is asked for is held until it is released, and what is captured is whole or not there."""

# torch leaves much of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from engine.base import ImagePoolState  # noqa: E402
from engine.vllm.image_kv.entry import Layout  # noqa: E402
from engine.vllm.image_kv.files import FileTier  # noqa: E402
from engine.vllm.image_kv.keys import EntryKey  # noqa: E402
from engine.vllm.image_kv.messages import Ask, Capture, ImageName, Load, Plan, Report, Span  # noqa: E402
from engine.vllm.image_kv.pool import ImagePool  # noqa: E402
from engine.vllm.image_kv.reporting import pool_values  # noqa: E402
from engine.vllm.image_kv.rotation import RopeTable  # noqa: E402
from engine.vllm.image_kv.worker import Worker  # noqa: E402
from metrics.prometheus import GatewayMetrics  # noqa: E402

LAYERS, HEADS, SIZE, TOKENS, BLOCK_TOKENS = 3, 2, 8, 12, 4
LAYOUT = Layout(LAYERS, HEADS, SIZE, "float32", 6, "float32")
NAME, OTHER = ImageName("tenant", "image", (1, 1, TOKENS)), ImageName("tenant", "other", (1, 1, TOKENS))
BLOCKS = (7, 2, 5, 9)


class Layer:
    """An attention layer whose cache is [slots, keys and values, heads, dimensions]."""

    def __init__(self) -> None:
        self.impl: Any = self
        self.kv_cache = torch.zeros(64, 2, HEADS, SIZE)

    def do_kv_cache_update(self, layer: Any, key: Any, value: Any, cache: Any, slots: Any) -> None:
        cache[slots, 0], cache[slots, 1] = key, value


@pytest.fixture
def layers() -> list[Layer]:
    return [Layer() for _ in range(LAYERS)]


def pool_in(folder: Path | None) -> ImagePool:
    return ImagePool(LAYOUT, 1 << 20, None if folder is None else FileTier(folder, 1 << 20))


def worker(layers: list[Layer], pool: ImagePool | None = None, capture_bytes: int = 1 << 20, rank: int = 0) -> Worker:
    angles = torch.arange(64)[:, None] / (10.0 ** torch.arange(SIZE // 2))
    table = RopeTable(torch.cat((angles.cos(), angles.sin()), -1))
    return Worker("model", layers, BLOCK_TOKENS, pool or pool_in(None), table, capture_bytes, rank=rank)


def capture(row: int, count: int, request: str = "r", name: ImageName = NAME) -> Capture:
    """Rows of an image that begins with token 2 of a request, which is its position, too."""
    return Capture(request, 2, name, TOKENS, 2, row, Span.of(BLOCKS, BLOCK_TOKENS, 2 + row, 2 + row + count))


def rows(seed: int = 0) -> tuple[Any, Any]:
    made = torch.randn(2, LAYERS, TOKENS, HEADS, SIZE, generator=torch.Generator().manual_seed(seed))
    return made[0], made[1]


def compute(one: Worker, layers: list[Layer], captures: list[Capture], computed: int | None = None) -> None:
    """A step: the layers write what is captured, or fewer rows of it."""
    keys, values = rows()
    one.take(Plan(captures=tuple(captures)))
    for chunk in captures:
        for index, layer in enumerate(layers):
            upto = chunk.row + (chunk.span.count if computed is None else computed)
            slots = torch.tensor([BLOCKS[at // 4] * 4 + at % 4 for at in range(2 + chunk.row, 2 + upto)])
            part = slice(chunk.row, upto)
            layer.impl.do_kv_cache_update(layer, keys[index, part], values[index, part], layer.kv_cache, slots)
    one.finish()


def known(one: Worker, layers: list[Layer]) -> None:
    one.encoder_outputs = {"image": torch.ones(TOKENS, 6)}
    compute(one, layers, [capture(0, 5)])
    compute(one, layers, [capture(5, 7)])


def ask(one: Worker, hold: int, name: ImageName = NAME) -> dict[int, tuple[int, int]]:
    one.take(Plan(asks=(Ask(hold, name),)))
    report = one.report()
    return {} if report is None else report.answers


def figures(one: Worker) -> tuple[int, int, int]:
    """Entries, those that are held, and those that are being filled."""
    one.take(Plan(ended=("nobody",)))
    report = one.report()
    assert report is not None
    assert report.stats is not None
    return report.stats.memory_entries, report.stats.held_entries, report.capturing


def test_an_image_is_captured_chunk_by_chunk_and_loaded_elsewhere(layers: list[Layer]) -> None:
    one = worker(layers)
    known(one, layers)
    assert ask(one, 1) == {1: (1, 0)}
    before = [layer.kv_cache.clone() for layer in layers]
    for layer in layers:
        layer.kv_cache.zero_()
    # To where it stood: all but its first four rows, to the bit.
    one.load([Load(1, 4, Span.of(BLOCKS, BLOCK_TOKENS, 6, 14), 2)])
    slots = torch.tensor([BLOCKS[at // 4] * 4 + at % 4 for at in range(6, 14)])
    for layer, cache in zip(layers, before, strict=True):
        assert torch.equal(layer.kv_cache[slots], cache[slots])
        assert int((layer.kv_cache != 0).any((1, 2, 3)).sum()) == 8
    # Further on: turned keys, values as they are.
    one.load([Load(1, 4, Span.of(BLOCKS, BLOCK_TOKENS, 6, 14), 9)])
    for layer, cache in zip(layers, before, strict=True):
        assert torch.equal(layer.kv_cache[slots, 1], cache[slots, 1])
        assert not torch.allclose(layer.kv_cache[slots, 0], cache[slots, 0], atol=1e-2)
    assert torch.equal(one.encoder_output(1), torch.ones(TOKENS, 6))
    one.take(Plan(releases=(1,)))
    assert figures(one) == (1, 0, 0)


@pytest.mark.parametrize("fault", ["a row less", "its request ended", "no encoder output", "a chunk is missing"])
def test_what_is_not_whole_is_not_kept(layers: list[Layer], fault: str) -> None:
    one = worker(layers)
    one.encoder_outputs = {} if fault == "no encoder output" else {"image": torch.ones(TOKENS, 6)}
    compute(one, layers, [capture(0, 5)])
    if fault == "its request ended":
        one.take(Plan(ended=("r",)))
    compute(one, layers, [capture(6, 6) if fault == "a chunk is missing" else capture(5, 7)])
    if fault == "a row less":
        one = worker(layers)
        one.encoder_outputs = {"image": torch.ones(TOKENS, 6)}
        compute(one, layers, [capture(0, TOKENS)], computed=TOKENS - 1)
    assert ask(one, 1) == {1: (0, 1)}
    one.take(Plan(ended=("r",)))
    assert figures(one) == (0, 0, 0)


def test_the_same_image_is_captured_once_and_no_more_at_a_time_than_there_is_room_for(layers: list[Layer]) -> None:
    one = worker(layers, capture_bytes=LAYOUT.bytes(TOKENS) + 1)
    compute(one, layers, [capture(0, 5)])
    compute(one, layers, [capture(0, 5, "other")])
    compute(one, layers, [capture(0, 5, "third", OTHER)])
    assert figures(one)[2] == 1
    one.take(Plan(ended=("r",)))
    compute(one, layers, [capture(0, 5, "third", OTHER)])
    assert figures(one)[2] == 1


def test_an_image_for_which_there_is_never_room_is_counted_each_time_and_told_once(
    layers: list[Layer], caplog: pytest.LogCaptureFixture
) -> None:
    one = worker(layers, capture_bytes=LAYOUT.bytes(TOKENS) - 1)
    for number, request in enumerate("rs"):
        compute(one, layers, [capture(0, TOKENS, request)])
        one.take(Plan(ended=(request,)))
        report = one.report()
        assert report is not None
        assert report.stats is not None
        assert (report.stats.refused_entries, report.capturing) == (number + 1, 0)
    assert [record.getMessage().split()[3] for record in caplog.records] == [str(TOKENS)]


def test_a_hold_that_is_released_before_it_is_answered_or_in_its_own_plan_is_none(
    layers: list[Layer], tmp_path: Path
) -> None:
    first = worker(layers, pool_in(tmp_path))
    known(first, layers)
    first.close()
    pool = pool_in(tmp_path)
    one = worker(layers, pool)
    one.take(Plan(asks=(Ask(1, NAME), Ask(2, NAME)), releases=(1,)))
    one.take(Plan(releases=(2,)))
    # Whatever was read by then.
    hold = pool.hold(EntryKey("model", NAME.tenant, NAME.image, NAME.grid)).result(10)
    assert hold is not None
    assert figures(one) == (1, 1, 0)
    hold.release()
    assert figures(one) == (1, 0, 0)


def test_what_was_begun_before_the_pool_was_emptied_is_not_kept_after_it(layers: list[Layer]) -> None:
    one = worker(layers)
    one.encoder_outputs = {"image": torch.ones(TOKENS, 6)}
    compute(one, layers, [capture(0, 5)])
    one.clear()
    compute(one, layers, [capture(5, 7)])
    assert ask(one, 1) == {1: (0, 1)}
    assert figures(one) == (0, 0, 0)


def test_a_request_that_ends_just_before_the_pool_is_emptied_leaves_nothing_there(layers: list[Layer]) -> None:
    one = worker(layers)
    known(one, layers)
    assert ask(one, 1) == {1: (1, 0)}
    one.clear()
    one.take(Plan(releases=(1,)))
    assert figures(one) == (0, 0, 0)
    assert ask(one, 2) == {2: (0, 1)}


def test_a_new_worker_has_what_another_wrote_and_an_emptied_pool_nothing(layers: list[Layer], tmp_path: Path) -> None:
    first = worker(layers, pool_in(tmp_path))
    known(first, layers)
    first.close()
    pool = pool_in(tmp_path)
    one = worker(layers, pool)
    with pool.hold(EntryKey("model", NAME.tenant, NAME.image, NAME.grid)).result(10) or pytest.fail("it is not there"):
        assert ask(one, 1) == {1: (1, 0)}
    one.take(Plan(releases=(1,)))
    assert one.clear()
    assert figures(one) == (0, 0, 0)
    assert ask(worker(layers, pool_in(tmp_path)), 1) in ({}, {1: (0, 1)})


def test_of_several_workers_the_first_one_s_figures_are_told_and_no_other_s(layers: list[Layer]) -> None:
    """Each refuses what has no room: the second one in every step, the first one in every other."""
    first, second = (worker(layers, capture_bytes=0, rank=rank) for rank in (0, 1))
    metrics = GatewayMetrics()
    for number in range(6):
        for one in (first, second) if number % 2 else (second,):
            compute(one, layers, [capture(0, TOKENS, f"request-{number}")])
        told = Report()
        for report in (first.report(), second.report()):
            told = told if report is None else told.add(report)
        if told.stats is not None:
            metrics.show_pool(ImagePoolState(*pool_values(0, 0, told.capturing, told.stats)))
    labels = {"tier": "memory", "event": "refused"}
    assert metrics.registry.get_sample_value("stillframe_image_pool_events_total", labels) == 3
