"""The service and images by URL: fetched once, kept by their place in history."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from context.errors import ImageError
from context.images.base import ImageSource
from context.images.service import ImageService
from tests.unit.images.bucket import running_bucket
from tests.unit.images.corpus import LIMITS, PLACE, data_source, image_id, read
from tests.unit.images.server import Site
from tests.unit.images.services import FETCH, files_in, lose, make, service, site

__all__ = ["service", "site"]


async def test_history_is_fetched_again_only_when_its_bytes_are_lost(site: Site, tmp_path: Path) -> None:
    site.changing = read("base.png")
    source = ImageSource("url", site.url("/changing"), PLACE)
    service = make(str(tmp_path), replace(LIMITS, payload_cache_bytes=0))
    first = await service.resolve(source, tenant="t", record=["here"])
    assert await service.resolve(source, tenant="t", lookup=["here"], record=["here"]) == first
    assert len(site.requests) == 1
    lose(tmp_path)
    assert await service.resolve(source, tenant="t", lookup=["here"], record=["here"]) == first
    assert await service.payload(first, tenant="t")
    assert len(site.requests) == 2
    # The engine may still hold what nobody can load any more.
    lose(tmp_path)
    site.changing = b"<html>gone</html>"
    assert await service.resolve(source, tenant="t", lookup=["here"]) == first
    await service.close()


async def test_what_is_used_is_swept_later(site: Site, tmp_path: Path) -> None:
    source = ImageSource("url", site.url("/image.png"), PLACE)
    service = make(str(tmp_path))
    await service.resolve(source, tenant="t", record=["here"])
    await service.close()
    files = files_in(tmp_path)
    assert len(files) == 2
    for path in files:
        os.utime(path, (1000, 1000))
    service = make(str(tmp_path))
    await service.resolve(source, tenant="t", lookup=["here"])
    assert all(path.stat().st_mtime > 1000 for path in files)
    assert len(site.requests) == 1
    await service.close()


async def test_a_requests_own_urls_wait_for_each_other(site: Site) -> None:
    limits = replace(LIMITS, decode_threads=1, decode_queue=1, max_images_per_request=40)
    service = make(limits=limits)
    sources = [ImageSource("url", site.url(f"/picture?{rows}"), PLACE) for rows in range(1, 41)]
    refs = await asyncio.gather(*(service.resolve(source, tenant="t") for source in sources))
    assert [ref.height for ref in refs] == list(range(1, 41))
    assert service.stats().queue_refusals == 0
    await service.close()


@pytest.mark.case("MC-033")
async def test_fetched_bytes_that_are_known_need_no_decoder(site: Site) -> None:
    async with running_bucket() as bucket:
        store = bucket.open()
        service = ImageService(replace(LIMITS, decode_threads=1), FETCH, store)
        first = await service.resolve(data_source(read("base.png")), tenant="t")
        held = bucket.hold("put")
        busy = asyncio.create_task(service.resolve(data_source(read("alpha.png")), tenant="t"))
        await bucket.wait_for("put", 2)
        source = ImageSource("url", site.url("/image.png"), PLACE)
        assert await asyncio.wait_for(service.resolve(source, tenant="t"), 5) == first
        assert not busy.done()
        held.set()
        await busy
        await service.close()
        await store.close()


async def test_history_is_never_fetched_again(site: Site, tmp_path: Path) -> None:
    site.changing = read("base.png")
    source = ImageSource("url", site.url("/changing"), PLACE)
    service = make(str(tmp_path))
    first = await service.resolve(source, tenant="t", record=["here", "also"])
    site.changing = read("alpha.png")
    assert await service.resolve(source, tenant="t", lookup=["unknown", "here"], record=["unknown", "here"]) == first
    await service.close()
    restarted = make(str(tmp_path))
    for key in ("also", "here", "unknown"):
        assert await restarted.resolve(source, tenant="t", lookup=[key]) == first
    assert await restarted.payload(first, tenant="t")
    assert len(site.requests) == 1
    assert (await restarted.resolve(source, tenant="t")).image_id == image_id("alpha.png")
    assert (await restarted.resolve(source, tenant="other", lookup=["here"])).image_id == image_id("alpha.png")
    assert len(site.requests) == 3
    await restarted.close()


async def test_a_new_fetch_replaces_what_its_keys_held(site: Site, service: ImageService) -> None:
    source = ImageSource("url", site.url("/changing"), PLACE)
    site.changing = read("base.png")
    old = await service.resolve(source, tenant="t", record=["place-1", "url"])
    site.changing = read("alpha.png")
    new = await service.resolve(source, tenant="t", record=["place-2", "url"])
    # Reading an old place must not make it the newest picture of the URL.
    assert await service.resolve(source, tenant="t", lookup=["place-1"], record=["place-1", "url"]) == old
    assert await service.resolve(source, tenant="t", lookup=["unknown", "url"]) == new
    assert len(site.requests) == 2


async def test_a_fetch_that_fails_falls_back_to_what_was_seen_there(site: Site, service: ImageService) -> None:
    site.changing = read("base.png")
    source = ImageSource("url", site.url("/changing"), PLACE)
    first = await service.resolve(source, tenant="t", record=["here"])
    site.changing = b"<html>gone</html>"
    assert await service.resolve(source, tenant="t", fallback=["here"]) == first
    with pytest.raises(ImageError) as caught:
        await service.resolve(source, tenant="t", fallback=["elsewhere"])
    assert (caught.value.code, caught.value.param) == ("image_fetch_failed", PLACE)


async def test_one_url_asked_for_at_once_is_fetched_once(site: Site, service: ImageService) -> None:
    source = ImageSource("url", site.url("/slow"), PLACE)
    waiting = [asyncio.create_task(service.resolve(source, tenant="t", record=["a"])) for _ in range(4)]
    await site.asked.wait()
    site.release.set()
    assert len({ref.image_id for ref in await asyncio.gather(*waiting)}) == 1
    assert len(site.requests) == 1
    assert service.stats().fetches == 1
