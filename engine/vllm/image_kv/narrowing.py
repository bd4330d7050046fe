"""Layers that compute fewer rows of an image than the layers before them.

A step computes the rows of an image that the first layer does. Each layer that computes fewer of them is given the
others' rows neither as queries nor as keys: their keys and values of that layer have been loaded. What it returns for
the rows that it computes goes back among all rows; nobody reads the rest, for a step ends where an image's rows do, and
only a prompt's last row is asked for its token.

It stands around each decoder layer for the life of the worker. A compiled model would pass it by.

Source: vLLM 0.32, vllm/model_executor/models/qwen2.py::Qwen2DecoderLayer.forward and Qwen2Model.forward.
"""

# torch and vLLM leave much of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from context.errors import ConfigError
from engine.vllm import narrowing_0_32 as attention_names
from engine.vllm.image_kv.settings import SETTING
from engine.vllm.image_kv.transfer import Drop

_LAYER = ["positions", "hidden_states", "residual"]


@dataclass(frozen=True, slots=True)
class _Narrowed:
    """A step as a layer sees it that drops rows: `rows` of the batch are left."""

    rows: Tensor
    attention: Any
    slots: Tensor


class Narrowing:
    """The decoder layers of one worker's model.

    Args:
        layers: vLLM's attention layers, in the model's order.
    """

    def __init__(self, layers: Sequence[Any]) -> None:
        self._layers = layers
        self._drops: Sequence[Drop] = ()
        self._made: dict[tuple[int, ...], _Narrowed | None] = {}
        self.attached = False
        """Whether it stands around a model's layers; nothing may be dropped before."""

    def attach(self, model: Any) -> None:
        """Stand around the decoder layers of a model.

        Raises:
            ConfigError: they are none that are known, or vLLM's CPU attention is not as it was.
        """
        attention_names.check(self._layers)
        around = [_decoder_layer(model, layer) for layer in self._layers]
        for index, module in enumerate(around):
            module.forward = self._narrowed(index, module.forward)
        self.attached = True

    def expect(self, drops: Sequence[Drop]) -> None:
        """Say what the next forward pass drops; nothing of an earlier one is dropped any more."""
        self._drops, self._made = drops, {}

    def _narrowed(self, index: int, forward: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., Any]:
        layer = self._layers[index]

        def narrowed(positions: Tensor, hidden_states: Tensor, residual: Tensor | None) -> Any:
            step = self._step(index) if self._drops else None
            if step is None:
                return forward(positions, hidden_states, residual)
            # The first layer computes all rows of a step, and leaves a residual.
            assert residual is not None
            if len(step.rows):
                with attention_names.attention_as(layer, step.attention, step.slots):
                    computed = forward(positions[..., step.rows], hidden_states[step.rows], residual[step.rows])
                hidden_states[step.rows], residual[step.rows] = computed
            return hidden_states, residual

        return narrowed

    def _step(self, index: int) -> _Narrowed | None:
        """The step as a layer sees it; None when it computes all rows."""
        kept = tuple(drop.kept[index] for drop in self._drops)
        if kept not in self._made:
            self._made[kept] = self._make(self._layers[index], kept)
        return self._made[kept]

    def _make(self, layer: Any, kept: tuple[int, ...]) -> _Narrowed | None:
        if all(count == len(drop.slots) for count, drop in zip(kept, self._drops, strict=True)):
            return None
        attention, slots = attention_names.attention_of(layer)
        starts = attention.query_start_loc.tolist()
        dropped = [0] * (len(starts) - 1)
        is_left = torch.zeros(len(slots), dtype=torch.bool)
        is_left[: starts[-1]] = True
        for drop, count in zip(self._drops, kept, strict=True):
            first = _place_of(drop.slots, slots)
            end = first + len(drop.slots)
            # Elsewhere than at a request's end, attention could not leave rows out.
            dropped[starts.index(end) - 1] = len(drop.slots) - count
            is_left[first + count : end] = False
        rows = is_left.nonzero()[:, 0]
        return _Narrowed(rows, attention_names.narrowed(layer, attention, slots[rows], dropped), slots[rows])


def _place_of(wanted: Tensor, slots: Tensor) -> int:
    """Where in the batch the rows stand that go to these slots, side by side."""
    first = int((slots == wanted[0]).nonzero()[0, 0])
    assert torch.equal(slots[first : first + len(wanted)], wanted), "a request's rows stand side by side"
    return first


def _decoder_layer(model: Any, attention: Any) -> Any:
    """The module that takes rows and gives rows, with this attention in it."""
    for module in model.modules():
        if list(inspect.signature(module.forward).parameters) == _LAYER and any(
            part is attention for part in module.modules()
        ):
            return module
    reason = "the model's decoder layers are none of those known to drop rows; remove profile"
    raise ConfigError("settings", f"{SETTING}.profile", reason)
