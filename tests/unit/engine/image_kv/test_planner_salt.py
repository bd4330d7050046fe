"""What is loaded lies in blocks that exact requests do not find, whatever blocks have gone since it was decided."""

from __future__ import annotations

from typing import Any

from engine.vllm.image_kv.messages import Report
from engine.vllm.image_kv.planner import Planner
from tests.unit.engine.image_kv.planned import (
    BLOCK_TOKENS,
    BLOCKS,
    FIRST,
    PROMPT,
    TOKENS,
    Request,
    hashes,
    made,
    nothing_cached,
    reach,
    step,
)


def test_images_whose_blocks_have_gone_since_they_were_read_are_asked_for_then() -> None:
    planner, request = made(), Request("r", ratio=0)

    def all_approximate(one: Any) -> int:
        return 48 if one._block_hasher is not hashes else 0

    planner.arrive(request, all_approximate)
    assert step(planner).asks == ()
    assert reach(planner, request, 48, all_approximate) == 0
    planner.preempted(request)
    assert reach(planner, request, 8) is None
    (ask,) = step(planner).asks
    planner.told(Report({ask.hold: (1, 0)}))
    # From the first block that may be approximate on.
    assert reach(planner, request, FIRST) == TOKENS
    assert [load.row for load in step(planner, r=2).loads] == [0]
    # Nothing of it is exact any more.
    assert step(planner, r=40).captures == ()


TWO = (("first", 2), ("second", 26))
ADMITTED = 24


def salted_behind_the_first_image() -> tuple[Planner, Request]:
    """Exact blocks have the first of two images, and the second is loaded."""
    planner, request = made(), Request("r", images=TWO)
    planner.arrive(request, lambda _: ADMITTED)
    (ask,) = step(planner).asks
    assert ask.name.image == "second"
    planner.told(Report({ask.hold: (1, 0)}))
    planner.admit(request, lambda _: ADMITTED)
    return planner, request


def computes_the_first_image(planner: Planner, request: Request) -> None:
    """With none of its blocks left it asks for nothing, and loads nothing where exact requests read."""
    assert reach(planner, request) == 0
    assert step(planner).asks == ()
    share = 26 + 5
    assert planner.cut(request, 0, PROMPT) == share
    assert {capture.name.image for capture in step(planner, r=share).captures} == {"first"}
    request.num_computed_tokens = share
    planner.jump([request])
    (load,) = step(planner, r=4).loads
    assert (load.row, load.position) == (5, 26)
    exact = Request("exact", ratio=None, images=TWO)
    same = [one == two for one, two in zip(request.block_hashes, exact.block_hashes, strict=True)]
    assert same.index(False) * BLOCK_TOKENS <= load.span.blocks[0] * BLOCK_TOKENS - BLOCKS[0] * BLOCK_TOKENS


def test_an_image_in_exact_blocks_that_have_gone_is_computed_after_a_preemption() -> None:
    planner, request = salted_behind_the_first_image()
    assert planner.reach(request, ADMITTED) == 0
    step(planner, r=2)
    planner.preempted(request)
    request.num_computed_tokens = 0
    computes_the_first_image(planner, request)


def test_an_image_in_exact_blocks_that_have_gone_while_it_waited_for_room_is_computed() -> None:
    planner, request = salted_behind_the_first_image()
    assert planner.reach(request, ADMITTED) == 0
    planner.forget_reach(request)
    computes_the_first_image(planner, request)


def test_an_image_that_is_held_and_that_exact_blocks_have_by_now_is_not_loaded_when_they_have_gone() -> None:
    planner, request = made(), Request("r", images=TWO)
    planner.arrive(request, nothing_cached)
    planner.told(Report({ask.hold: (1, 0) for ask in step(planner).asks}))
    planner.admit(request, lambda _: ADMITTED)
    computes_the_first_image(planner, request)
