"""Bytes under a key, in a local folder, in memory, or in any object store that obstore knows."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, MemoryStore, from_url

from context.errors import ConfigError, StillframeError

if TYPE_CHECKING:
    from obstore import ObjectMeta

_log = logging.getLogger(__name__)
# obstore raises these for what the file system or the server says; BaseError covers the rest.
_FAILURES = (BaseError, OSError, ValueError, NotImplementedError)
# Sweeping a little below the bound keeps the next writes from sweeping again.
_SWEEP_TO_RATIO = 0.9
# How exactly a sweep knows when a blob was used last, and for how many blobs at most.
_TOUCH_EVERY_SECONDS = 3600.0
_MAX_TOUCHED = 65_536


class StoreError(StillframeError):
    """The object store did not do what was asked of it. The message names no path."""


@dataclass(frozen=True, slots=True)
class StoreStats:
    """`size_bytes` is an estimate until the first write or sweep has listed the store."""

    size_bytes: int
    swept_blobs: int


class BlobStore:
    """Blobs by key, written whole or not at all, bounded in total size.

    When the total passes the bound, blobs are deleted in the background: in a folder those used longest ago, elsewhere
    those written longest ago. Several processes may share a store: each lists it anew before it deletes.

    Args:
        url: a folder, `file:///folder`, `memory://`, or an object store's URL such as `s3://bucket/prefix`.
        max_bytes: bound of the total size; 0 for none.
        options: settings of the object store as obstore names them (`endpoint`, `region`, ...), for URLs only.
        client_options: settings of its HTTP client (`allow_http`, `timeout`, ...).

    Raises:
        ConfigError: the store cannot be opened.
    """

    def __init__(
        self,
        url: str,
        max_bytes: int = 0,
        *,
        options: Mapping[str, Any] | None = None,
        client_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._store = _open(url, dict(options or {}), dict(client_options or {}))
        self._folder = Path(str(self._store.prefix)) if isinstance(self._store, LocalStore) else None
        self.is_local = isinstance(self._store, LocalStore | MemoryStore)
        self._max_bytes = max_bytes
        self._size_bytes: int | None = None
        self._swept_blobs = 0
        self._measuring = asyncio.Lock()
        self._touched: dict[str, float] = {}
        self._sweep: asyncio.Task[None] | None = None

    async def put(self, key: str, data: bytes, attributes: Mapping[str, str] | None = None) -> None:
        """Write a blob, replacing one of the same key. Readers see the old bytes or the new, never a part.

        `attributes` (such as `Content-Type`) go to stores that have them; a folder has none.

        Raises:
            StoreError: it was not written: no space, no permission, no connection, or larger than the bound.
        """
        if self._max_bytes and len(data) > self._max_bytes:
            raise StoreError("The blob is larger than the whole store may be (store_max_bytes).")
        kept = dict(attributes) if attributes and self._folder is None else None
        try:
            async with self._measuring:
                if self._size_bytes is None:
                    self._size_bytes = sum(size for _, size, _ in await self._list())
            await obstore.put_async(self._store, key, data, attributes=cast("Any", kept), use_multipart=False)
        except _FAILURES as error:
            raise StoreError("The object store could not be written. Check its space and permissions.") from error
        self._size_bytes += len(data)
        self._mark(key)
        if self._max_bytes and self._size_bytes > self._max_bytes and self._sweep is None:
            self._sweep = asyncio.create_task(self._delete_oldest())

    async def get(self, key: str) -> bytes | None:
        """A blob's bytes; None when there is none.

        Raises:
            StoreError: the store could not be read.
        """
        try:
            return (await (await obstore.get_async(self._store, key)).bytes_async()).to_bytes()
        except FileNotFoundError:
            return None
        except _FAILURES as error:
            raise StoreError("The object store could not be read.") from error

    async def size(self, key: str) -> int | None:
        """A blob's size in bytes; None when there is none.

        Raises:
            StoreError: the store could not be read.
        """
        try:
            return (await obstore.head_async(self._store, key))["size"]
        except FileNotFoundError:
            return None
        except _FAILURES as error:
            raise StoreError("The object store could not be read.") from error

    async def touch(self, key: str) -> None:
        """Say that a blob is in use, so that a sweep takes it later. Only folders remember it, once an hour a blob.

        Never fails: a blob that is not there, or cannot be marked, is left as it is.
        """
        touched = self._touched.get(key)
        if self._folder is None or (touched is not None and time.monotonic() - touched < _TOUCH_EVERY_SECONDS):
            return
        self._mark(key)
        with contextlib.suppress(OSError, StoreError):
            # `size` refuses keys that lead out of the folder.
            if await self.size(key) is not None:
                await asyncio.to_thread(os.utime, self._folder / key)

    def _mark(self, key: str) -> None:
        if len(self._touched) >= _MAX_TOUCHED:
            self._touched.clear()
        self._touched[key] = time.monotonic()

    async def delete(self, key: str) -> None:
        """Delete a blob; one that is not there counts as deleted.

        Raises:
            StoreError: the store could not be written.
        """
        try:
            await obstore.delete_async(self._store, key)
        except FileNotFoundError:
            return
        except _FAILURES as error:
            raise StoreError("The object store could not be written. Check its permissions.") from error

    def stats(self) -> StoreStats:
        return StoreStats(self._size_bytes or 0, self._swept_blobs)

    async def settle(self) -> None:
        """Wait for a sweep that is under way."""
        if self._sweep is not None:
            await self._sweep

    async def close(self) -> None:
        """End background work. The store may not be used afterwards."""
        await self.settle()

    async def _list(self) -> list[tuple[float, int, str]]:
        found: list[tuple[float, int, str]] = []
        listing: AsyncIterable[Sequence[ObjectMeta]] = obstore.list(self._store)  # pyright: ignore[reportUnknownMemberType]
        async for batch in listing:
            found += [(entry["last_modified"].timestamp(), entry["size"], entry["path"]) for entry in batch]
        return found

    async def _delete_oldest(self) -> None:
        try:
            before = self._size_bytes or 0
            blobs = sorted(await self._list())
            # Writes go on meanwhile: one may count twice until the next sweep, but none is forgotten.
            self._size_bytes = sum(size for _, size, _ in blobs) + (self._size_bytes or 0) - before
            goal = int(self._max_bytes * _SWEEP_TO_RATIO)
            # The newest stays: it is the one that a request is about to use.
            for _, size, path in blobs[:-1]:
                if self._size_bytes <= goal:
                    break
                await self.delete(path)
                self._size_bytes -= size
                self._swept_blobs += 1
        except (*_FAILURES, StoreError) as error:
            # The next write over the bound tries again; until then the store is only too large.
            _log.warning("a sweep of the object store failed: %s", type(error).__name__)
        finally:
            self._sweep = None


def _open(url: str, options: dict[str, Any], client_options: dict[str, Any]) -> Any:
    scheme, separator, rest = url.partition("://")
    try:
        if not separator:
            return LocalStore(Path(url).expanduser().absolute(), mkdir=True)
        if scheme == "file":
            return LocalStore(Path("/" + rest.lstrip("/")), mkdir=True)
        if scheme == "memory":
            return MemoryStore()
        return from_url(url, config=cast("Any", options), client_options=cast("Any", client_options))
    except (BaseError, OSError, RuntimeError, ValueError) as error:
        # RuntimeError: no such home folder.
        raise ConfigError(
            "settings", "images.store_url", "the store cannot be opened; name a folder that can be written or its URL"
        ) from error
