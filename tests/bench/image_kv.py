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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from engine.demo_model.random_checkpoint import CheckpointShape, build
from tests.contract.cases import Picture, user, words
from tests.contract.image_kv_rig import Rig, started

_PIXELS = 28
_MANY, _MANY_TOKENS = 20, 256


@dataclass(frozen=True, slots=True)
class _Way:
    """How the images are had: `ratio` None is full prefill; `evicted` empties the encoder cache before."""

    name: str
    ratio: float | None
    evicted: bool = False


_WAYS = (_Way("full", None), _Way("r0.05", 0.05), _Way("r0", 0), _Way("evicted_r0.05", 0.05, evicted=True))


async def _ask(rig: Rig, name: str, pictures: Sequence[Picture], seed: int, ratio: float | None) -> None:
    """A request for one token, that begins like no other."""
    content: list[str | Picture] = [words(30, seed=seed)]
    for picture in pictures:
        content += [picture, words(4, seed=seed)]
    await rig.ask(name, [user(*content)], ratio=ratio, tokens=1)


def _processor_seconds() -> float:
    """Of this process and those that it has started. Other work on the machine changes it less than the clock's."""
    ours = psutil.Process()
    times = [process.cpu_times() for process in (ours, *ours.children(recursive=True))]
    return sum(time.user + time.system for time in times)


async def _row(rig: Rig, name: str, pictures: Sequence[Picture], repeats: int, seed: int) -> dict[str, Any]:
    for at, picture in enumerate(pictures):
        await _ask(rig, f"bench-donor-{seed + at}", [picture], seed + 900 + at, None)
    # The first of its kind makes what is made once.
    await _ask(rig, f"bench-first-{seed}", pictures, seed + 800, 0.05)
    seconds: dict[str, list[tuple[float, float]]] = {way.name: [] for way in _WAYS}
    row: dict[str, Any] = {"images": name}
    for repeat in range(repeats):
        # In turn, for the machine may be slower in one minute than in the next.
        for number, way in enumerate(_WAYS):
            await rig.forget_prefixes()
            if way.evicted:
                await rig.forget_encoder_outputs()
            asked = f"bench-{seed}-{repeat}-{way.name}"
            processor, began = _processor_seconds(), time.perf_counter()
            await _ask(rig, asked, pictures, seed + 100 * number + repeat, way.ratio)
            seconds[way.name].append((time.perf_counter() - began, _processor_seconds() - processor))
            if way.ratio is not None:
                # Or the figures would be of something else.
                row[f"{way.name}_loaded_tokens"] = (await rig.reuse(asked)).loaded_tokens
    return row | _figures(seconds)


def _figures(seconds: dict[str, list[tuple[float, float]]]) -> dict[str, float]:
    """Medians, and how many times full prefill takes what each way takes: by the clock, and of the processor's time."""
    figures: dict[str, float] = {}
    median = {way: [statistics.median(column) for column in zip(*runs, strict=True)] for way, runs in seconds.items()}
    for way, (clock, processor) in median.items():
        figures |= {f"{way}_seconds": clock, f"{way}_processor_seconds": processor}
        if way != "full":
            figures[f"speedup_{way}"] = median["full"][0] / clock
            figures[f"processor_speedup_{way}"] = median["full"][1] / processor
    return {key: round(value, 4) for key, value in figures.items()}


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
