"""What does eviction by modality save against vLLM's LRU, and what does it cost?

    python -m tests.bench.blocks [--loads 60] [--first 0] [--kind any|interleaved] [--json FILE]
    python -m tests.bench.blocks --scale

Made-up loads on vLLM's own KV cache manager, without a model; each on both pools. Tokens are exact, times are of this
machine: give it a quiet one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import Any

from tests.bench.block_loads import BLOCK, Turn, any_mix, interleaved, make
from tests.bench.block_loads import words as words_of
from tests.bench.block_replay import manager_of, replay, request_of

# Below this share of the prompts vLLM's LRU evicts hardly anything that is needed again.
_LEAST_SHARE = 0.005
_SIZES = (1000, 8000, 64_000)
_REQUESTS, _REQUEST_BLOCKS = 100, 64


def main(words: Sequence[str] | None = None) -> None:
    """Measure, and print the distribution."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loads", type=int, default=60)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--kind", choices=("any", "interleaved"), default="any")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--scale", action="store_true", help="only the time of operations, in caches of several sizes")
    args = parser.parse_args(words)
    if args.scale:
        for blocks in _SIZES:
            lru, ours = (min(operation_seconds(kind, blocks) for _ in range(3)) for kind in _pools())
            times = f"LRU {lru * 1e6:.2f} us a block, by modality {ours * 1e6:.2f}"
            print(f"{blocks:7} blocks: {times}, {ours / lru:.2f} times")
        return
    rows = [measure(args.kind, seed) for seed in range(args.first, args.first + args.loads)]
    if args.json:
        args.json.write_text(json.dumps({"rows": rows}, indent=1))
    told = [row for row in rows if row["lru_recomputed"] >= _LEAST_SHARE * row["prompt_tokens"]]
    print(f"{len(told)} of {len(rows)} loads in which LRU computes over {_LEAST_SHARE:.1%} of the prompts again")
    for key in ("active_change", "change"):
        values = sorted(row[key] for row in told)
        print(f"{key:14} {spread(values)}; worse by over 5% in {sum(value > 0.05 for value in values)}")
    print(f"worst, of all prompt tokens: {max(row['change_of_prompt'] for row in rows):+.2%}")
    recomputed, lru = (sum(row[key] for row in rows) for key in ("recomputed", "lru_recomputed"))
    print(f"all loads together {recomputed / lru - 1:+.1%}")
    print(f"time in the manager {statistics.median(row['time_ratio'] for row in rows):.2f} times LRU's")


def measure(kind: str, seed: int) -> dict[str, Any]:
    """One load on both pools."""
    load = make((interleaved if kind == "interleaved" else any_mix)(seed), seed)
    lru, ours = (replay(load, pool) for pool in _pools())
    return {
        "seed": seed,
        "turns": len(load.turns),
        "blocks": load.blocks,
        "prompt_tokens": lru.prompt,
        "known_tokens": lru.known,
        "lru_recomputed": lru.recomputed,
        "recomputed": ours.recomputed,
        "active_change": _change(ours.recomputed_active, lru.recomputed_active),
        "change": _change(ours.recomputed, lru.recomputed),
        "change_of_prompt": (ours.recomputed - lru.recomputed) / lru.prompt,
        "time_ratio": ours.seconds / lru.seconds,
    }


def _pools() -> tuple[type[Any], type[Any]]:
    # Imported by the replay already: with vLLM.
    from engine.vllm.blocks.pool import ModalityBlockPool
    from engine.vllm.core_0_32 import BlockPool

    return BlockPool, ModalityBlockPool


def operation_seconds(pool: type[Any], blocks: int) -> float:
    """For each block of a request: to find that it is not there, take another's, cache it, and let it go.

    Args:
        pool: of which class.
        blocks: in the cache, all of them taken by conversations of `_REQUEST_BLOCKS`.
    """
    manager, rng = manager_of(pool, blocks), Random(1)  # noqa: S311
    turns = (Turn("", True, tuple(words_of(rng, _REQUEST_BLOCKS * BLOCK)), (), ()) for _ in count())
    requests = (request_of(number, turn) for number, turn in enumerate(turns))
    for request in islice(requests, blocks // _REQUEST_BLOCKS):
        _serve(manager, request)
    measured = list(islice(requests, _REQUESTS))
    began = time.process_time()
    for request in measured:
        _serve(manager, request)
    return (time.process_time() - began) / (_REQUESTS * _REQUEST_BLOCKS)


def _serve(manager: Any, request: Any) -> None:
    found, read, *_ = manager.get_computed_blocks(request)
    assert manager.allocate_slots(request, request.num_tokens - read, read, found) is not None
    manager.free(request)


def spread(values: Sequence[float]) -> str:
    """The distribution in a line."""
    if not values:
        return "none"
    at = [values[min(len(values) - 1, int(len(values) * part))] for part in (0.1, 0.5, 0.9)]
    middle = " ".join(f"{name} {value:+.1%}" for name, value in zip(("p10", "median", "p90"), at, strict=True))
    return f"mean {statistics.mean(values):+.1%} {middle} worst {values[-1]:+.1%}"


def _change(now: int, before: int) -> float:
    return now / before - 1 if before else 0.0


if __name__ == "__main__":
    main()
