"""Turn cached keys to other positions, exactly as the model's own rotary embedding would have made them there.

A rotary embedding multiplies each pair of a key's dimensions with a rotation that depends on the position alone. Keys
that stand at p come to stand at p + delta by the rotation T(p + delta) T(p)^-1. Both are taken from the embedding's own
table, so that its scaling (YaRN's magnitude, which cancels) and the rounding of its angles are those of the model: with
angles in single precision, a rotation by delta alone is 1e-4 off at position 4,000 and 6e-3 at 120,000.

With M-RoPE each pair reads the position of one axis: time, height or width. An image stands at p0 + (t, h, w), so that
moving it shifts all three by the same delta.

Source: vLLM 0.32, vllm/model_executor/layers/rotary_embedding/base.py::RotaryEmbeddingBase,
mrope.py::MRotaryEmbedding.forward_native and apply_interleaved_rope, common.py::ApplyRotaryEmb.forward_static.
"""

# torch leaves much of its types open.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RopeTable:
    """A rotary embedding as its table.

    `cos_sin` is [positions, rotated dimensions], the cosines of all pairs and then their sines, in the model's dtype.
    `sections` counts the pairs that read time, height and width; None is plain RoPE. `interleaved` says that the axes
    alternate pair by pair, `neox` that a pair is (i, i + half) and not (2i, 2i + 1).
    """

    cos_sin: Tensor
    sections: tuple[int, int, int] | None = None
    interleaved: bool = False
    neox: bool = True

    def __post_init__(self) -> None:
        if self.cos_sin.ndim != 2 or self.cos_sin.shape[1] % 2:
            raise ValueError("a rotary table is [positions, cosines and sines]")
        if self.sections is not None and sum(self.sections) != self.pairs:
            raise ValueError(f"the sections of M-RoPE count {sum(self.sections)} pairs, the table has {self.pairs}")

    @property
    def pairs(self) -> int:
        """Pairs of dimensions that are rotated."""
        return self.cos_sin.shape[1] // 2

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines, [tokens, pairs] each, single precision, at positions [tokens] or [3, tokens].

        Raises:
            ValueError: a position stands outside of the table, or has a number of axes that it does not know.
        """
        if positions.ndim not in (1, 2) or (positions.ndim == 2 and (len(positions) != 3 or self.sections is None)):
            raise ValueError("positions are [tokens], or [3, tokens] with M-RoPE")
        if positions.numel() and not 0 <= int(positions.min()) <= int(positions.max()) < len(self.cos_sin):
            raise ValueError(f"a position is outside of the model's {len(self.cos_sin)}")
        rows = self.cos_sin[positions].float()
        cos, sin = rows[..., : self.pairs], rows[..., self.pairs :]
        if positions.ndim == 1:
            return cos, sin
        axes = self._axes().expand(1, positions.shape[1], -1)
        return cos.gather(0, axes)[0], sin.gather(0, axes)[0]

    def _axes(self) -> Tensor:
        """Which axis each pair reads: 0 time, 1 height, 2 width."""
        assert self.sections is not None
        time, height, width = self.sections
        device = self.cos_sin.device
        if not self.interleaved:
            counts = torch.tensor([time, height, width], device=device)
            return torch.repeat_interleave(torch.arange(3, device=device), counts)
        pair = torch.arange(self.pairs, device=device)
        axis = pair % 3
        beyond = ((axis == 1) & (pair >= 3 * height)) | ((axis == 2) & (pair >= 3 * width))
        return torch.where(beyond, 0, axis)


def rotate(keys: Tensor, positions: Tensor, delta: int, table: RopeTable) -> Tensor:
    """Keys that stand at `positions`, as they would stand at `positions + delta`. Nothing given is changed.

    Args:
        keys: [..., tokens, KV heads, head dimensions], after the model's rotary embedding, any floating dtype.
        positions: where they stand, [tokens] or [3, tokens].
        delta: by how much all axes move; may be negative.
        table: the model's own.

    Returns:
        Keys of the same shape and dtype, computed in single precision and rounded once; those given when delta is 0.

    Raises:
        ValueError: a position stands outside of the table, or there is not one for each token.
    """
    if delta == 0:
        return keys
    if keys.ndim < 3 or keys.shape[-3] != positions.shape[-1] or keys.shape[-1] < 2 * table.pairs:
        raise ValueError("keys are [..., tokens, heads, dimensions], with one position for each token")
    cos, sin = _turn(positions, delta, table)
    rotated = 2 * table.pairs
    turned = keys.clone(memory_format=torch.contiguous_format)
    # One layer at a time stays in the processor's cache: seven times as fast as all at once.
    for layer in turned.view(-1, *keys.shape[-3:]).unbind():
        part = layer[..., :rotated].float()
        layer[..., :rotated].copy_((part * cos).addcmul_(_partners(part, table), sin))
    return turned


def _turn(positions: Tensor, delta: int, table: RopeTable) -> tuple[Tensor, Tensor]:
    """By what each dimension is multiplied, and by what its partner is that is added: [tokens, 1, dimensions] each."""
    (cos0, sin0), (cos1, sin1) = table.at(positions), table.at(positions + delta)
    # Complex division; the square of the table's magnitude is below it.
    size = cos0 * cos0 + sin0 * sin0
    cos, sin = (cos1 * cos0 + sin1 * sin0) / size, (sin1 * cos0 - cos1 * sin0) / size
    both = (torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1))
    if not table.neox:
        both = (torch.stack((cos, cos), -1).flatten(-2), torch.stack((-sin, sin), -1).flatten(-2))
    return both[0].unsqueeze(-2), both[1].unsqueeze(-2)


def _partners(part: Tensor, table: RopeTable) -> Tensor:
    """For each dimension the other one of its pair."""
    if table.neox:
        return part.roll(table.pairs, -1)
    return part.view(*part.shape[:-1], table.pairs, 2).flip(-1).view(part.shape)


def shift_between(old: Tensor, new: Tensor) -> int | None:
    """By how much an image moved, when all its tokens and all axes moved by the same; None when they did not.

    Positions are [tokens] or [3, tokens] each. No number of tokens, or two different ones, is no shift.
    """
    if old.shape != new.shape or not old.numel():
        return None
    moved = new - old
    delta = int(moved.flatten()[0])
    return delta if bool((moved == delta).all()) else None
