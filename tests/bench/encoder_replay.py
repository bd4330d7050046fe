"""Made-up traffic of images for the encoder cache: what would have to be encoded again?

It is asked for the images whose tokens the prefix cache does not have: those that are new, those that many show, and
those of a conversation whose history was cut or evicted.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

# Identifier and embeddings.
Asked = tuple[str, int]
SIZES = (64, 256, 1024, 2048)


@dataclass(frozen=True, slots=True)
class ImageLoad:
    """Requests, each with the images that have to be there, and the cache in embeddings."""

    requests: tuple[tuple[Asked, ...], ...]
    cache: int


def make_images(seed: int, count: int = 600) -> ImageLoad:
    """A load from one seed: popular images, images of conversations that come back for some time, and such that come
    once, in any shares.
    """
    rng = random.Random(seed)  # noqa: S311
    popular = [_new(rng, f"popular-{number}") for number in range(rng.choice((0, 4, 20)))]
    conversations = [list[Asked]() for _ in range(rng.choice((2, 6, 12)))]
    of_popular, again, once = rng.choice((0.1, 0.4)), rng.choice((0.1, 0.4, 0.8)), rng.choice((0.1, 0.4, 0.7))
    lasting = rng.choice((8, 30))
    requests: list[tuple[Asked, ...]] = []
    for number in range(count):
        shown: list[Asked] = []
        if rng.random() < once:
            shown.append(_new(rng, f"once-{number}"))
        if popular and rng.random() < of_popular:
            shown.append(popular[min(len(popular) - 1, int(rng.expovariate(3 / len(popular))))])
        mine = conversations[rng.randrange(len(conversations))]
        if mine and rng.random() < again:
            shown.append(rng.choice(mine[-3:]))
        else:
            mine.append(_new(rng, f"own-{number}"))
            shown.append(mine[-1])
        if rng.random() < 1 / lasting:
            mine.clear()
        requests.append(tuple(dict(shown).items()))
    held = sum(size for mine in conversations for _, size in mine[-3:]) + sum(size for _, size in popular)
    return ImageLoad(tuple(requests), max(5 * max(SIZES), int(rng.choice((0.4, 0.8, 1.5)) * held)))


def replay_images(load: ImageLoad, manager: Any, at_once: int = 2) -> int:
    """Serve a load, `at_once` requests at one time.

    Returns:
        Embeddings that were computed although they had been before.
    """
    # Imported late: with it comes vLLM.
    from tests.bench.block_replay import request_with

    running: list[Any] = []
    seen, again = set[str](), 0
    for number, images in enumerate(load.requests):
        while len(running) >= at_once:
            manager.free(running.pop(0))
        request = request_with(number, images)
        running.append(request)
        for at, (identifier, embeddings) in enumerate(images):
            if manager.check_and_update_cache(request, at):
                continue
            assert manager.can_allocate(request, at, 1 << 30, 0)
            manager.allocate(request, at)
            again += embeddings * (identifier in seen)
            seen.add(identifier)
    return again


def _new(rng: random.Random, name: str) -> Asked:
    return name, rng.choice(SIZES)
