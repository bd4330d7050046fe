"""Small pictures of stored images, for people: made once in the decoders' threads, kept in memory within a bound."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO

from PIL import Image, ImageOps

from context.errors import ImageError
from context.images.base import ImageLimits
from context.images.memo import Lru, SingleFlight
from context.images.places import Places
from context.images.snapshots import tenant_folder
from context.images.sniff import sniff
from context.images.work import run_in
from context.store.blobs import BlobStore

THUMBNAIL_SIDE = 160
MEDIA_TYPE = "image/webp"
_QUALITY = 80
_CACHE_BYTES = 8 * 1024 * 1024
_WAITING = 256


@dataclass(frozen=True, slots=True)
class Shown:
    """A thumbnail: `data` is a WebP of at most `THUMBNAIL_SIDE` pixels a side; all else is the image's own."""

    data: bytes
    width: int
    height: int
    media_type: str
    size_bytes: int


class Thumbnails:
    """Makes and remembers thumbnails. Called from one event loop.

    Args:
        store: where the pinned bytes lie.
        limits: what an image may be; one that was stored under wider limits has no thumbnail.
        pool: where decoding runs, one at a time: the requests' images are waited for by somebody.
    """

    def __init__(self, store: BlobStore, limits: ImageLimits, pool: ThreadPoolExecutor) -> None:
        self._store, self._limits, self._pool = store, limits, pool
        self._places = Places(1, _WAITING, "shown")
        self._flights = SingleFlight()
        self._made: Lru[tuple[str, str], Shown] = Lru(_CACHE_BYTES, lambda shown: len(shown.data))

    async def get(self, image_id: str, tenant: str) -> Shown | None:
        """The thumbnail of a tenant's image; None where its bytes are not kept, or no longer readable.

        Raises:
            RequestError: (429) too many images wait to be decoded.
            StoreError: the object store cannot be read.
        """
        key = (tenant, image_id)
        if found := self._made.get(key):
            return found
        return await self._flights.run(key, lambda: self._make(*key))

    async def close(self) -> None:
        """Cancel what is being made."""
        await self._flights.close()

    async def _make(self, tenant: str, image_id: str) -> Shown | None:
        async with self._places.hold():
            data = await self._store.get(f"{tenant_folder(tenant)}/images/{image_id}")
            made = None if data is None else await run_in(self._pool, shrink, data, self._limits)
        if made is not None:
            self._made.put((tenant, image_id), made)
        return made


def shrink(data: bytes, limits: ImageLimits) -> Shown | None:
    """The thumbnail of an image file; None for what cannot be read."""
    try:
        header = sniff(data, limits)
        with Image.open(BytesIO(data), formats=[header.format]) as image:
            # A JPEG is decoded at a fraction of its size where that is enough.
            image.draft("RGB", (2 * THUMBNAIL_SIDE, 2 * THUMBNAIL_SIDE))
            upright = ImageOps.exif_transpose(image).convert("RGBA")
        # Of the header: the draft is smaller. Turned where the picture is.
        turned = (upright.width > upright.height) != (header.width > header.height)
        width, height = (header.height, header.width) if turned else (header.width, header.height)
        upright.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE))
        flat = Image.new("RGB", upright.size, limits.background)
        flat.paste(upright, mask=upright.getchannel("A"))
        out = BytesIO()
        flat.save(out, "WEBP", quality=_QUALITY, method=4)
    except (ImageError, OSError, ValueError, SyntaxError, MemoryError, Image.DecompressionBombError):
        # Readers raise many types on damaged input; a picture for people may be missing.
        return None
    return Shown(out.getvalue(), width, height, header.media_type, len(data))
