"""Qwen2.5-VL in plain PyTorch: the forward pass alone, batched and differentiable.

`engine.reference.hugging_face` gives the parameters their Hugging Face names and takes them back. Projections that
read the same input are kept as one matrix. Nothing is cached between calls.

Source: transformers 5.19, models/qwen2_5_vl/modeling_qwen2_5_vl.py::Qwen2_5_VLForConditionalGeneration; Qwen2.5-VL
technical report (arXiv 2502.13923).
"""

# torch leaves much of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PATCH, MERGE, TEMPORAL, CHANNELS = 14, 2, 2, 3
_VISION_EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model. `rope_sections` splits half of a head's dimensions between time, height and width.

    `epsilon` is of the decoder's norms.
    """

    vocabulary: int
    hidden: int = 256
    layers: int = 6
    heads: int = 4
    kv_heads: int = 2
    intermediate: int = 640
    rope_theta: float = 1_000_000.0
    rope_sections: tuple[int, int, int] = (8, 12, 12)
    epsilon: float = 1e-5
    vision_hidden: int = 128
    vision_layers: int = 4
    vision_heads: int = 4
    vision_intermediate: int = 256
    window: int = 112
    full_attention: tuple[int, ...] = (2, 3)

    @property
    def head(self) -> int:
        """Dimensions of a text head."""
        return self.hidden // self.heads


class VisionBlock(nn.Module):
    """One layer of the vision tower."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        hidden, inner = shape.vision_hidden, shape.vision_intermediate
        self.heads = shape.vision_heads
        self.norm1, self.norm2 = _Norm(hidden, _VISION_EPSILON), _Norm(hidden, _VISION_EPSILON)
        self.qkv, self.proj = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.gate_up, self.down = nn.Linear(hidden, 2 * inner), nn.Linear(inner, hidden)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, places: _Places) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).view(len(x), 3, self.heads, -1).unbind(1)
        q, k, v = (places.spread(part) for part in (_rotate(q, cos, sin), _rotate(k, cos, sin), v))
        x = x + self.proj(places.collect(_attend(q, k, v, places.mask)).flatten(1))
        return x + self.down(_gated(self.gate_up(self.norm2(x))))


