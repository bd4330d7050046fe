"""Perceptual hashes, for a report, and for a policy that lets one image stand for another in its slot.

They never decide what an image is: near is not same.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from concurrent.futures import Executor
from dataclasses import dataclass

import imagehash
import numpy as np
from PIL import Image

from context.images.decode import Thumbnail
from context.images.memo import Lru

_log = logging.getLogger(__name__)
_MAX_IMAGES_PER_TENANT = 1024
_MAX_TENANTS = 256
_MAX_QUEUE = 64
# Standard deviation of gray levels below which a hash is made of rounding noise.
_LOW_INFORMATION_LEVELS = 2.0


@dataclass(frozen=True, slots=True)
class NearDuplicate:
    """Two images of a tenant whose hashes differ in `distance` of 64 bits.

    `low_information` says that one of them is so featureless that the hashes agree by accident.
    """

    first: str
    second: str
    distance: int
    low_information: bool


@dataclass(frozen=True, slots=True)
class Alike:
    """Images within the distance of one: how many, and the nearest of them, nearest first."""

    count: int
    nearest: tuple[NearDuplicate, ...]


@dataclass(frozen=True, slots=True)
class _Print:
    bits: int
    low_information: bool


class NearDuplicates:
    """Hashes thumbnails in the background and compares them on demand. Memory is bounded; the oldest is forgotten.

    Args:
        distance: largest distance that is reported, in bits.
        executor: where hashing runs; it is not closed here.
    """

    def __init__(self, distance: int, executor: Executor) -> None:
        self._distance, self._executor = distance, executor
        self._queue: asyncio.Queue[tuple[str, str, Thumbnail]] = asyncio.Queue(_MAX_QUEUE)
        self._tenants: Lru[str, OrderedDict[str, _Print]] = Lru(_MAX_TENANTS)
        self._worker: asyncio.Task[None] | None = None
        self.dropped_images = 0
        # The first hash imports scipy, which would fall into the first image's time.
        _fingerprint(Thumbnail(32, 32, bytes(1024)))

    def offer(self, tenant: str, image_id: str, thumbnail: Thumbnail) -> None:
        """Queue an image; it is dropped, and counted, when the queue is full."""
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())
        try:
            self._queue.put_nowait((tenant, image_id, thumbnail))
        except asyncio.QueueFull:
            self.dropped_images += 1

    def report(self, tenant: str) -> list[NearDuplicate]:
        """All pairs of the tenant's remembered images within the distance, nearest first."""
        prints = list((self._tenants.peek(tenant) or OrderedDict[str, _Print]()).items())
        bits = np.array([found.bits for _, found in prints], np.uint64)
        pairs: list[NearDuplicate] = []
        for index, (image_id, found) in enumerate(prints[:-1]):
            distances = np.bitwise_count(bits[index + 1 :] ^ bits[index])
            for offset in np.flatnonzero(distances <= self._distance):
                other_id, other = prints[index + 1 + int(offset)]
                low = found.low_information or other.low_information
                pairs.append(NearDuplicate(image_id, other_id, int(distances[offset]), low))
        return sorted(pairs, key=lambda pair: pair.distance)

    def alike(self, tenant: str, image_id: str, most: int) -> Alike:
        """What looks like one of the tenant's images, which is the `first` of each pair. Any thread may ask."""
        # At once, for the event loop goes on adding to it.
        prints = list((self._tenants.get(tenant) or OrderedDict[str, _Print]()).items())
        mine = next((found for name, found in prints if name == image_id), None)
        if mine is None:
            return Alike(0, ())
        distances = np.bitwise_count(np.array([found.bits for _, found in prints], np.uint64) ^ np.uint64(mine.bits))
        near: list[tuple[int, str, bool]] = []
        for at in np.flatnonzero(distances <= self._distance):
            name, found = prints[int(at)]
            if name != image_id:
                near.append((int(distances[at]), name, mine.low_information or found.low_information))
        nearest = sorted(near)[:most]
        return Alike(len(near), tuple(NearDuplicate(image_id, name, bits, low) for bits, name, low in nearest))

    def are_alike(self, tenant: str, first: str, second: str, distance: int) -> bool:
        """Whether the hashes of two images differ in at most `distance` of 64 bits; not where one is not hashed yet, or
        so featureless that its hash says nothing."""
        prints = self._tenants.get(tenant) or {}
        one, two = prints.get(first), prints.get(second)
        if one is None or two is None or one.low_information or two.low_information:
            return False
        return (one.bits ^ two.bits).bit_count() <= distance

    async def settle(self) -> None:
        """Wait until everything that was queued is hashed."""
        await self._queue.join()

    async def close(self) -> None:
        if self._worker is not None:
            self._worker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._worker

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            tenant, image_id, thumbnail = await self._queue.get()
            try:
                found = await loop.run_in_executor(self._executor, _fingerprint, thumbnail)
            except Exception as error:
                # A report that lacks an image is better than one that ends with it. The text may hold anything.
                _log.warning("an image has no perceptual hash: %s", type(error).__name__)
                continue
            finally:
                self._queue.task_done()
            prints = self._tenants.get(tenant)
            if prints is None:
                prints = OrderedDict[str, _Print]()
                self._tenants.put(tenant, prints)
            prints[image_id] = found
            if len(prints) > _MAX_IMAGES_PER_TENANT:
                prints.popitem(last=False)


def _fingerprint(thumbnail: Thumbnail) -> _Print:
    image = Image.frombytes("L", (thumbnail.width, thumbnail.height), thumbnail.levels)
    deviation = float(np.asarray(image).std())
    return _Print(int(str(imagehash.phash(image)), 16), deviation < _LOW_INFORMATION_LEVELS)
