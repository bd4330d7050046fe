"""A prefill that computes some rows of the prompt and takes the keys and values of the others from elsewhere.

Several variants of one prompt go together: they share its tokens and differ in what they take and which rows they
compute, but not in how many. Which rows are computed may shrink from layer to layer: a row that is dropped before a
layer lends it the keys and values that were taken.

    held      keys and values of all layers for the whole prompt; what stands at computed rows is not read
    rows      for each layer which rows are computed, each layer's among those of the layer before

Source: VLCache (arXiv 2512.12977) for images whose first rows are computed; CacheBlend (arXiv 2405.16444) for rows that
are chosen after the first layer.
"""

# torch leaves much of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.reference.qwen2_5_vl import Model, Shape, TextBlock, text_rotation
from engine.vllm.image_kv.rotation import RopeTable

_NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class KeysValues:
    """What attention reads. Both [layers, variants, KV heads, tokens, head], keys rotated to where they stand."""

    keys: Tensor
    values: Tensor

    def upto(self, tokens: int) -> KeysValues:
        """The first tokens alone."""
        return KeysValues(self.keys[..., :tokens, :], self.values[..., :tokens, :])

    def of(self, variants: Tensor) -> KeysValues:
        """Some variants alone."""
        return KeysValues(self.keys[:, variants], self.values[:, variants])


@dataclass(frozen=True, slots=True)
class Prefill:
    """What a prefill leaves: logits [variants, last, vocabulary] of the last tokens, and the KV of the prompt."""

    logits: Tensor
    cache: KeysValues


@dataclass(frozen=True, slots=True)
class SecondLayer:
    """What a choice of rows is made by: queries, keys and values of the second layer, as computed in this prompt.

    Queries [variants, heads, rows, head]; keys and values [variants, KV heads, rows, head], all for the rows that the
    first layer computed. `held_keys` and `held_values` [variants, KV heads, tokens, head] are those taken.
    """

    rows: Tensor
    queries: Tensor
    keys: Tensor
    values: Tensor
    held_keys: Tensor
    held_values: Tensor


Choose = Callable[[SecondLayer], Tensor]


def exact(model: Model, x: Tensor, positions: Tensor, last: int = 1) -> Prefill:
    """Prefill with nothing taken from elsewhere.

    Args:
        model: the model.
        x: [tokens, hidden], the embedded prompt.
        positions: [3, tokens], M-RoPE positions.
        last: of how many tokens at the end the logits are made.
    """
    x = x[None]
    cos, sin = text_rotation(positions[:, None], model.shape, x.dtype)
    mask = torch.full((x.shape[1], x.shape[1]), _NEVER, dtype=x.dtype).triu(1)[None, None]
    keys: list[Tensor] = []
    values: list[Tensor] = []
    for block in _blocks(model):
        q, k, v = block.project(x, cos, sin)
        x = block.finish(x, q, k, v, mask)
        keys.append(k)
        values.append(v)
    return Prefill(model.logits(model.norm(x[:, -last:])), KeysValues(torch.stack(keys), torch.stack(values)))


def reuse(
    model: Model,
    x: Tensor,
    positions: Tensor,
    held: KeysValues,
    rows: Sequence[Tensor],
    choose: Choose | None = None,
    last: int = 1,
) -> Prefill:
    """Prefill of which some rows are computed.

    Args:
        model: the model.
        x: [tokens, hidden], the embedded prompt.
        positions: [3, tokens], M-RoPE positions.
        held: what is taken where a row is not computed.
        rows: for each layer [variants, rows of that layer], ascending token numbers.
        choose: names the rows of the second layer and all after it, once the first is computed; those of `rows` are
            not read then.
        last: of how many tokens at the end the logits are made; all of them must be computed.

    Raises:
        ValueError: a layer computes a row that the layer before has not, the last tokens are not computed, or there are
            not as many `rows` as layers.
    """
    if len(rows) != model.shape.layers:
        raise ValueError(f"rows are given for {len(rows)} layers, the model has {model.shape.layers}")
    cos, sin = text_rotation(positions[:, None], model.shape, x.dtype)
    run = _Run(model.shape, cos[0, 0], sin[0, 0], rows[0], x[rows[0]])
    keys, values = held.keys.clone(), held.values.clone()
    for number, block in enumerate(_blocks(model)):
        if number == 1 and choose is not None:
            chosen = choose(run.second_layer(block, keys[number], values[number]))
            rows = [rows[0], *[chosen] * (model.shape.layers - 1)]
        run.narrow(rows[number])
        run.layer(block, keys[number], values[number])
    if run.missing(last):
        raise ValueError("the last tokens of the prompt are not computed")
    return Prefill(model.logits(model.norm(run.x[:, -last:])), KeysValues(keys, values))


