"""Small entries for the tests of the pool."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from pathlib import Path

import torch

from engine.vllm.image_kv.entry import Entry, Layout
from engine.vllm.image_kv.keys import EntryKey

LAYOUT = Layout(layers=3, kv_heads=2, head_size=8, dtype="bfloat16", encoder_width=16)
TOKENS = 4
BYTES = LAYOUT.bytes(TOKENS)
FILE_BYTES = 4096 + BYTES
FINGERPRINT = "f" * 64


def key(
    image: int, *, tenant: str = "a", fingerprint: str = FINGERPRINT, grid: tuple[int, int, int] = (1, 2, 2)
) -> EntryKey:
    return EntryKey(fingerprint, tenant, f"image-{image}", grid)


def entry(seed: int, *, tokens: int = TOKENS, cost: float = 1.0, position: int = 7) -> Entry:
    """An entry of random numbers, the same ones for the same seed."""
    made = Entry.empty(LAYOUT, tokens, position, cost)
    made.memory.copy_(torch.randint(0, 256, made.memory.shape, dtype=torch.uint8, generator=_generator(seed)))
    return made


def same(one: Entry | None, two: Entry) -> bool:
    return (
        one is not None
        and torch.equal(one.memory, two.memory)
        and (one.layout, one.tokens, one.position, one.cost) == (two.layout, two.tokens, two.position, two.cost)
    )


def file_of(folder: Path, entry_key: EntryKey) -> Path:
    return folder / f"{entry_key.digest}.imagekv"


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
