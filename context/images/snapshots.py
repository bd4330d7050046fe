"""What an image URL showed at a place in history, so that history is never fetched again."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, cast

from blake3 import blake3

from context.images.base import NO_IMAGE, ImageRef
from context.images.memo import Lru
from context.store.blobs import BlobStore, StoreError

_PLAIN_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_IMAGE_ID = re.compile(r"[0-9a-f]{64}")


class Snapshots:
    """`ImageRef` by tenant and opaque key: bounded in memory, durable as small JSON blobs.

    `NO_IMAGE` is recorded like any other: what was given up stays so.

    Args:
        store: where they last.
        entries: bound of those in memory.
        failed: told when the store did not do its part; the answer then comes from memory alone.
    """

    def __init__(self, store: BlobStore, entries: int, failed: Callable[[StoreError], None]) -> None:
        self._store, self._failed = store, failed
        self._memory: Lru[bytes, ImageRef] = Lru(entries)

    async def find(self, tenant: str, keys: Sequence[str]) -> ImageRef | None:
        """What was recorded under the first of the keys that is known."""
        digests = [digest_of("snapshot", tenant, key) for key in keys]
        if not digests:
            return None
        # In the keys' order: an earlier key that only the store knows goes before a later one in memory.
        if self._memory.get(digests[0]):
            return await self._look_up(tenant, digests[0])
        found = await asyncio.gather(*(self._look_up(tenant, digest) for digest in digests))
        return next((ref for ref in found if ref is not None), None)

    async def record(self, tenant: str, keys: Sequence[str], ref: ImageRef, *, replace: bool) -> None:
        """Record a result; with `replace` also under keys that hold another one."""
        for key in keys:
            digest = digest_of("snapshot", tenant, key)
            known = await self._look_up(tenant, digest)
            if known == ref or (known is not None and not replace):
                continue
            self._memory.put(digest, ref)
            try:
                await self._store.put(_snapshot_key(tenant, digest), json.dumps(dataclasses.asdict(ref)).encode())
            except StoreError as error:
                self._failed(error)

    async def _look_up(self, tenant: str, digest: bytes) -> ImageRef | None:
        if ref := self._memory.get(digest):
            await self._store.touch(_snapshot_key(tenant, digest))
            return ref
        try:
            blob = await self._store.get(_snapshot_key(tenant, digest))
        except StoreError as error:
            self._failed(error)
            return None
        ref = None if blob is None else _ref_of_json(blob)
        if ref is not None:
            self._memory.put(digest, ref)
            await self._store.touch(_snapshot_key(tenant, digest))
        return ref


def digest_of(*words: str) -> bytes:
    """A digest of words in which each word's end is part of what is hashed."""
    digest = blake3()
    for word in words:
        data = word.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8)).update(data)
    return digest.digest()


def tenant_folder(tenant: str) -> str:
    """A tenant's folder in the store: its name where that is plain, else a digest that no plain name can equal."""
    if _PLAIN_TENANT.fullmatch(tenant):
        return tenant
    return "=" + hashlib.sha256(tenant.encode("utf-8", "surrogatepass")).hexdigest()


def _snapshot_key(tenant: str, digest: bytes) -> str:
    return f"{tenant_folder(tenant)}/snapshots/{digest.hex()}.json"


def _ref_of_json(blob: bytes) -> ImageRef | None:
    """The reference, or None when the blob is not what `record` writes."""
    try:
        fields = cast("dict[str, Any]", json.loads(blob))
        ref = ImageRef(**fields)
    except (ValueError, TypeError):
        return None
    if ref == NO_IMAGE:
        return NO_IMAGE
    numbers = (ref.width, ref.height, ref.size_bytes)
    whole = _IMAGE_ID.fullmatch(ref.image_id) and all(type(number) is int and number > 0 for number in numbers)
    return ref if whole else None
