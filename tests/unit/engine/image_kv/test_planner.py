"""What a scheduler has its workers do for requests whose images the pool may give or keep."""

from __future__ import annotations

from dataclasses import fields

from engine.vllm.image_kv.messages import Ask, Report
from engine.vllm.image_kv.planner import PATIENCE_SECONDS
from tests.unit.engine.image_kv.planned import (
    BLOCKS,
    FIRST,
    PROMPT,
    TOKENS,
    Request,
    held,
    made,
    nothing_cached,
    reach,
    step,
)


def test_a_request_waits_for_its_images_computes_its_share_jumps_and_lets_go() -> None:
    planner, request = made(), Request("r")
    planner.arrive(request, nothing_cached)
    assert reach(planner, request) is None
    (ask,) = step(planner).asks
    planner.told(Report({ask.hold: (1, 0)}))
    assert reach(planner, request) == 0
    assert planner.cut(request, 0, PROMPT) == FIRST + 5
    assert step(planner, r=FIRST + 5).loads == ()
    request.num_computed_tokens = FIRST + 5
    moved = planner.jump([request])
    assert (moved, request.num_computed_tokens) == ([request], FIRST + TOKENS)
    (load,) = step(planner, r=20).loads
    assert (load.hold, load.row, load.position) == (ask.hold, 5, FIRST)
    assert (load.span.blocks, load.span.first, load.span.count) == (tuple(BLOCKS[3:8]), 3, 15)
    planner.settle(moved)
    assert request.num_computed_tokens == FIRST + TOKENS
    planner.finished(request)
    assert step(planner).releases == (ask.hold,)


def test_a_request_that_was_moved_and_got_no_turn_goes_back() -> None:
    planner, request = made(), Request("r")
    held(planner, request)
    request.num_computed_tokens = FIRST + 5
    moved = planner.jump([request])
    assert step(planner, other=3).loads == ()
    planner.settle(moved)
    assert request.num_computed_tokens == FIRST + 5
    # And has it in a later one.
    planner.jump([request])
    assert len(step(planner, r=20).loads) == 1


def test_with_nothing_computed_of_an_image_at_the_end_of_what_is_read_it_is_loaded_at_once() -> None:
    planner, request = made(), Request("r", ratio=0, images=(("image", 8), ("image", 28)))
    held(planner, request)
    assert planner.reach(request, 8) == 40
    loads = step(planner, r=2).loads
    assert [(load.row, load.position) for load in loads] == [(0, 8), (0, 28)]
    # Refused room after all: it is asked again.
    planner.forget_reach(request)
    assert step(planner, r=2).loads == ()


def test_a_preempted_request_keeps_its_holds_and_captures_nothing_of_before() -> None:
    planner, request = made(), Request("r")
    held(planner, request)
    request.num_computed_tokens = FIRST + 5
    planner.jump([request])
    planner.preempted(request)
    plan = step(planner)
    assert (plan.ended, plan.releases, plan.loads) == (("r",), (), ())
    request.num_computed_tokens = 0
    assert planner.cut(request, 0, PROMPT) == FIRST + 5


def test_an_image_counts_as_held_when_every_worker_has_it() -> None:
    planner, one, two = made(workers=2), Request("one"), Request("two")
    planner.arrive(one, nothing_cached)
    planner.arrive(two, nothing_cached)
    first, second = (ask.hold for ask in step(planner).asks)
    planner.told(Report({first: (1, 0), second: (1, 0)}))
    assert reach(planner, one) is None
    planner.told(Report({first: (0, 1), second: (1, 0)}))
    assert (reach(planner, one), reach(planner, two)) == (0, 0)
    # The worker that has it lets it go.
    assert step(planner).releases == (first,)
    assert (planner.cut(one, 0, PROMPT), planner.cut(two, 0, PROMPT)) == (PROMPT, FIRST + 5)


def test_a_request_that_gets_no_answer_goes_on_without_its_images() -> None:
    seconds = [0.0]
    planner, request = made(clock=lambda: seconds[0]), Request("r")
    planner.arrive(request, nothing_cached)
    (ask,) = step(planner).asks
    seconds[0] = PATIENCE_SECONDS
    assert reach(planner, request) == 0
    assert step(planner).releases == (ask.hold,)
    planner.told(Report({ask.hold: (1, 0)}))
    assert planner.cut(request, 0, PROMPT) == PROMPT


def test_a_request_that_leaves_before_the_answer_holds_nothing() -> None:
    planner, request = made(), Request("r")
    planner.arrive(request, nothing_cached)
    planner.finished(request)
    plan = step(planner)
    # Carried out in this order, or it would be held for ever.
    assert [field.name for field in fields(plan)].index("asks") < [one.name for one in fields(plan)].index("releases")
    assert plan.asks == (Ask(0, plan.asks[0].name),)
    assert plan.releases == (0,)
    planner.told(Report({0: (1, 0)}))
    assert planner.hold_of("image") is None
