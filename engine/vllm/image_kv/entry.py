"""What the pool holds of one image, in one piece of memory of the image's own size."""

# torch leaves much of its types open.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_ALIGN_BYTES = 64


@dataclass(frozen=True, slots=True)
class Layout:
    """How an image's tensors lie in memory.

    Keys and values are [layers, tokens, KV heads, head dimensions], the encoder output is [tokens, `encoder_width`];
    a width of 0 is an entry without one. dtypes are names of `DTYPES`.
    """

    layers: int
    kv_heads: int
    head_size: int
    dtype: str
    encoder_width: int = 0
    encoder_dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES or self.encoder_dtype not in DTYPES:
            raise ValueError(f"the pool holds {', '.join(DTYPES)}; other dtypes would have to be converted")

    def shapes(self, tokens: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Shapes of keys, values and encoder output."""
        kv = (self.layers, tokens, self.kv_heads, self.head_size)
        return kv, kv, (tokens, self.encoder_width)

    def parts(self, tokens: int) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        """Where keys, values and encoder output lie: first byte and number of bytes."""
        kv, _, encoder = self.shapes(tokens)
        kv_bytes = prod(kv) * DTYPES[self.dtype].itemsize
        second, third = _aligned(kv_bytes), 2 * _aligned(kv_bytes)
        return (0, kv_bytes), (second, kv_bytes), (third, prod(encoder) * DTYPES[self.encoder_dtype].itemsize)

    def bytes(self, tokens: int) -> int:
        """Memory of an image of so many tokens."""
        first, size = self.parts(tokens)[2]
        return first + size


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """One image: its K/V in every layer and what the vision encoder gave for it.

    `position` is where its first token stood on the axis of time (M-RoPE) or at all. `cost` is what computing it anew
    takes, in any unit that is the same for all entries of a pool. The tensors are views of `memory`; who makes an entry
    writes them, and nobody does once it is in a pool.
    """

    layout: Layout
    tokens: int
    position: int
    cost: float
    memory: Tensor

    @staticmethod
    def empty(layout: Layout, tokens: int, position: int, cost: float) -> Entry:
        """An entry to be written, with memory of its own that is not cleared."""
        return Entry(layout, tokens, position, cost, torch.empty(layout.bytes(tokens), dtype=torch.uint8))

    @property
    def keys(self) -> Tensor:
        """[layers, tokens, KV heads, head dimensions], rotated for where the image stood."""
        return self._part(0, self.layout.dtype)

    @property
    def values(self) -> Tensor:
        """[layers, tokens, KV heads, head dimensions]."""
        return self._part(1, self.layout.dtype)

    @property
    def encoder(self) -> Tensor | None:
        """[tokens, encoder width]; None when it is not kept."""
        return self._part(2, self.layout.encoder_dtype) if self.layout.encoder_width else None

    @property
    def bytes(self) -> int:
        """Memory that it takes."""
        return self.memory.numel()

    def _part(self, index: int, dtype: str) -> Tensor:
        first, size = self.layout.parts(self.tokens)[index]
        return self.memory[first : first + size].view(DTYPES[dtype]).view(self.layout.shapes(self.tokens)[index])


def _aligned(size: int) -> int:
    return -(-size // _ALIGN_BYTES) * _ALIGN_BYTES
