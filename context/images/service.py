"""Images of requests: from what a client sent to an identity, and from an identity to the pinned bytes.

    text -> digest of the text -> memory?  -> ImageRef                       (seen before: one hash)
         -> bytes -> digest of the bytes -> memory? -> ImageRef              (same file, other spelling)
         -> header checks -> pixels -> image_id -> pinned bytes -> store     (first sight: once, in the pool)

Everything is kept per tenant: digests are salted with the tenant, and blobs lie in the tenant's own folder.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from aiohttp.abc import AbstractResolver

from context.errors import ConfigError, ImageError
from context.images.base import INLINE_BYTES, NO_IMAGE, FetchLimits, ImageLimits, ImageRef, ImageSource, placed
from context.images.fetch import ImageFetcher
from context.images.header import MEDIA_TYPES
from context.images.memo import Lru, SingleFlight
from context.images.near import Alike, NearDuplicate, NearDuplicates
from context.images.pins import Pins
from context.images.places import Places
from context.images.snapshots import Snapshots
from context.images.stats import ImageStats
from context.images.thumbnails import Shown, Thumbnails
from context.images.work import bytes_digest, bytes_of, canonical_of, run_in, step_back, text_digest
from context.store.blobs import BlobStore

# A fetch that waits holds no bytes. Several requests of the largest size may wait, so that none is refused for its own.
_WAITING_REQUESTS = 4


class ImageService:
    """Resolves and serves the images of one process, from one event loop.

    Args:
        limits: bounds of decoding and memory.
        fetch: bounds of fetching.
        store: where pinned bytes and snapshots lie; whoever opened it closes it, after the service.
        resolver: resolves names for fetching; the system's by default.

    Raises:
        ConfigError: `limits.formats` or `fetch.allow_private` cannot be honoured.
    """

    def __init__(
        self, limits: ImageLimits, fetch: FetchLimits, store: BlobStore, *, resolver: AbstractResolver | None = None
    ) -> None:
        if unknown := set(limits.formats) - set(MEDIA_TYPES):
            raise ConfigError(
                "settings",
                "images.formats",
                f"{sorted(unknown)[0]} is not one of {', '.join(MEDIA_TYPES)}",
            )
        try:
            max_waiting = _WAITING_REQUESTS * limits.max_images_per_request
            self._fetcher = ImageFetcher(fetch, limits.max_image_bytes, max_waiting, resolver)
        except ValueError as error:
            raise ConfigError("settings", "fetch.allow_private", "expected networks such as 10.0.0.0/8") from error
        self.limits = limits
        self._store = store
        self._stats = ImageStats()
        # Only who holds one of these places holds decoded base64, so memory is bounded with it.
        self._places = Places(limits.decode_threads, limits.decode_queue, "decoded")
        self._decoders = ThreadPoolExecutor(limits.decode_threads, "image-decode", initializer=step_back)
        self._helper = ThreadPoolExecutor(1, "image-helper")
        self._flights = SingleFlight()
        self._near = NearDuplicates(limits.near_duplicate_distance, self._helper)
        self._pins = Pins(store, limits, self._stats, self._helper, self._near)
        self._thumbnails = Thumbnails(store, limits, self._decoders)
        self._wire: Lru[bytes, ImageRef] = Lru(limits.memo_entries)
        self._bytes: Lru[bytes, ImageRef] = Lru(limits.memo_entries)
        self._snapshots = Snapshots(store, limits.memo_entries, self._stats.store_failed)

    async def resolve(
        self,
        source: ImageSource,
        *,
        tenant: str,
        lookup: Sequence[str] = (),
        record: Sequence[str] = (),
        fallback: Sequence[str] = (),
        is_history: bool = False,
    ) -> ImageRef:
        """The identity of an image part.

        A text that was seen before costs one hash. A URL is fetched anew, unless the caller names its place in history
        by opaque keys; data needs none. Keys are durable where the store is. An image that was seen before but whose
        bytes are neither in memory nor in the store is decoded, or fetched, again.

        Args:
            source: the part.
            tenant: whose request it is.
            lookup: keys tried before fetching, in order; what was recorded under one is returned without a fetch.
            record: keys under which the result is recorded. A fetch replaces what they held; a found snapshot only
                fills those that are not recorded yet.
            fallback: keys tried when the fetch or what it brought is refused.
            is_history: the image stands in history, where it may have been given up. A URL's keys say so by themselves.

        Raises:
            ImageError: the image is refused, or was given up (`image_given_up`); `param` is `source.place`.
            RequestError: 429 `image_queue_full`, too many images wait to be fetched or decoded.
        """
        try:
            if source.kind == "data":
                return await self._resolve_text(source.value, tenant, is_history)
            assert isinstance(source.value, str)
            return await self._resolve_url(source.value, tenant, lookup, record, fallback)
        except ImageError as error:
            raise placed(error, source.place) from error

    async def give_up(self, source: ImageSource, *, tenant: str, record: Sequence[str] = ()) -> None:
        """Refuse an image in history from now on, also when it could be had again: data wherever it stands in
        history, a URL where one of the keys is looked up."""
        keys = record
        if source.kind == "data":
            keys = (_given_up_key(await self._text_digest(source.value, tenant)),)
        await self._snapshots.record(tenant, keys, NO_IMAGE, replace=True)

    async def payload(self, ref: ImageRef, *, tenant: str) -> bytes:
        """The pinned bytes as an ASCII data URL.

        Args:
            ref: what `resolve` returned for this tenant.
            tenant: whose image it is.

        Raises:
            ImageError: `image_lost`, the bytes are gone and the client has to send the image again.
            StoreError: the object store cannot be read.
        """
        return await self._pins.payload(ref, tenant)

    async def has(self, ref: ImageRef, *, tenant: str) -> bool:
        """Whether the bytes of an image are there. A store that cannot be read is believed to have them."""
        return await self._pins.keep(ref, tenant)

    def near_duplicates(self, tenant: str) -> list[NearDuplicate]:
        """Pairs of the tenant's images that look alike. A report only; such images are never merged."""
        return self._near.report(tenant)

    def alike(self, image_id: str, *, tenant: str, most: int = 12) -> Alike:
        """Those of `near_duplicates` that one image is in: how many, and the nearest. Any thread may ask."""
        return self._near.alike(tenant, image_id, most)

    async def thumbnail(self, image_id: str, *, tenant: str) -> Shown | None:
        """A small picture of a tenant's stored image; None where there is none. See `Thumbnails.get`."""
        return await self._thumbnails.get(image_id, tenant)

    def slot_match(self, tenant: str, distance: int) -> Callable[[ImageRef, ImageRef], bool]:
        """Whether an image of the tenant may stand for another one.

        It may where both are equally large and their perceptual hashes differ in at most `distance` of 64 bits. An
        image that is not hashed yet may not.
        """

        def match(old: ImageRef, new: ImageRef) -> bool:
            same_size = (old.width, old.height) == (new.width, new.height)
            return same_size and self._near.are_alike(tenant, old.image_id, new.image_id, distance)

        return match

    async def hashed(self, timeout_seconds: float) -> None:
        """Wait until what came so far is hashed, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await self._near.settle()

    def stats(self) -> ImageStats:
        """A copy of the counts since the start."""
        return replace(self._stats, queue_refusals=self._places.refusals + self._fetcher.refusals)

    async def settle(self) -> None:
        """Wait for background work: perceptual hashes, and a sweep of the store."""
        await self._near.settle()
        await self._store.settle()

    async def close(self) -> None:
        """Cancel what runs and free threads and sockets. Waiters get `CancelledError`."""
        await self._flights.close()
        await self._thumbnails.close()
        await self._pins.close()
        await self._near.close()
        await self._fetcher.close()
        # A thread in the middle of a picture cannot be cancelled; it is waited for, beside the event loop.
        closer = ThreadPoolExecutor(1, "image-close")
        for pool in (self._decoders, self._helper):
            await asyncio.get_running_loop().run_in_executor(
                closer, lambda pool=pool: pool.shutdown(cancel_futures=True)
            )
        closer.shutdown()

    async def _text_digest(self, text: str | memoryview, tenant: str) -> bytes:
        if len(text) <= INLINE_BYTES:
            return text_digest(tenant, text)
        return await run_in(self._helper, text_digest, tenant, text)

    async def _resolve_text(self, text: str | memoryview, tenant: str, is_history: bool) -> ImageRef:
        digest = await self._text_digest(text, tenant)
        if ref := await self._known(self._wire, digest, tenant):
            self._stats.wire_hits += 1
            return ref
        # What this process could read was not given up in it; limits may have been others before it started.
        if is_history and await self._snapshots.find(tenant, (_given_up_key(digest),)) is not None:
            raise _given_up()
        return await self._flights.run(("wire", digest), lambda: self._first_sight(digest, text, tenant))

    async def _first_sight(self, digest: bytes, text: str | memoryview, tenant: str) -> ImageRef:
        async with self._places.hold():
            data, data_digest = await run_in(self._decoders, bytes_of, tenant, text, self.limits.max_image_bytes)
            ref = await self._identify(data, data_digest, tenant)
        self._wire.put(digest, ref)
        return ref

    async def _resolve_url(
        self, url: str, tenant: str, lookup: Sequence[str], record: Sequence[str], fallback: Sequence[str]
    ) -> ImageRef:
        known = await self._snapshots.find(tenant, lookup)
        if known == NO_IMAGE:
            raise _given_up()
        if known is not None and await self._pins.keep(known, tenant):
            self._stats.snapshot_hits += 1
            await self._snapshots.record(tenant, record, known, replace=False)
            return known
        try:
            ref = await self._flights.run(("url", tenant, url, *record), lambda: self._fetch(url, tenant))
        except ImageError:
            ref = await self._snapshots.find(tenant, fallback)
            if ref == NO_IMAGE:
                raise
            if ref is None or not await self._pins.keep(ref, tenant):
                # Its bytes are gone everywhere, but the engine may hold what it was sent.
                ref = known or ref
            if ref is None:
                raise
            self._stats.snapshot_hits += 1
            return ref
        await self._snapshots.record(tenant, record, ref, replace=True)
        return ref

    async def _fetch(self, url: str, tenant: str) -> ImageRef:
        self._stats.fetches += 1
        async with self._fetcher.fetch(url) as data:
            if len(data) <= INLINE_BYTES:
                digest = bytes_digest(tenant, data)
            else:
                digest = await run_in(self._helper, bytes_digest, tenant, data)
            if ref := await self._known(self._bytes, digest, tenant):
                self._stats.byte_hits += 1
                return ref
            # The fetcher bounds how many come here, and what was fetched should not be thrown away.
            async with self._places.hold(is_bounded=False):
                return await self._identify(data, digest, tenant)

    async def _identify(self, data: bytes, digest: bytes, tenant: str) -> ImageRef:
        if ref := await self._known(self._bytes, digest, tenant):
            self._stats.byte_hits += 1
            return ref
        ref = await self._flights.run(("bytes", digest), lambda: self._decode(data, tenant))
        self._bytes.put(digest, ref)
        return ref

    async def _decode(self, data: bytes, tenant: str) -> ImageRef:
        self._stats.decodes += 1
        image = await run_in(self._decoders, canonical_of, data, self.limits)
        self._stats.rewrites += image.pinned is not data
        return await self._pins.pin(image, tenant)

    async def _known(self, memo: Lru[bytes, ImageRef], digest: bytes, tenant: str) -> ImageRef | None:
        ref = memo.get(digest)
        return None if ref is None else await self._pins.find(ref.image_id, tenant)


def _given_up_key(digest: bytes) -> str:
    return f"text-{digest.hex()}"


def _given_up() -> ImageError:
    return ImageError("The image could not be used before. Send it in a new message.", code="image_given_up")
