"""Image services for the tests, a site to fetch from, and a store that loses what it holds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from context.images.base import FetchLimits, ImageLimits
from context.images.service import ImageService
from context.store.blobs import BlobStore
from tests.unit.images.corpus import LIMITS
from tests.unit.images.server import Site, running_site

FETCH = FetchLimits(allow_private=("127.0.0.0/8",))


def make(store: str = "memory://", limits: ImageLimits = LIMITS) -> ImageService:
    return ImageService(limits, FETCH, BlobStore(store, limits.store_max_bytes))


@pytest.fixture
async def service() -> AsyncIterator[ImageService]:
    service = make()
    yield service
    await service.close()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with running_site() as site:
        yield site


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def lose(folder: Path) -> int:
    """Delete all pinned images of the tenant t, as another process's sweep may."""
    lost = list((folder / "t" / "images").iterdir())
    for blob in lost:
        blob.unlink()
    return len(lost)
