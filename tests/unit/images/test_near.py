"""Perceptual hashes in the background."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

import pytest

from context.images.decode import Thumbnail
from context.images.near import NearDuplicates


async def test_an_image_that_cannot_be_hashed_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    levels = bytes(range(256)) * 4
    with ThreadPoolExecutor(1) as helper, caplog.at_level(logging.WARNING):
        near = NearDuplicates(8, helper)
        near.offer("t", "bad", Thumbnail(32, 32, b"too few"))
        near.offer("t", "a", Thumbnail(32, 32, levels))
        near.offer("t", "b", Thumbnail(32, 32, levels))
        await asyncio.wait_for(near.settle(), 5)
        assert [(pair.first, pair.second, pair.distance) for pair in near.report("t")] == [("a", "b", 0)]
        await near.close()
    assert "ValueError" in caplog.text
    assert "not enough" not in caplog.text
