"""Costs of the image service: `python -m tests.bench.images [--json]`. Prints figures; passes no judgement.

Rows: what a 1 MB PNG costs when it was seen before, what 12-megapixel images cost at first sight, and how late the
event loop is while they are decoded.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pybase64
from PIL import Image

from context.images.base import FetchLimits, ImageLimits, ImageSource
from context.images.service import ImageService
from context.store.blobs import BlobStore


def picture(width: int, height: int, seed: int) -> Image.Image:
    """A gradient with a little noise: compresses like a photo."""
    noise = np.random.default_rng(seed).integers(0, 12, (height, width, 3), dtype=np.uint8)
    y, x = np.mgrid[0:height, 0:width]
    ramp = np.stack([x * 240 // width, y * 240 // height, (x + y) * 240 // (width + height)], -1).astype(np.uint8)
    return Image.fromarray(ramp + noise)


def source(image: Image.Image, format: str, **options: Any) -> ImageSource:
    out = io.BytesIO()
    image.save(out, format, **options)
    text = pybase64.b64encode_as_string(out.getvalue())
    return ImageSource("data", f"data:image/{format.lower()};base64,{text}", "messages[0].content[0]")


def alpha(seed: int) -> Image.Image:
    image = picture(4000, 3000, seed)
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    return image


async def first_sight(make: Callable[[int], ImageSource], images: int) -> dict[str, float]:
    """First sights one after the other; the event loop's lateness is sampled every millisecond meanwhile."""
    service = ImageService(ImageLimits(max_image_bytes=64 << 20), FetchLimits(enabled=False), BlobStore("memory://"))
    sources = [make(seed) for seed in range(images)]
    late: list[float] = []

    async def sample() -> None:
        while True:
            due = time.perf_counter() + 0.001
            await asyncio.sleep(0.001)
            late.append(time.perf_counter() - due)

    sampler = asyncio.create_task(sample())
    costs: list[float] = []
    for one in sources:
        start = time.perf_counter()
        await service.resolve(one, tenant="bench")
        costs.append(time.perf_counter() - start)
    sampler.cancel()
    await service.close()
    late.sort()
    return {
        "megabytes": round(len(sources[0].value) / 1e6, 1),
        "first_sight_ms": round(statistics.median(costs) * 1e3, 1),
        "loop_lag_p99_ms": round(late[int(len(late) * 0.99)] * 1e3, 2),
        "loop_lag_max_ms": round(late[-1] * 1e3, 2),
    }


async def seen_before(repeats: int) -> dict[str, float]:
    service = ImageService(ImageLimits(), FetchLimits(enabled=False), BlobStore("memory://"))
    one = source(picture(760, 600, 0), "PNG", compress_level=1)
    ref = await service.resolve(one, tenant="bench")
    costs: list[float] = []
    text = str(one.value).encode()
    for _ in range(repeats):
        # A view of new bytes each time, as a new request brings one.
        again = ImageSource("data", memoryview(bytearray(text)), one.place)
        start = time.perf_counter()
        assert await service.resolve(again, tenant="bench") == ref
        costs.append(time.perf_counter() - start)
    await service.close()
    costs.sort()
    return {
        "megabytes": round(len(one.value) / 1e6, 2),
        "seen_before_p50_ms": round(costs[repeats // 2] * 1e3, 3),
        "seen_before_p99_ms": round(costs[int(repeats * 0.99)] * 1e3, 3),
    }


async def measure() -> dict[str, dict[str, float]]:
    return {
        "1 MB PNG, seen before": await seen_before(300),
        "12 MP JPEG": await first_sight(lambda seed: source(picture(4000, 3000, seed), "JPEG", quality=90), 4),
        "12 MP PNG": await first_sight(lambda seed: source(picture(4000, 3000, seed), "PNG", compress_level=1), 3),
        "12 MP WebP": await first_sight(lambda seed: source(picture(4000, 3000, seed), "WEBP", method=0), 3),
        "12 MP PNG with alpha": await first_sight(lambda seed: source(alpha(seed), "PNG", compress_level=1), 2),
        "process": {"peak_megabytes": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 0)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    rows = asyncio.run(measure())
    if parser.parse_args().json:
        print(json.dumps(rows))
        return
    for name, figures in rows.items():
        print(f"{name:24}", "  ".join(f"{key} {value}" for key, value in figures.items()))


if __name__ == "__main__":
    main()
