"""Makes a turn's record when it has ended, and hands it to all that count by it.

A record is made in two steps. What is known at once is counted at once. What the engine tells a moment later (why less
was read, what the encoder did) is waited for beside the requests' path, and only then the record is kept.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from context.conversations import Begun
from context.plan import SentMessage
from context.tenancy import Tenant
from context.transcript import ImagePart
from metrics.attribution import Attribution, Attributor, Cache
from metrics.encoder_log import EncoderLog
from metrics.exports.base import NoExporter, TurnExporter
from metrics.kv_mirror import Owner
from metrics.prometheus import GatewayMetrics
from metrics.records.prices import Prices
from metrics.records.record import Outcome, TurnRecord
from metrics.records.writer import RecordWriter
from metrics.usage import Usage

# With what the writer waits, a second: so much a killed process loses.
_LATE_SECONDS = 0.4


@dataclass(frozen=True, slots=True)
class Ended:
    """A chat request that has ended.

    Attributes:
        id, request_id: see `TurnRecord`.
        tenant: whose.
        begun: what was planned, accepted or not; None where it was refused before.
        before: what the turn that it goes on from had sent.
        answered: the reply was kept whole.
        estimate: prompt tokens of a message as it is sent.
        traceparent: the client's header of that name.
    """

    id: int
    request_id: str
    tenant: Tenant
    model: str
    policy: str
    policy_version: str
    stream: bool
    outcome: Outcome
    usage: Usage
    begun: Begun | None
    before: Sequence[SentMessage]
    answered: bool
    first_token_seconds: float | None
    total_seconds: float
    estimate: Callable[[Mapping[str, Any]], int]
    traceparent: str | None = None


class Recorder:
    """Records the turns of one gateway. Called from one event loop.

    Args:
        metrics: counts them.
        encoder_log: what the encoder did, by request.
        prices: what tokens cost.

    `writer`, `attributor` and `exporter` may come later: without them nothing is kept, attributed or exported.
    `has_encoder_events` says that the engine tells what its encoder does.
    """

    def __init__(self, metrics: GatewayMetrics, encoder_log: EncoderLog, prices: Prices | None = None) -> None:
        self.writer: RecordWriter | None = None
        self.attributor: Attributor | None = None
        self.exporter: TurnExporter = NoExporter()
        self.has_encoder_events = False
        self._metrics, self._encoder_log, self._prices = metrics, encoder_log, prices or Prices()
        self._late: set[asyncio.Task[None]] = set()
        self._last_id = 0

    def next_id(self) -> int:
        """An id for the record of a request that comes now; none is given twice."""
        self._last_id = max(time.time_ns(), self._last_id + 1)
        return self._last_id

    def begin(self, request_id: str, tenant: Tenant, conversation: str, model: str) -> None:
        """A request goes to the engine. Called before it does."""
        if self.attributor is not None:
            self.attributor.begin(request_id, Owner(tenant.name, conversation), Cache(tenant.cache_salt, model))

    def ended(self, turn: Ended) -> None:
        """A request has ended: it is counted, and its record kept a moment later. Never waits."""
        self._metrics.count_ended(
            turn.outcome,
            turn.usage,
            stream=turn.stream,
            first_token=turn.first_token_seconds,
            total=turn.total_seconds,
        )
        if turn.begun is None:
            if self.attributor is not None:
                self.attributor.drop(turn.request_id)
            self._keep(turn, {})
            return
        self._metrics.count_healed(one.what for one in turn.begun.plan.healed)
        task = asyncio.create_task(self._complete(turn, turn.begun), name="stillframe-record")
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def close(self) -> None:
        """Keep what is waited for. Called before the writer and the exporter are closed."""
        if self._late:
            await asyncio.gather(*self._late, return_exceptions=True)

    async def _complete(self, turn: Ended, begun: Begun) -> None:
        """What the engine tells late. The next turn of this conversation is completed after this one began to be."""
        found = _planned(begun, turn.before)
        if self.attributor is not None:
            attribution = await self.attributor.end(
                turn.request_id,
                begun.plan,
                turn.usage,
                turn=None if begun.turn is None else begun.turn.id,
                parent=begun.parent,
                replied=turn.answered,
                estimate=turn.estimate,
                settle_seconds=_LATE_SECONDS,
            )
            # Of a turn that was not completed the engine did not come to say anything.
            if turn.outcome == "completed":
                found |= _attributed(attribution, turn, begun)
        if self.has_encoder_events and found["images"] and turn.outcome == "completed":
            # By now it is mostly there.
            counts = await self._encoder_log.final(turn.request_id, _LATE_SECONDS / 4)
            if counts is not None:
                found |= {"encoder_runs": counts.runs, "encoder_hits": counts.hits}
        self._keep(turn, found)

    def _keep(self, turn: Ended, found: Mapping[str, Any]) -> None:
        record = _record(turn, self._prices.cost(turn.model, turn.usage), found)
        self._metrics.count_attributed(record)
        if self.writer is not None:
            self.writer.put(record)
        self.exporter.put(record, turn.traceparent)


def _record(turn: Ended, cost: float | None, found: Mapping[str, Any]) -> TurnRecord:
    """The record of a turn, with what was found out about it."""
    begun, usage = turn.begun, turn.usage
    return TurnRecord(
        id=turn.id,
        request_id=turn.request_id,
        tenant=turn.tenant.name,
        conversation="" if begun is None else begun.conversation,
        number=0 if begun is None else begun.number,
        model=turn.model,
        policy=turn.policy,
        policy_version=turn.policy_version,
        stream=turn.stream,
        outcome=turn.outcome,
        visual_tokens=usage.visual_tokens,
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        read_tokens=usage.read_tokens,
        write_tokens=usage.write_tokens,
        uncached_tokens=usage.uncached_tokens,
        write_derived=usage.write_derived,
        first_token_seconds=turn.first_token_seconds,
        total_seconds=turn.total_seconds,
        cost=cost,
        **found,
    )


def _planned(begun: Begun, before: Sequence[SentMessage]) -> dict[str, Any]:
    """What the plan says of a record, its own break as the cause."""
    plan = begun.plan
    counts: dict[str, int] = {}
    for image in (*_images(plan.sent), *(part for part in plan.tail if isinstance(part, ImagePart))):
        counts[image.ref.image_id] = counts.get(image.ref.image_id, 0) + 1
    broken = plan.breaks[0] if plan.breaks else None
    # Without a break all that was sent before is replayed.
    known = {image.ref.image_id for image in _images(plan.sent[: plan.replayed] if broken is None else before)}
    found: dict[str, Any] = {
        "text_only": not counts,
        "images": sum(counts.values()),
        "unique_images": len(counts),
        "new_images": len(counts.keys() - known),
        "epoch": plan.epoch,
        "image_ids": tuple(counts),
        "image_counts": tuple(counts.values()),
    }
    if broken is not None:
        kept = {image.ref.image_id for image in _images(plan.sent)}
        found |= {
            "break_message": broken.message,
            "break_part": broken.part,
            "cause": broken.cause,
            "actor": broken.actor,
            "image_eviction": broken.actor == "policy" and bool(known - kept),
            "summary": broken.cause == "summary",
        }
    return found


def _attributed(found: Attribution, turn: Ended, begun: Begun) -> dict[str, Any]:
    return {
        "expected_read": found.expected_read,
        "lost_tokens": found.lost_tokens,
        "cause": found.cause,
        "actor": found.actor,
        "break_token": found.break_token,
        "evicted_image": _image_called(found.evicted_image, turn, begun),
    }


def _image_called(uuid: str | None, turn: Ended, begun: Begun) -> str | None:
    """The image that the engine knows by this name, of those that were sent now or before."""
    if uuid is None:
        return None
    for image in _images((*begun.plan.sent, *turn.before)):
        if turn.tenant.image_uuid(image.ref.image_id) == uuid:
            return image.ref.image_id
    return None


def _images(sent: Iterable[SentMessage]) -> list[ImagePart]:
    # Most messages are text; a string is the quickest to tell.
    return [
        part
        for one in sent
        if isinstance(parts := one.wire.get("content"), list)
        for part in parts  # pyright: ignore[reportUnknownVariableType]
        if isinstance(part, ImagePart)
    ]
