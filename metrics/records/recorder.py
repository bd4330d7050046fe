"""Makes a turn's record when it has ended, and hands it to all that count by it.

A record is made in two steps. What is known at once is counted at once. The rest is made a moment later, beside the
requests' path: some turns at a time, without a task for each. Where something was lost, what the engine tells behind
its answer (why less was read, what the encoder did) is waited for, and only then the record is kept.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from context.conversations import Begun
from context.errors import place_of
from context.plan import Actor
from context.separation import EXACT, Allowance
from context.tenancy import Tenant
from metrics.attribution import Attributing, Attributor, Cache
from metrics.attribution.unseen import are_unseen
from metrics.engine_log import EngineLog
from metrics.exports.base import NoExporter, TurnExporter
from metrics.kv_mirror import Owner
from metrics.prometheus import GatewayMetrics
from metrics.records.made import Ended, attributed, planned, record_of
from metrics.records.prices import Prices
from metrics.records.writer import RecordWriter
from metrics.usage import with_loaded

_log = logging.getLogger(__name__)
# Of so many it is known where the engine keeps their blocks.
_MOST_TURNS = 20_000
# By the end of a request its encoder events are mostly there.
_LATE_ENCODER_SECONDS = 0.1
_LOOK_EVERY_SECONDS = 0.02
# So many are made before others have their turn on the loop: half a millisecond.
_AT_ONCE = 8
# Of those that are waited for so many are looked at: where many wait, each look would else cost as much as they are.
_LOOKED_AT_ONCE = 128


@dataclass(slots=True)
class _Late:
    """A turn whose record is to be made."""

    turn: Ended
    begun: Begun
    planned: dict[str, Any]
    attributing: Attributing | None
    until: float
    encoder_until: float


class Recorder:
    """Records the turns of one gateway. Called from one event loop.

    Args:
        metrics: counts them.
        engine_log: what the encoder did, by request.
        prices: what tokens cost.

    `writer`, `attributor` and `exporter` may come later: without them nothing is kept, attributed or exported.
    `has_encoder_events` says that the engine tells what its encoder does; `measure` estimates text and visual tokens of
    a message for a model, so that images are missed that were not shown to it. What the engine tells behind its answer
    is waited for no longer than `late_seconds`.
    """

    def __init__(self, metrics: GatewayMetrics, engine_log: EngineLog, prices: Prices | None = None) -> None:
        self.writer: RecordWriter | None = None
        self.attributor: Attributor | None = None
        self.exporter: TurnExporter = NoExporter()
        self.has_encoder_events = False
        self.measure: Callable[[str, Mapping[str, Any]], tuple[int, int]] | None = None
        # With what the writer waits, a second: so much a killed process loses.
        self.late_seconds = 0.4
        self._metrics, self._engine_log, self._prices = metrics, engine_log, prices or Prices()
        self._ended: deque[tuple[Ended, Begun]] = deque()
        self._late: deque[_Late] = deque()
        self._next: asyncio.Handle | None = None
        self._look: asyncio.Handle | None = None
        # By the ledger's number of a turn; None for one that the engine left among exact ones.
        self._apart: OrderedDict[int, Allowance | None] = OrderedDict()
        self._last_id = 0
        self._told_unseen = False

    def next_id(self) -> int:
        """An id for the record of a request that comes now; none is given twice."""
        self._last_id = max(time.time_ns(), self._last_id + 1)
        return self._last_id

    def was_apart(self, turn: int) -> bool | None:
        """Whether the engine keeps the blocks of a turn, by its number in the ledger, apart from exact ones; None where
        it did not say so, or not yet."""
        return self._apart[turn] is not None if turn in self._apart else None

    def begin(self, request_id: str, tenant: Tenant, conversation: str, model: str) -> None:
        """A request goes to the engine. Called before it does."""
        if self.attributor is not None:
            self.attributor.begin(request_id, Owner(tenant.name, conversation), Cache(tenant.cache_salt, model))

    def ended(self, turn: Ended) -> None:
        """A request has ended: it is counted, and its record kept a moment later. Never waits."""
        self._metrics.count_ended(
            turn.outcome,
            # What was loaded is said behind the answer, and no counter goes back.
            None if turn.allowed else turn.usage,
            stream=turn.stream,
            first_token=turn.first_token_seconds,
            total=turn.total_seconds,
        )
        if turn.begun is None:
            if self.attributor is not None:
                self.attributor.drop(turn.request_id)
            self._keep(turn, {})
            return
        if turn.begun.plan.healed:
            self._metrics.count_healed(one.what for one in turn.begun.plan.healed)
        self._ended.append((turn, turn.begun))
        if self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._go_on)

    def count(self) -> None:
        """Count what others have counted since the last call: records that were lost, and the engine's KV cache."""
        if self.writer is not None:
            self._metrics.count_dropped_records(self.writer.stats().dropped)
        if self.attributor is not None and self.attributor.mirror is not None:
            self._metrics.count_kv(self.attributor.mirror.counts())

    async def close(self) -> None:
        """Keep what is waited for. Called before the writer and the exporter are closed."""
        while self._ended or self._late:  # noqa: ASYNC110 - the last that is waited for is a moment
            await asyncio.sleep(_LOOK_EVERY_SECONDS)

    def _go_on(self) -> None:
        """Make the records of some turns that have ended; those of which all is known are kept."""
        loop, self._next = asyncio.get_running_loop(), None
        now = loop.time()
        try:
            for _ in range(min(_AT_ONCE, len(self._ended))):
                with _survived():
                    late = self._opened(*self._ended.popleft(), now)
                    if self._is_settled(late, now):
                        self._complete(late)
                    else:
                        self._late.append(late)
        finally:
            # Whatever became of this one.
            if self._ended:
                self._next = loop.call_soon(self._go_on)
            if self._late and self._look is None:
                self._look = loop.call_later(_LOOK_EVERY_SECONDS, self._look_again)

    def _look_again(self) -> None:
        """Keep the records of which all is known by now, or that are waited for no longer."""
        loop, made = asyncio.get_running_loop(), 0
        now = loop.time()
        try:
            for _ in range(min(_LOOKED_AT_ONCE, len(self._late))):
                if made == _AT_ONCE:
                    break
                late = self._late.popleft()
                with _survived():
                    if self._is_settled(late, now):
                        made += 1
                        self._complete(late)
                    else:
                        self._late.append(late)
        finally:
            again = 0.0 if made else _LOOK_EVERY_SECONDS
            self._look = loop.call_later(again, self._look_again) if self._late else None

    def _opened(self, turn: Ended, begun: Begun, now: float) -> _Late:
        """In the order of their ends: a turn before the next one of its conversation."""
        attributing = None
        if self.attributor is not None:
            attributing = self.attributor.end(
                turn.request_id,
                begun.plan,
                turn.usage,
                turn=None if begun.turn is None else begun.turn.id,
                parent=begun.parent,
                replied=turn.answered,
                sent_before=turn.before,
                estimate=turn.estimate,
            )
        found = planned(begun, turn.before)
        return _Late(turn, begun, found, attributing, now + self.late_seconds, now + _LATE_ENCODER_SECONDS)

    def _is_settled(self, late: _Late, now: float) -> bool:
        if late.turn.outcome != "completed":
            # Of a turn that was not completed the engine did not come to say anything.
            return True
        if late.attributing is not None and not late.attributing.is_settled and now < late.until:
            return False
        if late.turn.allowed and now < late.until and self._engine_log.reuse(late.turn.request_id) is None:
            return False
        if not self.has_encoder_events or not late.planned["images"] or now >= late.encoder_until:
            return True
        return self._engine_log.finished(late.turn.request_id) is not None

    def _complete(self, late: _Late) -> None:
        turn, found = late.turn, late.planned
        if turn.outcome == "completed":
            before_is_known, before = self._allowed_before(late.begun)
            was_exact = before_is_known and before.reuse is None
            turn, parted_by = self._with_loaded(turn), self._parted_by(turn, late.begun)
            if turn.allowed is not None:
                self._metrics.count_usage(turn.usage)
            if late.attributing is not None:
                loaded = turn.usage.loaded_tokens or 0
                found |= attributed(late.attributing.result(loaded, parted_by, was_exact=was_exact), turn, late.begun)
            if found["images"] and self._are_unseen(late):
                found["unseen_images"] = True
                self._tell_unseen()
            if found["images"]:
                counts = self._engine_log.finished(turn.request_id) if self.has_encoder_events else None
                if counts is not None:
                    found |= {"encoder_runs": counts.runs, "encoder_hits": counts.hits}
        self._keep(turn, found)

    def _with_loaded(self, turn: Ended) -> Ended:
        """A turn with what was loaded for it, where the engine has said so."""
        reuse = None if turn.allowed is None else self._engine_log.reuse(turn.request_id)
        return turn if reuse is None else replace(turn, usage=with_loaded(turn.usage, reuse.loaded_tokens))

    def _parted_by(self, turn: Ended, begun: Begun) -> Actor | None:
        """Whose doing it is that the engine keeps a turn apart from the one before; None where it does not, or has not
        said so. From here on it is known of the turn itself."""
        is_known, before = self._allowed_before(begun)
        allowed, now = turn.allowed or EXACT, EXACT
        if turn.allowed is not None:
            reuse = self._engine_log.reuse(turn.request_id)
            if reuse is None:
                return None
            now = allowed if reuse.hits or reuse.reread_tokens else EXACT
        if begun.turn is not None:
            self._apart[begun.turn.id] = None if now.reuse is None else now
            if len(self._apart) > _MOST_TURNS:
                self._apart.popitem(last=False)
        if now.reuse is None and before.reuse is not None and before.reuse == allowed.reuse:
            # It would have read the blocks that it kept apart, or loaded the images again: it has neither any more.
            return "engine" if is_known else None
        return None if now.reuse == before.reuse else allowed.mover(before)

    def _allowed_before(self, begun: Begun) -> tuple[bool, Allowance]:
        """What the engine keeps the turn before apart for, and whether the engine has said so; else what the ledger has
        that turn allow."""
        if begun.parent in self._apart:
            return True, self._apart[begun.parent] or EXACT
        return begun.allowed_before.reuse is None, begun.allowed_before

    def _are_unseen(self, late: _Late) -> bool:
        turn, measure = late.turn, self.measure
        if measure is None or late.attributing is None or self.attributor is None:
            return turn.usage.visual_tokens == 0
        return are_unseen(
            late.begun.plan,
            late.attributing.before,
            turn.usage,
            lambda wire: measure(turn.model, wire),
            self.attributor.template_extends,
        )

    def _tell_unseen(self) -> None:
        if self._told_unseen:
            return
        self._told_unseen = True
        _log.warning(
            "engine: it counted fewer prompt tokens than the images of a request take, so it cannot have shown them "
            "all to the model; see whether it reads their format (images.as_png rewrites one) and their place"
        )

    def _keep(self, turn: Ended, found: Mapping[str, Any]) -> None:
        record = record_of(turn, self._prices.cost(turn.model, turn.usage), found)
        self._metrics.count_attributed(record)
        if self.writer is not None:
            self.writer.put(record)
        self.exporter.put(record, turn.traceparent)


@contextmanager
def _survived() -> Generator[None]:
    """One turn's record that cannot be made costs that record alone. Where it broke is logged, and no more of it."""
    try:
        yield
    except Exception as error:
        _log.error("a turn's record could not be made, because of a fault at %s", place_of(error))
