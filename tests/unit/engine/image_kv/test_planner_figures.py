"""What is told of a request is what came of it, and not what was planned."""

from __future__ import annotations

from engine.base import ImageReuse
from engine.vllm.image_kv.planner import Planner
from engine.vllm.image_kv.reporting import Reporter
from tests.unit.engine.image_kv.planned import (
    BLOCK_TOKENS,
    FIRST,
    TOKENS,
    Request,
    held,
    made,
    reach,
    step,
)


class Heard(Reporter):
    """Keeps what it is told of requests."""

    def __init__(self) -> None:
        super().__init__()
        self.reuses: list[ImageReuse] = []

    def request(self, reuse: ImageReuse) -> None:
        self.reuses.append(reuse)


def told(*steps: tuple[int, int], preempted_before: int | None = None) -> tuple[int, int, int]:
    """Of a request that runs these steps, from a token on so many: places that were loaded, tokens loaded and
    computed."""
    heard = Heard()
    planner, request = Planner(BLOCK_TOKENS, None, 1, heard), Request("r", images=(("image", FIRST), ("other", 40)))
    held(planner, request)
    for number, (start, count) in enumerate(steps):
        if number == preempted_before:
            planner.preempted(request)
            request.num_computed_tokens = 0
            assert reach(planner, request) is not None
        request.num_computed_tokens = start
        planner.jump([request])
        step(planner, r=count)
    planner.finished(request)
    (reuse,) = heard.reuses
    return reuse.hits, reuse.loaded_tokens, reuse.computed_tokens


def test_what_came_of_a_request_is_what_was_loaded_for_it_and_not_what_was_planned() -> None:
    # It leaves before anything is loaded: at once, or when its share of the first image is computed.
    assert told() == (0, 0, 0)
    assert told((0, FIRST + 5)) == (0, 0, 0)
    assert told((0, FIRST + 5), (FIRST + 5, 15)) == (1, 15, 5)
    # The first image is read from the prefix cache, all of it, or all but its last four tokens.
    assert told((FIRST + TOKENS, 12)) == (0, 0, 0)
    assert told((FIRST + 16, 14)) == (1, 4, 0)
    # Computed and loaded again after its blocks were lost.
    assert told((0, FIRST + 5), (FIRST + 5, 15), (0, FIRST + 5), preempted_before=2) == (0, 0, 0)
    again = ((0, FIRST + 5), (FIRST + 5, 15))
    assert told(*again, *again, preempted_before=2) == (1, 15, 5)


def test_what_came_of_a_request_stays_as_it_was_when_the_usage_was_told() -> None:
    heard = Heard()
    planner, request = Planner(BLOCK_TOKENS, None, 1, heard), Request("r")
    held(planner, request)
    for start, count in ((0, FIRST + 5), (FIRST + 5, 20)):
        request.num_computed_tokens = start
        planner.jump([request])
        step(planner, r=count)
    assert planner.loading == [(request, 15)]
    request.prefill_stats = None
    # Its blocks are read again, or they have gone and it is loaded again.
    for read in (48, 0):
        planner.preempted(request)
        request.num_computed_tokens = 0
        assert reach(planner, request, read) == 0
        request.num_computed_tokens = FIRST + 5 if read == 0 else read
        planner.jump([request])
        step(planner, r=2)
    planner.finished(request)
    (reuse,) = heard.reuses
    assert (reuse.hits, reuse.loaded_tokens, reuse.computed_tokens, reuse.reread_tokens) == (1, 15, 5, 0)


def test_a_request_that_begins_again_before_its_usage_is_told_has_nothing_loaded_in_it() -> None:
    planner, request = made(), Request("r")
    held(planner, request)
    request.num_computed_tokens = FIRST + 5
    planner.jump([request])
    step(planner, r=20)
    assert planner.loading == [(request, 15)]
    planner.preempted(request)
    step(planner)
    assert planner.loading == [(request, 0)]
    step(planner)
    assert planner.loading == []