class VisionTower(nn.Module):
    """Patches to one embedding for each 2x2 group of them."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        hidden = shape.vision_hidden
        self.shape = shape
        # Both frames of a still image are equal, so one matrix stands for the sum of the two.
        self.patch = nn.Linear(CHANNELS * PATCH * PATCH, hidden, bias=False)
        self.blocks = nn.ModuleList(VisionBlock(shape) for _ in range(shape.vision_layers))
        self.norm = _Norm(hidden, _VISION_EPSILON)
        self.merge1 = nn.Linear(hidden * MERGE**2, hidden * MERGE**2)
        self.merge2 = nn.Linear(hidden * MERGE**2, shape.hidden)

    def forward(self, patches: Tensor, grids: Sequence[tuple[int, int]]) -> Tensor:
        """Embeddings of several images, one behind the other.

        Args:
            patches: (patches, 588), pixels normalized, each image's in groups of 2x2.
            grids: rows and columns of each image, in patches.

        Returns:
            (patches // 4, hidden)
        """
        layouts = [_vision_layout(rows, columns, self.shape) for rows, columns in grids]
        x = self.patch(patches)
        cos = torch.cat([layout[0] for layout in layouts]).unsqueeze(1).to(x.dtype)
        sin = torch.cat([layout[1] for layout in layouts]).unsqueeze(1).to(x.dtype)
        every = torch.arange(len(x)).split([rows * columns for rows, columns in grids])
        whole = _Places(every, x.dtype)
        windows = _Places(
            [one[window] for one, layout in zip(every, layouts, strict=True) for window in layout[2]], x.dtype
        )
        for number, block in enumerate(self.blocks):
            x = block(x, cos, sin, whole if number in self.shape.full_attention else windows)
        x = self.norm(x).view(len(x) // MERGE**2, -1)
        return self.merge2(F.gelu(self.merge1(x)))


class _Places:
    """Where the patches of each group stand when groups are laid side by side and padded to the longest."""

    def __init__(self, groups: Sequence[Tensor], dtype: torch.dtype) -> None:
        sizes = [len(group) for group in groups]
        total = sum(sizes)
        self._shape = (len(groups), max(sizes))
        slots = torch.full(self._shape, total)
        for row, group in enumerate(groups):
            slots[row, : len(group)] = group
        self._slots = slots.flatten()
        self._inverse = torch.empty(total + 1, dtype=torch.long).scatter_(0, self._slots, torch.arange(slots.numel()))[
            :-1
        ]
        self._full = slots.numel() == total
        self.mask = torch.zeros(self._shape, dtype=dtype).masked_fill(slots == total, float("-inf"))[:, None, None]

    def spread(self, x: Tensor) -> Tensor:
        """(patches, heads, head) to (groups, heads, longest, head)."""
        moved = _Move.apply(x, self._slots, self._inverse, not self._full)
        return moved.view(*self._shape, *x.shape[1:]).transpose(1, 2)

    def collect(self, x: Tensor) -> Tensor:
        """(groups, longest, heads, head) to (patches, heads, head)."""
        return _Move.apply(x.flatten(0, 1), self._inverse, self._slots, False)


class _Move(torch.autograd.Function):
    """Rows to other places and their gradients back. Both are gathers: a scatter is slow on a CPU."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, source: Tensor, back: Tensor, pad: bool) -> Tensor:
        ctx.save_for_backward(back)
        ctx.pad = len(back) > len(source)
        return (F.pad(x, (0,) * (2 * x.ndim - 1) + (1,)) if pad else x)[source]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = gradients
        (back,) = ctx.saved_tensors
        gradient = F.pad(gradient, (0,) * (2 * gradient.ndim - 1) + (1,)) if ctx.pad else gradient
        return gradient[back], None, None, None


@dataclass(slots=True)
class Trace:
    """What is looked at inside of a decoder: the output of one layer, queries and keys of another.

    `output`: (batch, tokens, hidden). `queries`: (batch, heads, tokens, head). `keys`: (batch, kv heads, tokens, head).
    Both are rotated.
    """

    output_layer: int
    attention_layer: int
    output: Tensor | None = None
    queries: Tensor | None = None
    keys: Tensor | None = None


class TextBlock(nn.Module):
    """One decoder layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        width = (shape.heads + 2 * shape.kv_heads) * shape.head
        self.norm1, self.norm2 = _Norm(shape.hidden, shape.epsilon), _Norm(shape.hidden, shape.epsilon)
        self.qkv = nn.Linear(shape.hidden, width)
        self.proj = nn.Linear(shape.heads * shape.head, shape.hidden, bias=False)
        self.gate_up = nn.Linear(shape.hidden, 2 * shape.intermediate, bias=False)
        self.down = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, trace: Trace | None = None) -> Tensor:
        q, k, v = self.project(x, cos, sin)
        if trace is not None:
            trace.queries, trace.keys = q, k
        return self.finish(x, q, k, v, mask)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries and keys, and values, of (batch, tokens, hidden): (batch, [KV] heads, tokens, head) each."""
        batch, length, _ = x.shape
        shape = self.shape
        heads = self.qkv(self.norm1(x)).view(batch, length, -1, shape.head).transpose(1, 2)
        q, k, v = heads.split((shape.heads, shape.kv_heads, shape.kv_heads), 1)
        return _rotate(q, cos, sin), _rotate(k, cos, sin), v

    def finish(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """The layer's output for the tokens of `x` and `q`, which attend to those of `k` and `v` as `mask` says."""
        repeat = self.shape.heads // self.shape.kv_heads
        k, v = (part.repeat_interleave(repeat, 1) for part in (k, v))
        x = x + self.proj(_attend(q, k, v, mask).reshape(*x.shape[:2], -1))
        return x + self.down(_gated(self.gate_up(self.norm2(x))))


class Model(nn.Module):
    """Vision tower and decoder; the output matrix is the input embedding."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.vision = VisionTower(shape)
        self.embed = nn.Embedding(shape.vocabulary, shape.hidden)
        self.blocks = nn.ModuleList(TextBlock(shape) for _ in range(shape.layers))
        self.norm = _Norm(shape.hidden, shape.epsilon)

    def decode(self, x: Tensor, positions: Tensor, trace: Trace | None = None) -> Tensor:
        """Final hidden states of a batch of embedded sequences, padded at their end.

        Args:
            x: (batch, tokens, hidden).
            positions: (3, batch, tokens), M-RoPE positions.
            trace: is filled.

        Returns:
            (batch, tokens, hidden)
        """
        cos, sin = text_rotation(positions, self.shape, x.dtype)
        length = x.shape[1]
        mask = torch.full((length, length), float("-inf"), dtype=x.dtype).triu(1)[None, None]
        for number, block in enumerate(self.blocks):
            x = block(x, cos, sin, mask, trace if trace and number == trace.attention_layer else None)
            if trace and number == trace.output_layer:
                trace.output = x
        return self.norm(x)

    def logits(self, x: Tensor) -> Tensor:
        """Logits of hidden states: (..., vocabulary)."""
        return F.linear(x, self.embed.weight)


class _Norm(nn.Module):
    def __init__(self, hidden: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.epsilon).to(x.dtype)
        return x * scale * self.weight.to(x.dtype)


def _gated(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """(batch, heads, tokens, head) each; gives (batch, tokens, heads, head). Faster here than the fused operator."""
    scores = torch.matmul(q * q.shape[-1] ** -0.5, k.transpose(-1, -2)) + mask
    return torch.matmul(torch.softmax(scores, -1), v).transpose(1, 2)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def text_rotation(positions: Tensor, shape: Shape, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine of M-RoPE, (batch, 1, tokens, head) each, for positions (3, batch, tokens)."""
    half = shape.head // 2
    frequencies = shape.rope_theta ** (-torch.arange(half, dtype=torch.float32) / half)
    axis = torch.repeat_interleave(torch.arange(3), torch.tensor(shape.rope_sections))
    angles = positions.float()[axis].permute(1, 2, 0) * frequencies
    angles = torch.cat((angles, angles), -1).unsqueeze(1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


@lru_cache(maxsize=1024)
def _vision_layout(rows: int, columns: int, shape: Shape) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Cosine and sine (patches, head) of an image, and the patches of each of its windows."""
    row = _merge_order(torch.arange(rows)[:, None].expand(rows, columns))
    column = _merge_order(torch.arange(columns)[None].expand(rows, columns))
    head = shape.vision_hidden // shape.vision_heads
    frequencies = 10_000.0 ** (-torch.arange(0, head // 2, 2, dtype=torch.float32) / (head // 2))
    angles = torch.cat((row[:, None] * frequencies, column[:, None] * frequencies), -1)
    angles = torch.cat((angles, angles), -1)
    side = shape.window // PATCH
    window = row // side * columns + column // side
    windows = tuple((window == number).nonzero().flatten() for number in window.unique())
    return angles.cos(), angles.sin(), windows


def _merge_order(grid: Tensor) -> Tensor:
    """A (rows, columns) grid flattened so that each 2x2 group stands together."""
    rows, columns = grid.shape
    return grid.reshape(rows // MERGE, MERGE, columns // MERGE, MERGE).permute(0, 2, 1, 3).reshape(-1)
