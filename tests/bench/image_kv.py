"""Time to first token with images' KV from the pool, against full prefill with a warm encoder, in one run.

    python -m tests.bench.image_kv [--layers 14 --hidden 1024 --repeats 3 --tokens 1024 4096] [--json FILE]

Every request has its own text before the image, so that nothing of it stands in the prefix cache. The model has random
weights: only times mean anything.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from engine.demo_model.random_checkpoint import CheckpointShape, build
from tests.contract.cases import Picture, user, words
from tests.contract.image_kv_rig import Rig, started

_PIXELS = 28
_MANY, _MANY_TOKENS = 20, 256


async def _seconds(rig: Rig, pictures: Sequence[Picture], seed: int, ratio: float | None) -> float:
    """To the first token of a request that begins like no other."""
    content: list[str | Picture] = [words(30, seed=seed)]
    for picture in pictures:
        content += [picture, words(4, seed=seed)]
    began = time.perf_counter()
    await rig.ask(f"bench-{seed}-{ratio}", [user(*content)], ratio=ratio, tokens=1)
    return time.perf_counter() - began


async def _median(repeats: int, before: Callable[[], Awaitable[None]], run: Callable[[int], Awaitable[float]]) -> float:
    found: list[float] = []
    for repeat in range(repeats):
        await before()
        found.append(await run(repeat))
    return statistics.median(found)


async def _row(rig: Rig, name: str, pictures: Sequence[Picture], repeats: int, seed: int) -> dict[str, Any]:
    for at, picture in enumerate(pictures):
        await _seconds(rig, [picture], seed + 900 + at, None)
    # The first of its kind makes what is made once.
    await _seconds(rig, pictures, seed + 800, 0.05)

    async def forget() -> None:
        await rig.forget_prefixes()

    async def forget_encoder_too() -> None:
        await rig.forget_prefixes()
        await rig.forget_encoder_outputs()

    row: dict[str, Any] = {"images": name}
    row["full_seconds"] = await _median(repeats, forget, lambda at: _seconds(rig, pictures, seed + at, None))
    for ratio in (0.05, 0):
        run = _runner(rig, pictures, seed + 100, ratio)
        row[f"r{ratio}_seconds"] = await _median(repeats, forget, run)
        # Or the figures would be of something else.
        row[f"r{ratio}_loaded_tokens"] = (await rig.reuse(f"bench-{seed + 100}-{ratio}")).loaded_tokens
    run = _runner(rig, pictures, seed + 300, 0.05)
    row["evicted_r0.05_seconds"] = await _median(repeats, forget_encoder_too, run)
    row["speedup_r0.05"] = row["full_seconds"] / row["r0.05_seconds"]
    row["speedup_r0"] = row["full_seconds"] / row["r0_seconds"]
    row["speedup_evicted"] = row["full_seconds"] / row["evicted_r0.05_seconds"]
    return {key: value if isinstance(value, str) else round(value, 4) for key, value in row.items()}


def _runner(rig: Rig, pictures: Sequence[Picture], seed: int, ratio: float) -> Callable[[int], Awaitable[float]]:
    return lambda at: _seconds(rig, pictures, seed + at, ratio)


def _pictures(tokens: int, count: int, shade: int) -> list[Picture]:
    side = round(tokens**0.5) * _PIXELS
    return [Picture(f"bench-{tokens}-{shade + at}", side, side, shade=shade + at) for at in range(count)]


async def _run(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    largest = max([*options.tokens, _MANY_TOKENS])
    shape = CheckpointShape(layers=options.layers, hidden=options.hidden, heads=8, kv_heads=4, max_image_tokens=largest)
    checkpoint = build(folder / "model", shape)
    room = _MANY * (_MANY_TOKENS + 40) + largest
    given: dict[str, Any] = {
        "dtype": options.dtype,
        "max-model-len": room + 1024,
        "num-gpu-blocks-override": 2 * (room + 1024) // 32,
        "max-num-batched-tokens": 8192,
        "limit-mm-per-prompt": {"image": 32, "video": 0},
    }
    async with started(checkpoint, {"memory_gib": 6}, **given) as rig:
        cases = [(f"1 x {tokens}", _pictures(tokens, 1, tokens % 97)) for tokens in options.tokens]
        if options.many:
            cases.append((f"{_MANY} x {_MANY_TOKENS}", _pictures(_MANY_TOKENS, _MANY, 300)))
        rows: list[dict[str, Any]] = []
        for at, (name, pictures) in enumerate(cases, 1):
            rows.append(await _row(rig, name, pictures, options.repeats, 10_000 * at))
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Command line of the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.image_kv", description=__doc__)
    parser.add_argument("--layers", type=int, default=14)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, nargs="*", default=[1024, 4096])
    parser.add_argument("--no-many", dest="many", action="store_false")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = asyncio.run(_run(options, Path(folder)))
    if options.json:
        options.json.write_text(json.dumps({"rows": rows}, indent=2))


if __name__ == "__main__":
    main()
