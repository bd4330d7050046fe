"""What the engine keeps beside its caches: the pool of images' KV, and the tiers for blocks. Each in memory and in
files, against their bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.base import BlockTierState, ImagePoolState


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bytes that there may be, in memory and in files; `files` is None where there are none, both where they are not
    known."""

    memory: int | None = None
    files: int | None = None


def pool_figures(pool: ImagePoolState, bounds: Bounds) -> dict[str, Any]:
    """The pool, by where an image's KV is; `misses` are of both."""
    found: dict[str, Any] = {
        "misses": pool.misses,
        "held_entries": pool.held_entries,
        "faults": pool.file_faults,
        "writing": bool(pool.writing),
        "memory": {
            "entries": pool.memory_entries,
            "bytes": pool.memory_bytes,
            "bound_bytes": bounds.memory,
            "hits": pool.memory_hits,
            "evicted": pool.memory_evicted,
            "refused": pool.refused_entries,
        },
        "files": None,
    }
    if bounds.files is not None or pool.writing or pool.file_entries or pool.file_faults:
        found["files"] = {
            "entries": pool.file_entries,
            "bytes": pool.file_bytes,
            "bound_bytes": bounds.files,
            "hits": pool.file_hits,
            "evicted": pool.file_evicted,
            "refused": pool.file_refused,
        }
    return found


def tier_figures(tiers: BlockTierState, bounds: Bounds) -> dict[str, Any]:
    """The tiers, by where a block is."""
    blocks = {"text": tiers.text_blocks, "image": tiers.image_blocks, "mixed": tiers.mixed_blocks}
    found: dict[str, Any] = {
        "faults": tiers.file_faults,
        "writing": bool(tiers.writing),
        "blocks": blocks,
        "memory": {
            "entries": sum(blocks.values()),
            "bytes": sum(blocks.values()) * tiers.block_bytes,
            "bound_bytes": bounds.memory,
            "stored": tiers.memory_stored,
            "loaded": tiers.memory_loaded,
            "evicted": tiers.memory_evicted,
            "dropped": tiers.memory_dropped,
            "refused": None,
        },
        "files": None,
    }
    if bounds.files is not None or tiers.writing or tiers.file_blocks or tiers.file_faults:
        found["files"] = {
            "entries": tiers.file_blocks,
            "bytes": tiers.file_bytes,
            "bound_bytes": bounds.files,
            "stored": tiers.file_stored,
            "loaded": tiers.file_loaded,
            "evicted": tiers.file_evicted,
            "dropped": tiers.file_dropped,
            "refused": tiers.file_refused,
        }
    return found
