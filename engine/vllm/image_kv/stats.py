"""What the pool counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FileStats:
    """The file tier. Counts are since the start of the process.

    `evicted` entries went for room. `refused` files were damaged, cut off or not ours, and were removed. `faults` are
    refusals of the disk; `writing` is false after one of a write.
    """

    entries: int = 0
    bytes: int = 0
    evicted: int = 0
    refused: int = 0
    faults: int = 0
    writing: bool = False


@dataclass(frozen=True, slots=True)
class PoolStats:
    """The pool. Counts are since the start of the process.

    `memory_hits`, `file_hits` and `misses` count holds that were asked for. `refused_entries` found no room in memory,
    for all of it was held, or is less than one needs. `held_entries` are in use now, `unwritten_entries` are on their
    way to a file.
    """

    memory_entries: int
    memory_bytes: int
    held_entries: int
    unwritten_entries: int
    memory_hits: int
    file_hits: int
    misses: int
    memory_evicted: int
    refused_entries: int
    files: FileStats
