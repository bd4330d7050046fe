"""What the tiers count."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FileStats:
    """The file tier. Counts are since the start of the process.

    `stored` blocks were written, `loaded` read and found sound, `evicted` removed for room. `dropped` blocks were not
    written: too many were waiting, or the disk refused. `refused` files were damaged, cut off or not ours, and were
    removed. `faults` are refusals of the disk; `writing` is false after one of a write.
    """

    blocks: int = 0
    bytes: int = 0
    stored: int = 0
    loaded: int = 0
    evicted: int = 0
    dropped: int = 0
    refused: int = 0
    faults: int = 0
    writing: bool = False