class _Run:
    """The rows that are being computed, on their way through the layers."""

    def __init__(self, shape: Shape, cos: Tensor, sin: Tensor, rows: Tensor, x: Tensor) -> None:
        self._shape, self._cos, self._sin = shape, cos, sin
        self.x, self._rows = x, rows
        self._place()

    def _place(self) -> None:
        tokens = torch.arange(len(self._cos))
        ahead = tokens > self._rows[..., None]
        self._mask = torch.zeros(ahead.shape, dtype=self.x.dtype).masked_fill_(ahead, _NEVER)[:, None]
        self._at = self._rows[:, None, :, None].expand(-1, self._shape.kv_heads, -1, self._shape.head)

    def narrow(self, rows: Tensor) -> None:
        """Go on with these rows alone."""
        if rows.shape == self._rows.shape and torch.equal(rows, self._rows):
            return
        places = torch.searchsorted(self._rows, rows).clamp_(max=self._rows.shape[1] - 1)
        if not torch.equal(self._rows.gather(1, places), rows):
            raise ValueError("a layer computes a row that the layer before has not")
        self.x = self.x.gather(1, places[..., None].expand(-1, -1, self.x.shape[-1]))
        self._rows = rows
        self._place()

    def missing(self, last: int) -> bool:
        """Whether one of the last tokens is not among the rows."""
        return self._rows.shape[1] < last or bool((self._rows[:, -last] != len(self._cos) - last).any())

    def layer(self, block: TextBlock, keys: Tensor, values: Tensor) -> None:
        """One layer; its keys and values are put in place."""
        q, k, v = self._project(block)
        keys.scatter_(2, self._at, k)
        values.scatter_(2, self._at, v)
        self.x = block.finish(self.x, q, keys, values, self._mask)

    def second_layer(self, block: TextBlock, held_keys: Tensor, held_values: Tensor) -> SecondLayer:
        return SecondLayer(self._rows, *self._project(block), held_keys, held_values)

    def _project(self, block: TextBlock) -> tuple[Tensor, Tensor, Tensor]:
        return block.project(self.x, self._cos[self._rows][:, None], self._sin[self._rows][:, None])


def continue_greedily(
    model: Model, cache: KeysValues, first: Tensor, position: int, end: int, most: int
) -> list[list[int]]:
    """What each variant writes after a prompt, the most likely token each time; `end` ends it and is part of it.

    Args:
        model: the model.
        cache: of the prompt, for each variant.
        first: [variants], the first tokens.
        position: of the first token, on all axes.
        end: the token that ends a reply.
        most: tokens of a reply at most.
    """
    written = [[int(token)] for token in first]
    token = first
    for _ in range(most - 1):
        if all(reply[-1] == end for reply in written):
            break
        place = torch.full((3, len(first), 1), position)
        cos, sin = text_rotation(place, model.shape, cache.keys.dtype)
        x = model.embed(token)[:, None]
        mask = x.new_zeros((1, 1, 1, 1))
        keys: list[Tensor] = []
        values: list[Tensor] = []
        for number, block in enumerate(_blocks(model)):
            q, k, v = block.project(x, cos, sin)
            keys.append(torch.cat((cache.keys[number], k), 2))
            values.append(torch.cat((cache.values[number], v), 2))
            x = block.finish(x, q, keys[-1], values[-1], mask)
        cache = KeysValues(torch.stack(keys), torch.stack(values))
        token = model.logits(model.norm(x))[:, 0].argmax(-1)
        position += 1
        for reply, one in zip(written, token, strict=True):
            if reply[-1] != end:
                reply.append(int(one))
    return written


def rope_table(shape: Shape, positions: int) -> RopeTable:
    """The model's rotary embedding as a table, from which keys are moved."""
    every = torch.arange(positions).expand(3, 1, -1)
    cos, sin = text_rotation(every, shape, torch.float32)
    half = shape.head // 2
    return RopeTable(torch.cat((cos[0, 0, :, :half], sin[0, 0, :, :half]), -1), shape.rope_sections)


def _blocks(model: Model) -> list[TextBlock]:
    # A ModuleList does not say what it holds.
    return [block for block in model.blocks if isinstance(block, TextBlock)]
