"""The worker's side of the pool: holds, loads and captures, as the step's plan says.

take        before the forward pass: holds, and what of it is captured
load        before it, too: rows of held entries, rotated, into the paged cache
finish      after it: entries that are whole go into the pool
report      what has become of holds
"""

# torch and vLLM leave much of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from engine.vllm.image_kv.entry import Entry
from engine.vllm.image_kv.keys import EntryKey
from engine.vllm.image_kv.messages import Ask, Capture, ImageName, Load, Plan, Report
from engine.vllm.image_kv.pool import Hold, ImagePool
from engine.vllm.image_kv.rotation import RopeTable, rotate
from engine.vllm.image_kv.settings import SETTING
from engine.vllm.image_kv.stats import PoolStats
from engine.vllm.image_kv.transfer import Drop, Recorder, Wanted, slots_of, write_back

if TYPE_CHECKING:
    from engine.vllm.image_kv.narrowing import Narrowing

_log = logging.getLogger(__name__)
_MIB = 1024**2


@dataclass(slots=True)
class _Donor:
    """An entry that is being filled; `rows` of it are there."""

    key: EntryKey
    entry: Entry
    rows: int = 0


class Worker:
    """One worker's pool and its attention layers.

    Args:
        fingerprint: the model's.
        layers: vLLM's attention layers, in the model's order.
        block_tokens: of a block of the paged cache.
        pool: the entries.
        table: the model's rotary embedding.
        capture_bytes: what entries that are being filled may have together.
        narrowing: the decoder layers, where they may compute different rows.
        rank: among the workers that part the heads. The first one alone tells its pool's figures: each counts for
            itself, and a count of one behind that of another would be taken for one that began again.
    """

    def __init__(
        self,
        fingerprint: str,
        layers: Sequence[Any],
        block_tokens: int,
        pool: ImagePool,
        table: RopeTable,
        capture_bytes: int,
        narrowing: Narrowing | None = None,
        rank: int = 0,
    ) -> None:
        self._fingerprint, self._layers, self._block_tokens = fingerprint, layers, block_tokens
        self._pool, self._table, self._capture_bytes = pool, table, capture_bytes
        self._recorder = Recorder(layers)
        self._narrowing, self._tells_figures = narrowing, rank == 0
        self._waiting: dict[int, Future[Hold | None]] = {}
        self._names: dict[int, ImageName] = {}
        self._holds: dict[int, Hold] = {}
        self._donors: dict[tuple[str, int], _Donor] = {}
        self._captured: list[tuple[Capture, _Donor]] = []
        self._changed, self._told_of_size = True, False
        self.encoder_outputs: Mapping[str, Tensor] = {}
        """The vision encoder's outputs by identifier, as the engine has them now."""

    def take(self, plan: Plan) -> None:
        """Carry out a plan, but for its loads."""
        self._changed = self._changed or not plan.empty
        for ask in plan.asks:
            self._ask(ask)
        for hold in plan.releases:
            self._release(hold)
        for request_id in plan.ended:
            for donor in [at for at in self._donors if at[0] == request_id]:
                del self._donors[donor]
        self._captured = [(capture, donor) for capture in plan.captures if (donor := self._donor(capture)) is not None]
        self._recorder.expect(
            [Wanted(donor.entry, capture.row, self._slots(capture)) for capture, donor in self._captured]
        )

    def clear(self) -> bool:
        """Between two steps: empty the pool; whether all files are gone. Waits for the disk."""
        # What is being filled has rows of before.
        self._donors.clear()
        self._changed = True
        return self._pool.clear()

    def attach(self, model: Any) -> None:
        """Be given the model, so that its layers can compute different rows.

        Raises:
            ConfigError: as `Narrowing.attach`.
        """
        assert self._narrowing is not None, "called where layers may compute different rows"
        self._narrowing.attach(model)

    def load(self, loads: Sequence[Load]) -> None:
        """Put what is asked for into the paged cache, and have layers drop the rows that are loaded for them alone."""
        drops: list[Drop] = []
        for load in loads:
            kept = _kept(load)
            entry, slots = self._holds[load.hold].entry, self._slots(load)
            first, last = load.row + min(kept, default=0), load.row + load.span.count
            positions = (entry.position + places_in(self._names[load.hold].grid, self._table))[..., first:last]
            delta = load.position - entry.position
            # On the device, where the table is. All layers in one call: how far to turn is found out once.
            keys = rotate(entry.keys[:, first:last].to(self._table.cos_sin.device), positions, delta, self._table)
            firsts = [load.row + count - first for count in kept] if kept else None
            write_back(self._layers, keys, entry.values[:, first:last], slots[first - load.row :], firsts)
            if kept:
                drops.append(Drop(slots, kept))
        self._drop(drops)

    def finish(self) -> None:
        """Take over what the forward pass computed. An entry of which rows did not come is given up."""
        complete = self._recorder.complete(len(self._layers))
        for at, (capture, donor) in enumerate(self._captured):
            place = (capture.request_id, capture.first)
            if not complete[at]:
                del self._donors[place]
                continue
            donor.rows += capture.span.count
            if donor.rows == capture.tokens:
                del self._donors[place]
                self._keep(capture, donor)
        self._captured = []
        self._recorder.expect([])
        self._drop([])

    def report(self) -> Report | None:
        """What is to be said after a step; None when it is nothing."""
        report = Report()
        for hold, future in list(self._waiting.items()):
            if future.done():
                del self._waiting[hold]
                found = future.result()
                report.answers[hold] = (0, 1) if found is None else (1, 0)
                if found is not None:
                    self._holds[hold] = found
        if self._tells_figures and (self._changed or report.answers):
            report.capturing, report.stats = self.figures()
            self._changed = report.stats.unwritten_entries > 0
        return report if report.answers or report.stats else None

    def figures(self) -> tuple[int, PoolStats]:
        """How many entries are being filled, and the pool now."""
        return len(self._donors), self._pool.stats()

    def encoder_output(self, hold: int) -> Tensor | None:
        """A held image's encoder output, in memory of its own, where the model is."""
        encoder = self._holds[hold].entry.encoder
        return None if encoder is None else encoder.to(self._table.cos_sin.device, copy=True)

    def close(self) -> None:
        """Wait for what is being written."""
        self._pool.close()

    def _drop(self, drops: Sequence[Drop]) -> None:
        if self._narrowing is not None:
            self._narrowing.expect(drops)
        # Or a layer would write its own rows over those that were loaded.
        assert not drops or (self._narrowing is not None and self._narrowing.attached), "the layers are not known"

    def _key(self, name: ImageName) -> EntryKey:
        return EntryKey(self._fingerprint, name.tenant, name.image, name.grid)

    def _ask(self, ask: Ask) -> None:
        self._names[ask.hold] = ask.name
        self._waiting[ask.hold] = self._pool.hold(self._key(ask.name))

    def _release(self, hold: int) -> None:
        self._names.pop(hold, None)
        waiting = self._waiting.pop(hold, None)
        if waiting is not None and not waiting.cancel():
            waiting.add_done_callback(_release_when_done)
        elif (held := self._holds.pop(hold, None)) is not None:
            held.release()

    def _donor(self, capture: Capture) -> _Donor | None:
        """The entry that a capture goes into; None when it is not wanted."""
        place = (capture.request_id, capture.first)
        if capture.row:
            donor = self._donors.get(place)
            return donor if donor is not None and donor.rows == capture.row else None
        key, layout = self._key(capture.name), self._pool.layout
        taken = sum(donor.entry.bytes for donor in self._donors.values())
        if any(donor.key == key for donor in self._donors.values()) or self._pool.where(key) is not None:
            return None
        if taken + layout.bytes(capture.tokens) > self._capture_bytes:
            self._refuse(capture)
            return None
        # With an image's length what each of its tokens costs grows, for they attend to each other.
        cost = capture.tokens * (1 + capture.tokens / 8192)
        donor = _Donor(key, Entry.empty(layout, capture.tokens, capture.position, cost))
        self._donors[place] = donor
        return donor

    def _refuse(self, capture: Capture) -> None:
        """An image is computed and not kept: there is no room for its rows."""
        needed = self._pool.layout.bytes(capture.tokens)
        self._pool.count_refused()
        self._changed = True
        if needed > self._capture_bytes and not self._told_of_size:
            self._told_of_size = True
            _log.warning(
                "an image of %d tokens has %d MiB of KV and is never kept: one may have half of %s.memory_gib, which "
                "are %d MiB; raise it or send smaller images",
                capture.tokens,
                -(-needed // _MIB),
                SETTING,
                self._capture_bytes // _MIB,
            )

    def _keep(self, capture: Capture, donor: _Donor) -> None:
        encoder, output = donor.entry.encoder, self.encoder_outputs.get(capture.name.image)
        if encoder is not None:
            if output is None or output.shape != encoder.shape:
                return
            encoder.copy_(output)
        self._pool.put(donor.key, donor.entry)
        self._changed = True

    def _slots(self, what: Capture | Load) -> Tensor:
        return slots_of(what.span.blocks, self._block_tokens, what.span.first, what.span.count)


def _kept(load: Load) -> tuple[int, ...]:
    """Of the rows of a load, how many each layer computes, from its first on; none where no layer computes any."""
    return tuple(min(max(0, rows - load.row), load.span.count) for rows in load.rows)


def places_in(grid: tuple[int, int, int], table: RopeTable) -> Tensor:
    """Where an image's tokens stand from its first one: [tokens], or [3, tokens] with M-RoPE."""
    places = torch.arange(prod(grid), device=table.cos_sin.device)
    if table.sections is None:
        return places
    _, rows, columns = grid
    return torch.stack([places // (rows * columns), places // columns % rows, places % columns])


def _release_when_done(future: Future[Hold | None]) -> None:
    if not future.cancelled() and (held := future.result()) is not None:
        held.release()
