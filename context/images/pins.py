"""The bytes that stand for an image's pixels: chosen at first sight, stored once, given out as data URLs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any, TypeVar

import pybase64

from context.errors import ImageError
from context.images.base import INLINE_BYTES, ImageLimits, ImageRef
from context.images.decode import Canonical
from context.images.memo import Lru, SingleFlight
from context.images.near import NearDuplicates
from context.images.snapshots import tenant_folder
from context.images.sniff import sniff
from context.images.stats import ImageStats
from context.store.blobs import BlobStore, StoreError

_T = TypeVar("_T")
# Asking a server for every image of a long history would take longer than the rest of the request.
_TRUST_SERVER_SECONDS = 60.0


class Pins:
    """Pinned bytes by tenant and image_id: a byte-bounded cache of payloads over the blob store.

    Args:
        store: where the bytes last.
        limits: bounds of memory.
        stats: where hits, loads and failures are counted.
        helper: runs encoding and checks of large images; it is not closed here.
        near: told of every image that is pinned.
    """

    def __init__(
        self, store: BlobStore, limits: ImageLimits, stats: ImageStats, helper: Executor, near: NearDuplicates
    ) -> None:
        self._store, self._limits, self._stats, self._helper, self._near = store, limits, stats, helper, near
        self._flights = SingleFlight()
        self._refs: Lru[tuple[str, str], ImageRef] = Lru(limits.memo_entries)
        self._seen: Lru[tuple[str, str], float] = Lru(limits.memo_entries)
        self._payloads: Lru[tuple[str, str], bytes] = Lru(limits.payload_cache_bytes, len)

    async def find(self, image_id: str, tenant: str) -> ImageRef | None:
        """The reference of an image whose bytes are there; None when they have to be pinned (again)."""
        ref = self._refs.get((tenant, image_id))
        # With a store that cannot be read, an image that is decoded again is served from memory.
        return ref if ref is not None and await self._is_there(ref, tenant, if_unreadable=False) else None

    async def keep(self, ref: ImageRef, tenant: str) -> bool:
        """Remember a reference whose bytes were pinned before, such as one from a snapshot.

        Returns:
            False, and nothing is remembered, when its bytes are gone. A store that cannot be read is believed to have
            them: what a URL showed in history is not exchanged because of a hiccup.
        """
        if not await self._is_there(ref, tenant, if_unreadable=True):
            return False
        self._refs.put((tenant, ref.image_id), ref)
        return True

    async def pin(self, image: Canonical, tenant: str) -> ImageRef:
        """Keep the bytes that stand for these pixels from now on.

        The first ones stay, also over a restart: what an engine was sent is not exchanged for another encoding.
        """
        return await self.find(image.image_id, tenant) or await self._flights.run(
            ("pin", tenant, image.image_id), lambda: self._pin(image, tenant)
        )

    async def payload(self, ref: ImageRef, tenant: str) -> bytes:
        """The data URL.

        Raises:
            ImageError: `image_lost`.
            StoreError: the store cannot be read.
        """
        key = (tenant, ref.image_id)
        if found := self._payloads.get(key):
            self._stats.payload_hits += 1
            return found
        return await self._flights.run(("payload", *key), lambda: self._load(ref, tenant))

    async def close(self) -> None:
        await self._flights.close()

    async def _pin(self, image: Canonical, tenant: str) -> ImageRef:
        key = (tenant, image.image_id)
        ref = ImageRef(image.image_id, image.width, image.height, image.media_type, len(image.pinned))
        pinned = image.pinned
        try:
            stored = await self._store.get(_blob_key(*key))
            media_type = None if stored is None else await self._in_helper(_media_type, stored, self._limits)
            if stored is not None and media_type:
                pinned, ref = stored, replace(ref, media_type=media_type, size_bytes=len(stored))
            else:
                await self._store.put(_blob_key(*key), pinned, {"Content-Type": ref.media_type})
        except StoreError as error:
            self._stats.store_failed(error)
        self._payloads.put(key, await self._data_url(ref, pinned))
        self._refs.put(key, ref)
        self._near.offer(tenant, image.image_id, image.thumbnail)
        return ref

    async def _load(self, ref: ImageRef, tenant: str) -> bytes:
        self._stats.payload_loads += 1
        key = (tenant, ref.image_id)
        data = await self._store.get(_blob_key(*key))
        if data is None or len(data) != ref.size_bytes:
            # One is seldom lost alone, so that the next request looks for all of its images.
            self._seen.clear()
            raise ImageError("The image's bytes are no longer stored. Send the image again.", code="image_lost")
        payload = await self._data_url(ref, data)
        self._payloads.put(key, payload)
        return payload

    async def _is_there(self, ref: ImageRef, tenant: str, *, if_unreadable: bool) -> bool:
        """Whether the bytes are in memory or in the store; a sweep then takes them later.

        A server's word is trusted for a minute, until a blob proves to be lost.
        """
        key = (tenant, ref.image_id)
        if self._payloads.get(key) is None and not self._was_seen(key):
            try:
                size = await self._store.size(_blob_key(*key))
            except StoreError as error:
                self._stats.store_failed(error)
                return if_unreadable
            if size != ref.size_bytes:
                return False
            self._seen.put(key, time.monotonic())
        await self._store.touch(_blob_key(*key))
        return True

    def _was_seen(self, key: tuple[str, str]) -> bool:
        if self._store.is_local:
            return False
        seen = self._seen.get(key)
        return seen is not None and time.monotonic() - seen < _TRUST_SERVER_SECONDS

    async def _data_url(self, ref: ImageRef, data: bytes) -> bytes:
        if len(data) <= INLINE_BYTES:
            return _data_url(ref.media_type, data)
        return await self._in_helper(_data_url, ref.media_type, data)

    async def _in_helper(self, work: Callable[..., _T], *args: Any) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._helper, work, *args)


def _media_type(data: bytes, limits: ImageLimits) -> str | None:
    """The media type of a blob that is a whole image; None for what a crash may have left behind."""
    try:
        return sniff(data, limits).media_type
    except ImageError:
        return None


def _data_url(media_type: str, data: bytes) -> bytes:
    return b"".join((b"data:", media_type.encode(), b";base64,", pybase64.b64encode(data)))


def _blob_key(tenant: str, image_id: str) -> str:
    return f"{tenant_folder(tenant)}/images/{image_id}"
