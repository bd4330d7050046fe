"""Which rows of a prompt are computed when its images' keys and values are there from another context.

Text is always computed. Of images:

    head        the first rows of each: EPIC (arXiv 2410.15332), MPIC (2502.01960), VLCache (2512.12977)
    suffix      the last rows of each
    scattered   rows of each by chance
    by_layer    the first rows of each, fewer in later layers: VLCache
    KvDeviation         rows whose keys and values changed most: CacheBlend (2405.16444)
    AttentionDeviation  rows whose weight in the text's attention changed most, as KVShare (2503.16525) asks

The two last are chosen in the second layer. The first layer's keys and values depend on the token alone, so that
nothing can be seen there; it is computed for all rows, which `share` counts.
"""

# torch leaves much of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from engine.reference.qwen2_5_vl import Shape
from engine.reference.reuse import SecondLayer
from engine.vllm.image_kv.jumps import jump_over
from engine.vllm.image_kv.layers import spread


@dataclass(frozen=True)
class Layout:
    """A prompt's tokens and where its images stand in it, as [first, end).

    The last `reply` tokens are a reply's, whose logits are looked at: no choice of rows may look at them.
    """

    tokens: int
    images: tuple[tuple[int, int], ...]
    reply: int = 0

    @property
    def image_tokens(self) -> int:
        """Of all images."""
        return sum(end - first for first, end in self.images)

    @cached_property
    def is_image(self) -> Tensor:
        """[tokens], whether a token is an image's."""
        made = torch.zeros(self.tokens, dtype=torch.bool)
        for first, end in self.images:
            made[first:end] = True
        return made

    def computed(self, ratio: float) -> list[int]:
        """How many rows of each image are computed at a ratio: what the engine's jump leaves."""
        counts: list[int] = []
        for first, end in self.images:
            jump = jump_over(first, end - first, ratio, self.tokens + 1)
            counts.append(end - first if jump is None else jump.start - first)
        return counts

    def rows(self, images: Sequence[Tensor]) -> Tensor:
        """[1, rows]: all text, and the named rows of the images, counted from each image's first."""
        computed = ~self.is_image
        for (first, _), named in zip(self.images, images, strict=True):
            computed[first + named] = True
        return computed.nonzero().T


def every_row(layout: Layout, layers: int) -> list[Tensor]:
    """All rows in all layers."""
    return [torch.arange(layout.tokens)[None]] * layers


def rows_from(layout: Layout, first: int, layers: int) -> list[Tensor]:
    """All rows from one on: what a prefix cache leaves."""
    return [torch.arange(first, layout.tokens)[None]] * layers


def head(layout: Layout, ratio: float, layers: int) -> list[Tensor]:
    """The first rows of each image."""
    return [layout.rows([torch.arange(count) for count in layout.computed(ratio)])] * layers


def suffix(layout: Layout, ratio: float, layers: int) -> list[Tensor]:
    """The last rows of each image, as many as `head` takes."""
    sizes = [end - first for first, end in layout.images]
    named = [torch.arange(size - count, size) for size, count in zip(sizes, layout.computed(ratio), strict=True)]
    return [layout.rows(named)] * layers


def scattered(layout: Layout, ratio: float, layers: int, seed: int) -> list[Tensor]:
    """Rows of each image by chance, as many as `head` takes. The same seed gives the same rows."""
    chance = torch.Generator().manual_seed(seed)
    named = [
        torch.randperm(end - first, generator=chance)[:count]
        for (first, end), count in zip(layout.images, layout.computed(ratio), strict=True)
    ]
    return [layout.rows(named)] * layers


def by_layer(layout: Layout, ratio: float, ratios: Sequence[float]) -> list[Tensor]:
    """The first rows of each image, by layer; over all layers as many as `head` takes at `ratio`.

    Args:
        layout: the prompt.
        ratio: the budget, a mean over the layers.
        ratios: of each layer, not rising, with a mean of at most `ratio`.
    """
    counts = [
        spread([share * (end - first) for share in ratios], count * len(ratios), end - first)
        for (first, end), count in zip(layout.images, layout.computed(ratio), strict=True)
    ]
    return [layout.rows([torch.arange(layer) for layer in layers]) for layers in zip(*counts, strict=True)]


@dataclass(frozen=True, slots=True)
class KvDeviation:
    """Chooses the rows of images whose keys and values changed most, over all images together."""

    layout: Layout
    rows: int

    def __call__(self, layer: SecondLayer) -> Tensor:
        """[variants, rows] that go on."""
        changed = (layer.keys - layer.held_keys).square() + (layer.values - layer.held_values).square()
        return _with_most(self.layout, self.rows, changed.sum((1, 3)))


@dataclass(frozen=True, slots=True)
class AttentionDeviation:
    """Chooses the rows of images whose weight in the attention of text after them changed most."""

    layout: Layout
    rows: int

    def __call__(self, layer: SecondLayer) -> Tensor:
        """[variants, rows] that go on."""
        is_image = self.layout.is_image
        text = (~is_image[: self.layout.tokens - self.layout.reply]).nonzero()[:, 0]
        queries = layer.queries[:, :, text]
        mixed = torch.where(is_image[:, None], layer.held_keys, layer.keys)
        ahead = torch.arange(self.layout.tokens) > text[:, None]
        changed = _weights(queries, layer.keys, ahead) - _weights(queries, mixed, ahead)
        return _with_most(self.layout, self.rows, changed.abs().sum((1, 2)))


def _weights(queries: Tensor, keys: Tensor, ahead: Tensor) -> Tensor:
    keys = keys.repeat_interleave(queries.shape[1] // keys.shape[1], 1)
    scores = torch.matmul(queries * queries.shape[-1] ** -0.5, keys.transpose(-1, -2))
    return torch.softmax(scores.masked_fill(ahead, float("-inf")), -1)


def _with_most(layout: Layout, rows: int, changed: Tensor) -> Tensor:
    """[variants, rows]: text, and as many rows of images, those that changed most."""
    is_image = layout.is_image
    chosen = changed.masked_fill(~is_image, float("-inf")).topk(rows, -1).indices
    text = (~is_image).nonzero()[:, 0].expand(len(changed), -1)
    return torch.cat((text, chosen), -1).sort(-1).values


def share(shape: Shape, layout: Layout, rows: int) -> float:
    """What of the images' work a choice in the second layer costs, when `rows` of them go on: 0 to 1.

    The first layer is whole. In the second the rows that do not go on have only their keys and values made, which
    counts by weights.
    """
    tokens = layout.image_tokens
    return (tokens + _looked_at(shape) * (tokens - rows) + (shape.layers - 1) * rows) / (shape.layers * tokens)


def rows_within(shape: Shape, layout: Layout, ratio: float) -> int | None:
    """How many rows may go on so that `share` is what `ratio` allows at most; None where the choice alone is more."""
    allowed = sum(layout.computed(ratio)) / layout.image_tokens
    looked_at = _looked_at(shape)
    rows = (shape.layers * allowed - 1 - looked_at) * layout.image_tokens / (shape.layers - 1 - looked_at)
    return int(rows + 1e-6) if rows >= 0 else None


def _looked_at(shape: Shape) -> float:
    """What of a layer's weights makes keys and values."""
    keys_values = 2 * shape.kv_heads * shape.head * shape.hidden
    width = (shape.heads + 2 * shape.kv_heads) * shape.head
    return keys_values / (shape.hidden * (width + shape.heads * shape.head + 3 * shape.intermediate))
