"""The scheduler's side of the pool: who waits for what, what is loaded, where a chunk ends, what is captured.

    arrives     images that no prefix covers are asked for; the request waits for the answers
    is admitted salted or exact is decided; what it has reached is loaded with its first chunk
    runs        chunks end where the next jump begins; a step that stands there loads and goes on behind it. With room
                in the step it goes on to a later jump: what stands before that is computed in the same step
    ends        holds are let go

It knows requests and tokens, no tensors; what it wants done goes out as the step's `Plan`.

Source: vLLM 0.32, vllm/v1/core/sched/scheduler.py::Scheduler.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from engine.vllm.image_kv.jumps import Stretch, chunk
from engine.vllm.image_kv.layers import LayerProfile
from engine.vllm.image_kv.messages import Ask, Capture, ImageName, Load, Plan, Report
from engine.vllm.image_kv.prompt_images import images_of, wanted_ratio, wants_profile
from engine.vllm.image_kv.reporting import Reporter
from engine.vllm.image_kv.step import captures_of, loads_of
from engine.vllm.image_kv.tracked import NEVER, Lookup, Room, Tracked, jumps_of, look

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
        profile: how much each layer computes for requests that want it so; None where it is the same in all.
    """

    def __init__(
        self,
        block_tokens: int,
        merge: int | None,
        workers: int,
        reporter: Reporter,
        clock: Callable[[], float] = time.monotonic,
        profile: LayerProfile | None = None,
    ) -> None:
        self._block_tokens, self._merge, self._workers = block_tokens, merge, workers
        self._reporter, self._clock, self._profile = reporter, clock, profile
        self._tracked: dict[str, Tracked] = {}
        self._numbers = itertools.count()
        self._asked: dict[int, tuple[str, ImageName]] = {}
        self._answers: dict[int, tuple[int, int]] = {}
        self._asks: list[Ask] = []
        self._releases: list[int] = []
        self._ended: list[str] = []
        self._room = Room()
        self.loading: list[tuple[Any, int]] = []
        """Requests that the last plan loads for, with all tokens that were loaded for each, behind those that begin
        again, with none."""
        self._begun_again: list[Any] = []
        self.passed: list[tuple[Any, Sequence[Stretch]]] = []
        """Requests of the last plan with what it computes of each beside the tokens that vLLM knows of."""

    def arrive(self, request: Any, lookup: Lookup) -> None:
        """A request is new."""
        images = images_of(request, self._merge)
        if not images:
            return
        tracked = self._tracked[request.request_id] = Tracked(request, images, wanted_ratio(request))
        if tracked.ratio is not None:
            if self._profile is not None and wants_profile(request):
                tracked.by_layer = self._profile.at(tracked.ratio)
            chains = look(tracked, self._block_tokens, lookup)
            chains.leave()
            self._ask(tracked, chains.best)

    def admit(self, request: Any, lookup: Lookup) -> None:
        """Decide, before the prefix cache is asked, whether a request lives among exact or approximate blocks.

        Nothing is decided while an answer is waited for, or where blocks have gone on which an image stood.
        """
        tracked = self._tracked.get(request.request_id)
        if tracked is None or tracked.ratio is None or tracked.decided or not self._is_answered(tracked):
            return
        chains = look(tracked, self._block_tokens, lookup)
        jumps = jumps_of(tracked, request.num_prompt_tokens, chains.salted)
        if self._ask(tracked, chains.best):
            chains.leave()
        elif chains.approximate > chains.exact or any(jump.end > chains.approximate for jump in jumps):
            tracked.decided, tracked.salted, tracked.jumps = True, chains.salted, jumps
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
            # Blocks may have gone that it had read or would have, with images among them. Those in front of the first
            # approximate block are computed again: it was decided, and exact requests find what is written there.
            if self._ask(tracked, computed):
                return None
            tracked.jumps = jumps_of(tracked, request.num_prompt_tokens, tracked.salted)
        salted = NEVER if tracked.salted is None else tracked.salted
        tracked.reread(max(0, computed - salted))
        if computed > salted:
            tracked.exact_until = min(tracked.exact_until, salted)
        return tracked.go(computed, self._room) - computed

    def forget_reach(self, request: Any) -> None:
        """A request was not admitted, or is admitted with nothing that is loaded at once."""
        if (tracked := self._tracked.get(request.request_id)) is not None:
            tracked.stay()

    def make_room(self, requests: Iterable[Any], tokens: int, stretches: int) -> Room:
        """What a step is to leave free of what it may compute, for requests of which it can compute several stretches.

        Args:
            requests: those that run or may be admitted.
            tokens: as many at most.
            stretches: as many at most.
        """
        tracked = (self._tracked.get(request.request_id) for request in requests)
        wishes = [stretch for one in tracked if one is not None for stretch in one.wish(tokens, stretches)]
        self._room = Room(min(tokens, sum(wish.tokens for wish in wishes)), min(stretches, len(wishes)))
        return Room(self._room.tokens, self._room.stretches)

    def jump(self, running: Iterable[Any]) -> list[Any]:
        """Before a step: move running requests over what is loaded for them. Returns those that were moved."""
        moved: list[Any] = []
        for request in running:
            tracked = self._tracked.get(request.request_id)
            if tracked is None or not tracked.jumps or tracked.jumps[-1].end <= request.num_computed_tokens:
                continue
            before = request.num_computed_tokens
            request.num_computed_tokens = tracked.go(before, self._room, before)
            if request.num_computed_tokens > before:
                moved.append(request)
        return moved

    def settle(self, moved: Iterable[Any]) -> None:
        """After a step: requests that were moved and got no turn go back, for nothing was loaded for them."""
        for request in moved:
            tracked = self._tracked.get(request.request_id)
            if tracked is not None and tracked.before is not None:
                request.num_computed_tokens = tracked.before
                tracked.stay()

    def passing(self, request: Any) -> Sequence[Stretch]:
        """What the step that is being scheduled computes of a request beside the tokens that vLLM knows of."""
        tracked = self._tracked.get(request.request_id)
        return () if tracked is None else tracked.passed

    def keep_apart(self, request: Any) -> None:
        """A step had no room for several stretches of a request: from now on each has a step of its own."""
        self._tracked[request.request_id].apart = True

    def cut(self, request: Any, computed: int, wanted: int) -> int:
        """How many of the tokens a step may compute."""
        tracked = self._tracked.get(request.request_id)
        return wanted if tracked is None or not tracked.jumps else chunk(tracked.jumps, computed, wanted)

    def preempted(self, request: Any) -> None:
        """A request lost its blocks and starts again later. It keeps its holds."""
        if (tracked := self._tracked.get(request.request_id)) is not None:
            tracked.stay()
            if tracked.loaded:
                self._begun_again.append(request)
            tracked.start_again()
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

    def plan(self, scheduled: Mapping[str, int], blocks_of: Callable[[str], Sequence[int]]) -> Plan:
        """What the worker does with a step.

        Args:
            scheduled: how many tokens each request of the step computes, by its id.
            blocks_of: a request's blocks.
        """
        loads: list[Load] = []
        captures: list[Capture] = []
        self.loading, self.passed = [(request, 0) for request in self._begun_again], []
        self._begun_again = []
        for request_id, count in scheduled.items():
            tracked = self._tracked.get(request_id)
            if tracked is None:
                continue
            start = tracked.request.num_computed_tokens
            if not (tracked.pending or tracked.passed or tracked.images[-1].end > start):
                continue
            blocks, stretches = blocks_of(request_id), (*tracked.passed, Stretch(start, start + count))
            loaded = loads_of(tracked, stretches, blocks, self._block_tokens)
            captures += captures_of(tracked, stretches, blocks, self._block_tokens)
            if loaded:
                loads += loaded
                self.loading.append((tracked.request, tracked.loaded))
            if tracked.passed:
                self.passed.append((tracked.request, tracked.passed))
            tracked.stay()
        asks, releases, ended = tuple(self._asks), tuple(self._releases), tuple(self._ended)
        plan = Plan(asks, releases, ended, tuple(loads), tuple(captures))
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
