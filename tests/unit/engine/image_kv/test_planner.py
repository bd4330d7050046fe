"""What a scheduler has its workers do for requests whose images the pool may give or keep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from types import SimpleNamespace
from typing import Any

from engine.base import ImageReuse
from engine.vllm.image_kv.messages import Ask, Plan, Report
from engine.vllm.image_kv.planner import PATIENCE_SECONDS, Planner
from engine.vllm.image_kv.reporting import Reporter

BLOCK_TOKENS, FIRST, TOKENS, PROMPT = 4, 10, 20, 50
BLOCKS = list(range(100, 120))


@dataclass
class Feature:
    identifier: str
    offset: int
    length: int = TOKENS
    modality: str = "image"
    data: Any = None

    @property
    def mm_position(self) -> Any:
        return SimpleNamespace(offset=self.offset, length=self.length, get_num_embeds=lambda: self.length)


def hashes(request: Any) -> list[bytes]:
    """Those of full blocks that the request has no hash of yet: each chains from the one before."""
    made = list(request.block_hashes)
    while len(made) < PROMPT // BLOCK_TOKENS:
        before = made[-1] if made else (request.cache_salt or "").encode()
        made.append(before[-8:] + str(len(made)).encode())
    return made[len(request.block_hashes) :]


@dataclass
class Request:
    """As much of vLLM's as is asked of one."""

    request_id: str
    ratio: float | None = 0.25
    images: tuple[tuple[str, int], ...] = (("image", FIRST),)
    num_computed_tokens: int = 0
    cache_salt: str | None = "tenant"
    block_hashes: list[bytes] = field(default_factory=list[bytes])
    _block_hasher: Callable[[Any], list[bytes]] = hashes
    num_prompt_tokens: int = PROMPT
    prompt_embeds: Any = None
    lora_request: Any = None
    pooling_params: Any = None
    prompt_logprobs: int | None = None
    resumable: bool = False
    prefill_stats: Any = field(default_factory=SimpleNamespace)

    def __post_init__(self) -> None:
        self.update_block_hashes()

    def update_block_hashes(self) -> None:
        self.block_hashes.extend(self._block_hasher(self))

    @property
    def mm_features(self) -> list[Feature]:
        return [Feature(name, first) for name, first in self.images]

    @property
    def sampling_params(self) -> Any:
        return SimpleNamespace(prompt_logprobs=self.prompt_logprobs)

    @property
    def kv_transfer_params(self) -> Any:
        asked = {"mode": "position_independent", "ratio": self.ratio}
        return None if self.ratio is None else {"stillframe": asked}


def nothing_cached(_: Any) -> int:
    return 0


def step(planner: Planner, **computed: int) -> Plan:
    return planner.plan(computed, lambda _: BLOCKS)


def made(workers: int = 1, clock: Callable[[], float] = lambda: 0.0) -> Planner:
    return Planner(BLOCK_TOKENS, None, workers, Reporter(), clock)


def reach(
    planner: Planner, request: Request, computed: int = 0, lookup: Callable[[Any], int] = nothing_cached
) -> int | None:
    """As the scheduler asks when it would admit a request."""
    planner.admit(request, lookup)
    return planner.reach(request, computed)


def held(planner: Planner, request: Request) -> None:
    """The request arrives, and all that it asks for is there."""
    planner.arrive(request, nothing_cached)
    planner.told(Report({ask.hold: (1, 0) for ask in step(planner).asks}))
    assert reach(planner, request) is not None


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
