"""Several stretches of a prompt in one step, with images between them that are loaded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from engine.vllm.image_kv.encoder_inputs import EncoderInputs
from engine.vllm.image_kv.jumps import Stretch
from engine.vllm.image_kv.messages import Plan, Report
from engine.vllm.image_kv.planner import Planner
from engine.vllm.image_kv.tracked import Room
from tests.unit.engine.image_kv.planned import BLOCKS, PROMPT, Feature, Request, made, nothing_cached, step

# 5 tokens of text, 20 of an image, 2 of text, 20 of an image, 3 of text; a quarter of each image is computed.
IMAGES = (("one", 5), ("two", 27))
STRETCHES = (Stretch(0, 10), Stretch(25, 32))


def arrived(*missing: str) -> tuple[Planner, Request]:
    """A planner that knows a request whose images are held, but for those named."""
    planner, request = made(), Request("r", images=IMAGES)
    planner.arrive(request, nothing_cached)
    planner.told(Report({ask.hold: (0, 1) if ask.name.image in missing else (1, 0) for ask in step(planner).asks}))
    return planner, request


def reach(planner: Planner, request: Request) -> int | None:
    """As the scheduler asks when it would admit a request."""
    planner.admit(request, nothing_cached)
    return planner.reach(request, 0)


def test_a_step_with_room_computes_all_of_a_prompt_that_is_not_loaded() -> None:
    planner, request = arrived()
    assert planner.make_room([request], 100, 9) == Room(17, 2)
    assert reach(planner, request) == 47
    assert planner.passing(request) == STRETCHES
    assert planner.cut(request, 47, 3) == 3
    request.num_computed_tokens = 47
    plan = step(planner, r=3)
    assert [(load.row, load.span.count, load.position) for load in plan.loads] == [(5, 15, 5), (5, 15, 27)]
    assert planner.passed == [(request, STRETCHES)]
    assert planner.loading == [(request, 30)]
    # The next step has nothing to do with it.
    assert (planner.passing(request), step(planner, r=1).loads, planner.passed) == ((), (), [])


def test_a_step_with_less_room_computes_less_and_the_next_goes_on_from_there() -> None:
    planner, request = arrived()
    assert planner.make_room([request], 12, 9) == Room(10, 1)
    assert reach(planner, request) == 25
    request.num_computed_tokens = 25
    assert planner.cut(request, 25, PROMPT) == 7
    assert len(step(planner, r=7).loads) == 1
    request.num_computed_tokens = 32
    assert planner.make_room([request], 12, 9) == Room()
    assert planner.jump([request]) == [request]
    assert (request.num_computed_tokens, planner.passing(request)) == (47, ())


def test_two_requests_share_the_room_of_a_step() -> None:
    planner = made()
    requests = [Request(name, images=IMAGES) for name in ("one", "two")]
    for request in requests:
        planner.arrive(request, nothing_cached)
    planner.told(Report({ask.hold: (1, 0) for ask in step(planner).asks}))
    assert planner.make_room(requests, 30, 3) == Room(30, 3)
    assert [reach(planner, request) for request in requests] == [47, 25]
    # A step that was given none has none left over from the one before.
    planner.make_room([], 30, 3)
    assert reach(planner, requests[0]) == 0


def test_a_running_request_that_gets_no_turn_or_loses_its_blocks_computes_nothing() -> None:
    planner, request = arrived()
    assert reach(planner, request) == 0

    def moved() -> list[Request]:
        request.num_computed_tokens = 4
        planner.make_room([request], 100, 9)
        assert planner.jump([request]) == [request]
        assert (request.num_computed_tokens, planner.passing(request)) == (47, (Stretch(4, 10), STRETCHES[1]))
        return [request]

    planner.settle(moved())
    assert (request.num_computed_tokens, planner.passing(request)) == (4, ())
    again = moved()
    planner.preempted(request)
    request.num_computed_tokens = 0
    planner.settle(again)
    assert (request.num_computed_tokens, planner.passing(request)) == (0, ())
    assert step(planner, other=1) == Plan(ended=("r",))
    assert planner.passed == []


def test_a_request_that_found_no_room_for_its_images_goes_on_image_by_image() -> None:
    planner, request = arrived()
    planner.make_room([request], 100, 9)
    assert reach(planner, request) == 47
    planner.keep_apart(request)
    assert planner.make_room([request], 100, 9) == Room()
    assert (reach(planner, request), planner.passing(request)) == (0, ())


def test_an_image_that_the_pool_lacks_is_kept_from_a_stretch_before_the_first_that_is_loaded() -> None:
    planner, request = arrived("one")
    planner.make_room([request], 100, 9)
    assert reach(planner, request) == 47
    assert planner.passing(request) == (Stretch(0, 32),)
    request.num_computed_tokens = 47
    (capture,) = step(planner, r=3).captures
    assert (capture.name.image, capture.row, capture.span.count, capture.span.blocks) == (
        "one",
        0,
        20,
        tuple(BLOCKS[1:7]),
    )


def test_an_image_that_the_pool_lacks_is_not_kept_from_behind_one_that_is_loaded() -> None:
    planner, request = arrived("two")
    planner.make_room([request], 100, 9)
    assert reach(planner, request) == 25
    request.num_computed_tokens = 25
    assert step(planner, r=25).captures == ()


@dataclass
class Cache:
    """As much of vLLM's encoder cache as is asked here."""

    room: int
    asked: list[int] = field(default_factory=list[int])

    def can_allocate(self, request: Any, index: int, budget: int, others: int) -> bool:
        self.asked.append(others)
        return request.get_num_encoder_embeds(index) + others <= min(self.room, budget)


@dataclass
class Images:
    mm_features: list[Feature]

    def get_num_encoder_embeds(self, index: int) -> int:
        return self.mm_features[index].length


def inputs(room: int) -> EncoderInputs:
    return EncoderInputs(Images([Feature(name, 0) for name in ("a", "b", "a")]), Cache(room), 100)


def test_what_stretches_need_of_the_encoder_is_had_together_or_not_at_all() -> None:
    for room, fits in ((40, True), (39, False)):
        needed = inputs(room)
        needed.add(7, [0], 7, 80, [], [])
        needed.add(3, [], 3, 80, [1], [])
        assert (needed.run, needed.load, needed.again, needed.budget, needed.fit()) == ([0], [1], [], 80, fits)


def test_an_image_in_two_stretches_is_needed_once() -> None:
    needed = inputs(20)
    needed.add(7, [], 7, 100, [0], [])
    needed.add(3, [], 3, 100, [2], [])
    assert (needed.run, needed.load, needed.again, needed.fit()) == ([], [0], [2], True)


def test_a_stretch_that_the_encoder_cuts_short_is_not_computed_with_others() -> None:
    needed = inputs(100)
    needed.add(7, [], 6, 100, [], [])
    assert not needed.fit()
    needed = inputs(0)
    needed.add(7, [], 7, 100, [], [])
    assert needed.fit()
