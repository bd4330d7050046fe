"""The scheduler's side of the pool: who waits for what, what is loaded, where a chunk ends, what is captured.

    arrives     images that no prefix covers are asked for; the request waits for the answers
    is admitted salted or exact is decided; what it has reached is loaded with its first chunk
    runs        chunks end where the next jump begins; a step that stands there loads and goes on behind it
    ends        holds are let go

It knows requests and tokens, no tensors; what it wants done goes out as the step's `Plan`.

Source: vLLM 0.32, vllm/v1/core/sched/scheduler.py::Scheduler.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from engine.vllm.image_kv.jumps import Jump, chunk, landing
from engine.vllm.image_kv.messages import Ask, Capture, ImageName, Load, Plan, Report, Span
from engine.vllm.image_kv.prompt_images import PromptImage, images_of, wanted_ratio
from engine.vllm.image_kv.reporting import Reporter
from engine.vllm.image_kv.tracked import NEVER, Lookup, Tracked, jumps_of, look

# A disk that does not answer must not keep a request from being computed.
PATIENCE_SECONDS = 5.0


class Planner:
    """All requests of one scheduler.

    Args:
        block_tokens: of a block of the paged cache, which is a block of the hashes, too.
        merge: as `images_of` takes it.
        workers: how many answer each question.
        reporter: who is told what came of it.
        clock: in seconds.
    """

    def __init__(
        self,
        block_tokens: int,
        merge: int | None,
        workers: int,
        reporter: Reporter,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._block_tokens, self._merge, self._workers = block_tokens, merge, workers
        self._reporter, self._clock = reporter, clock
        self._tracked: dict[str, Tracked] = {}
        self._numbers = itertools.count()
        self._asked: dict[int, tuple[str, ImageName]] = {}
        self._answers: dict[int, tuple[int, int]] = {}
        self._asks: list[Ask] = []
        self._releases: list[int] = []
        self._ended: list[str] = []
        self._clear = False
        self.loading: list[tuple[Any, int]] = []
        """Requests that the last plan loads for, with all tokens that were loaded for each."""

    def arrive(self, request: Any, lookup: Lookup) -> None:
        """A request is new."""
        images = images_of(request, self._merge)
        if not images:
            return
        tracked = self._tracked[request.request_id] = Tracked(request, images, wanted_ratio(request))
        if tracked.ratio is not None:
            chains = look(request, images, tracked.ratio, self._block_tokens, lookup)
            chains.leave()
            self._ask(tracked, chains.best)

    def admit(self, request: Any, lookup: Lookup) -> None:
        """Decide, before the prefix cache is asked, whether a request lives among exact or approximate blocks.

        Nothing is decided while an answer is waited for, or where blocks have gone on which an image stood.
        """
        tracked = self._tracked.get(request.request_id)
        if tracked is None or tracked.ratio is None or tracked.decided or not self._is_answered(tracked):
            return
        chains = look(request, tracked.images, tracked.ratio, self._block_tokens, lookup)
        jumps = jumps_of(tracked, request.num_prompt_tokens)
        if self._ask(tracked, chains.best):
            chains.leave()
        elif chains.approximate > chains.exact or any(jump.end > chains.approximate for jump in jumps):
            tracked.decided, tracked.salted, tracked.jumps = True, chains.first, jumps
        else:
            tracked.decided, tracked.jumps = True, ()
            chains.leave()

    def reach(self, request: Any, computed: int) -> int | None:
        """Of a request that is about to be admitted with `computed` tokens read: how many more are loaded at once.

        None: it has to wait for what it has asked for. One whose answers do not come goes on without them.
        """
        tracked = self._tracked.get(request.request_id)
        if tracked is None or tracked.ratio is None:
            return 0
        if not self._is_answered(tracked) or not tracked.decided:
            return None
        if tracked.jumps or tracked.salted is not None:
            # Of a preempted request blocks may have gone that it had read, with images among them.
            if self._ask(tracked, computed):
                return None
            tracked.jumps = jumps_of(tracked, request.num_prompt_tokens)
        salted = NEVER if tracked.salted is None else tracked.salted * self._block_tokens
        tracked.reread_tokens = max(0, computed - salted)
        if computed > salted:
            tracked.exact_until = min(tracked.exact_until, salted)
        target, tracked.pending = landing(tracked.jumps, computed)
        tracked.before = None
        return target - computed

    def forget_reach(self, request: Any) -> None:
        """A request was not admitted, or is admitted with nothing that is loaded at once."""
        if (tracked := self._tracked.get(request.request_id)) is not None:
            tracked.pending = []

    def jump(self, running: Iterable[Any]) -> list[Any]:
        """Before a step: move running requests over what is loaded for them. Returns those that were moved."""
        moved: list[Any] = []
        for request in running:
            tracked = self._tracked.get(request.request_id)
            if tracked is None or not tracked.jumps or tracked.jumps[-1].end <= request.num_computed_tokens:
                continue
            target, loads = landing(tracked.jumps, request.num_computed_tokens)
            if loads:
                tracked.before, tracked.pending = request.num_computed_tokens, loads
                request.num_computed_tokens = target
                moved.append(request)
        return moved

    def settle(self, moved: Iterable[Any]) -> None:
        """After a step: requests that were moved and got no turn go back, for nothing was loaded for them."""
        for request in moved:
            tracked = self._tracked.get(request.request_id)
            if tracked is not None and tracked.pending and tracked.before is not None:
                request.num_computed_tokens, tracked.pending, tracked.before = tracked.before, [], None

    def cut(self, request: Any, computed: int, wanted: int) -> int:
        """How many of the tokens a step may compute."""
        tracked = self._tracked.get(request.request_id)
        return wanted if tracked is None or not tracked.jumps else chunk(tracked.jumps, computed, wanted)

    def preempted(self, request: Any) -> None:
        """A request lost its blocks and starts again later. It keeps its holds."""
        if (tracked := self._tracked.get(request.request_id)) is not None:
            tracked.pending, tracked.before = [], None
            tracked.loaded_tokens = 0
            tracked.decided = tracked.salted is not None
            self._ended.append(request.request_id)

    def finished(self, request: Any) -> None:
        """A request is over, however it ended."""
        tracked = self._tracked.pop(request.request_id, None)
        if tracked is None:
            return
        for hold in tracked.holds.values():
            self._let_go(hold)
        self._ended.append(request.request_id)
        if tracked.ratio is not None:
            self._reporter.request(tracked.reuse(request.request_id))

    def clear(self) -> None:
        """Have the pool emptied."""
        self._clear = True

    def plan(self, scheduled: Mapping[str, int], blocks_of: Callable[[str], Sequence[int]]) -> Plan:
        """What the worker does with a step.

        Args:
            scheduled: how many tokens each request of the step computes, by its id.
            blocks_of: a request's blocks.
        """
        loads: list[Load] = []
        captures: list[Capture] = []
        self.loading = []
        for request_id, count in scheduled.items():
            tracked = self._tracked.get(request_id)
            if tracked is None or not (tracked.pending or tracked.images[-1].end > tracked.request.num_computed_tokens):
                continue
            blocks = blocks_of(request_id)
            loads += self._loads(tracked, blocks)
            captures += self._captures(tracked, blocks, count)
        asks, releases, ended = tuple(self._asks), tuple(self._releases), tuple(self._ended)
        plan = Plan(self._clear, asks, releases, ended, tuple(loads), tuple(captures))
        self._clear = False
        self._releases, self._asks, self._ended = [], [], []
        return plan

    def told(self, report: Report) -> None:
        """What the workers say of a step."""
        for hold, (yes, no) in report.answers.items():
            if hold not in self._asked:
                # Let go before it was answered.
                continue
            before = self._answers.get(hold, (0, 0))
            yes, no = before[0] + yes, before[1] + no
            self._answers[hold] = (yes, no)
            if yes + no >= self._workers:
                self._answered(hold, yes == self._workers)
        if report.stats is not None:
            self._reporter.pool(len(self._tracked), len(self._asked), report.capturing, report.stats)

    def held_images(self, request_id: str) -> frozenset[str]:
        """The engine's identifiers of a request's images that are held for it until it is over."""
        tracked = self._tracked.get(request_id)
        return frozenset(name.image for name in tracked.held) if tracked is not None else frozenset()

    def hold_of(self, image: str) -> int | None:
        """A hold of an image by the engine's identifier, that every worker has; None where there is none."""
        return next(
            (tracked.holds[name] for tracked in self._tracked.values() for name in tracked.held if name.image == image),
            None,
        )

    def _loads(self, tracked: Tracked, blocks: Sequence[int]) -> list[Load]:
        loads: list[Load] = []
        for jump in tracked.pending:
            image = tracked.image_at(jump.image)
            span = Span.of(list(blocks), self._block_tokens, jump.start, jump.end)
            loads.append(Load(tracked.holds[image.name], jump.start - image.first, span, image.position))
            tracked.exact_until = min(tracked.exact_until, jump.start)
            tracked.loaded_tokens += jump.end - jump.start
        if loads:
            self.loading.append((tracked.request, tracked.loaded_tokens))
        tracked.pending, tracked.before = [], None
        return loads

    def _captures(self, tracked: Tracked, blocks: Sequence[int], count: int) -> list[Capture]:
        request, captures = tracked.request, list[Capture]()
        start = request.num_computed_tokens
        for image in tracked.images:
            first, end = max(start, image.first), min(start + count, image.end)
            if first >= end or image.end > tracked.exact_until or _is_jumped(image, tracked.jumps):
                continue
            span = Span.of(list(blocks), self._block_tokens, first, end)
            row, name = first - image.first, image.name
            captures.append(Capture(request.request_id, image.first, name, image.tokens, image.position, row, span))
        return captures

    def _ask(self, tracked: Tracked, covered: int) -> bool:
        """Ask for what is not known of images behind `covered` tokens; whether there was any."""
        unknown = tracked.unknown(covered)
        for image in unknown:
            if image.name not in tracked.holds:
                hold = tracked.holds[image.name] = next(self._numbers)
                self._asked[hold] = (tracked.request.request_id, image.name)
                self._asks.append(Ask(hold, image.name))
                tracked.unanswered.add(hold)
        tracked.asked_seconds = self._clock() if unknown else tracked.asked_seconds
        return bool(unknown)

    def _is_answered(self, tracked: Tracked) -> bool:
        """Whether no answer is waited for any more."""
        if tracked.unanswered and self._clock() - tracked.asked_seconds >= PATIENCE_SECONDS:
            for hold in list(tracked.unanswered):
                self._refuse(tracked, hold)
        return not tracked.unanswered

    def _answered(self, hold: int, everywhere: bool) -> None:
        del self._answers[hold]
        request_id, name = self._asked[hold]
        tracked = self._tracked[request_id]
        if everywhere:
            tracked.unanswered.discard(hold)
            tracked.held.add(name)
        else:
            self._refuse(tracked, hold)

    def _refuse(self, tracked: Tracked, hold: int) -> None:
        """Go on without an image: where it is held it is let go."""
        tracked.unanswered.discard(hold)
        name = self._asked[hold][1]
        tracked.missed.add(name)
        tracked.holds.pop(name)
        self._let_go(hold)

    def _let_go(self, hold: int) -> None:
        del self._asked[hold]
        self._answers.pop(hold, None)
        self._releases.append(hold)


def _is_jumped(image: PromptImage, jumps: Sequence[Jump]) -> bool:
    return any(jump.image == image.first for jump in jumps)
