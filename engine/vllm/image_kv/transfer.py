"""K and V between vLLM's paged cache and entries, without a word about how that cache is laid out.

In: the attention implementation's own update, called with slots of ours. Out: the same call, as the model makes it
while it computes a donor, looked over the shoulder. A slot is block times block size plus the place in the block.

Source: vLLM 0.32, vllm/model_executor/layers/attention/attention.py::unified_kv_cache_update;
vllm/v1/attention/backends/cpu_attn.py::CPUAttentionBackendImpl.do_kv_cache_update.
"""

# torch leaves much of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.vllm.image_kv.entry import Entry


def slots_of(block_ids: Sequence[int], block_tokens: int, first: int, count: int) -> Tensor:
    """The slots of `count` tokens of a request from token `first` on."""
    tokens = torch.arange(first, first + count)
    return (
        torch.tensor(list(block_ids), dtype=torch.int64)[tokens // block_tokens] * block_tokens + tokens % block_tokens
    )


def write_back(
    layers: Sequence[Any], keys: Tensor, values: Tensor, slots: Tensor, firsts: Sequence[int] | None = None
) -> None:
    """Put rows into the paged cache of every layer.

    Args:
        layers: vLLM's attention layers, in the model's order.
        keys: [layers, tokens, KV heads, head dimensions], rotated for where they go; so are values shaped.
        slots: where they go, [tokens].
        firsts: for each layer the first of the rows that are put there; None: all are, in all layers.
    """
    for index, layer in enumerate(layers):
        cache = layer.kv_cache
        rows = slice(0 if firsts is None else firsts[index], None)
        key, value, place = (part.to(cache.device) for part in (keys[index, rows], values[index, rows], slots[rows]))
        if len(place):
            layer.impl.do_kv_cache_update(layer, key, value, cache, place)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Rows of an entry that the next forward pass computes: from `row` on, those that go to `slots`."""

    entry: Entry
    row: int
    slots: Tensor


@dataclass(frozen=True, slots=True)
class Drop:
    """The last rows that a step computes of one request, those of an image that go to `slots`: layer l computes the
    first `kept[l]` of them.
    """

    slots: Tensor
    kept: tuple[int, ...]


class Recorder:
    """Copies wanted rows into entries while the model writes them to its cache.

    It stands between each layer and its implementation's update for the life of the worker. An entry of which
    a row did not come, as `complete` tells, must not be used.
    """

    def __init__(self, layers: Sequence[Any]) -> None:
        self._wanted: Sequence[Wanted] = ()
        self._written: dict[tuple[int, int], int] = {}
        for index, layer in enumerate(layers):
            self._stand_before(index, layer.impl)

    def expect(self, wanted: Sequence[Wanted]) -> None:
        """Say what the next forward pass computes; nothing of an earlier one is waited for any more."""
        self._wanted = wanted
        self._written = {}

    def complete(self, layers: int) -> Mapping[int, bool]:
        """For each that was expected, by its index: whether all of its rows came, in all layers."""
        return {
            at: sum(self._written.get((at, layer), 0) for layer in range(layers)) == layers * len(wanted.slots)
            for at, wanted in enumerate(self._wanted)
        }

    def _stand_before(self, index: int, implementation: Any) -> None:
        update = implementation.do_kv_cache_update

        def recorded(layer: Any, key: Tensor, value: Tensor, cache: Tensor, slots: Tensor) -> None:
            for at, wanted in enumerate(self._wanted):
                self._copy(index, at, wanted, key, value, slots)
            update(layer, key, value, cache, slots)

        implementation.do_kv_cache_update = recorded

    def _copy(self, index: int, at: int, wanted: Wanted, key: Tensor, value: Tensor, slots: Tensor) -> None:
        # A request's tokens stand side by side in the batch.
        found = (slots == wanted.slots[0].item()).nonzero()
        count = len(wanted.slots)
        if len(found) != 1:
            return
        first = int(found[0, 0])
        if not torch.equal(slots[first : first + count].cpu(), wanted.slots):
            return
        rows = slice(wanted.row, wanted.row + count)
        wanted.entry.keys[index, rows].copy_(key[first : first + count])
        wanted.entry.values[index, rows].copy_(value[first : first + count])
        self._written[at, index] = count
