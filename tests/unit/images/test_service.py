"""The service: what is remembered, shared and bounded."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import numpy as np
import pybase64
import pytest

from context.errors import ConfigError, ImageError, RequestError
from context.images.base import FetchLimits, ImageLimits, ImageSource
from context.images.png import write_png
from context.images.service import ImageService
from context.store.blobs import BlobStore
from tests.unit.images.corpus import LIMITS, MANIFEST, PLACE, canonical, data_source, image_id, read, text_of
from tests.unit.images.services import FETCH, make, service

__all__ = ["service"]


@pytest.mark.case("MC-008")
async def test_a_repeat_is_not_decoded(service: ImageService) -> None:
    source = data_source(read("base.png"))
    first = await service.resolve(source, tenant="t")
    assert await service.resolve(source, tenant="t") == first
    stats = service.stats()
    assert (stats.decodes, stats.wire_hits, stats.byte_hits) == (1, 1, 0)


async def test_the_same_bytes_in_another_spelling_are_not_decoded(service: ImageService) -> None:
    text = text_of(data_source(read("base.png")))
    first = await service.resolve(ImageSource("data", text, PLACE), tenant="t")
    other = await service.resolve(ImageSource("data", text.replace("/png", "/jpeg") + "\n", PLACE), tenant="t")
    assert first == other
    assert (service.stats().decodes, service.stats().byte_hits) == (1, 1)


async def test_concurrent_first_sights_are_decoded_once(service: ImageService) -> None:
    text = text_of(data_source(read("base.png")))
    sources = [ImageSource("data", text + " " * (index % 2), f"messages[{index}]") for index in range(8)]
    refs = await asyncio.gather(*(service.resolve(source, tenant="t") for source in sources))
    assert len(set(refs)) == 1
    assert service.stats().decodes == 1


async def test_a_client_that_leaves_does_not_fail_the_others(service: ImageService) -> None:
    source = data_source(read("base.png"))
    leaving, staying = (asyncio.create_task(service.resolve(source, tenant="t")) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    assert (await staying).image_id == image_id("base.png")
    assert leaving.cancelled()
    assert service.stats().decodes == 1


async def test_shared_refusals_name_each_clients_own_place(service: ImageService) -> None:
    sources = [data_source(read("bad_trunc.jpg"), place=f"messages[{index}].content[0]") for index in range(3)]
    errors = await asyncio.gather(*(service.resolve(source, tenant="t") for source in sources), return_exceptions=True)
    assert [error.param for error in errors if isinstance(error, ImageError)] == [source.place for source in sources]


@pytest.mark.case("MC-026")
async def test_same_pixels_keep_the_bytes_that_came_first(service: ImageService) -> None:
    first = await service.resolve(data_source(read("base_level0.png")), tenant="t")
    second = await service.resolve(data_source(read("base_lossless.webp"), "image/webp"), tenant="t")
    assert second == first
    payload = await service.payload(second, tenant="t")
    assert payload == text_of(data_source(read("base_level0.png"))).encode()


@pytest.mark.parametrize("name", [names[-1] for names in MANIFEST["same"].values()])
async def test_payload_shows_the_same_image(service: ImageService, name: str) -> None:
    ref = await service.resolve(data_source(read(name)), tenant="t")
    head, _, body = (await service.payload(ref, tenant="t")).partition(b",")
    data = pybase64.b64decode(body)
    assert head == f"data:{ref.media_type};base64".encode()
    assert len(data) == ref.size_bytes
    found = canonical(data)
    assert (found.image_id, found.width, found.height) == (ref.image_id, ref.width, ref.height)


async def test_tenants_share_nothing(service: ImageService) -> None:
    source = data_source(read("base.png"))
    ref = await service.resolve(source, tenant="a")
    with pytest.raises(ImageError) as caught:
        await service.payload(ref, tenant="b")
    assert caught.value.code == "image_lost"
    await service.resolve(source, tenant="b")
    assert service.stats().decodes == 2


async def test_a_full_queue_says_try_again() -> None:
    service = make(limits=replace(LIMITS, decode_threads=1, decode_queue=1))
    names = ["base.png", "alpha.png", "gray_l.png", "flat.gif"]
    results = await asyncio.gather(
        *(service.resolve(data_source(read(name)), tenant="t") for name in names), return_exceptions=True
    )
    refused = [result for result in results if isinstance(result, RequestError)]
    assert [(error.code, error.status) for error in refused] == [("image_queue_full", 429)] * 2
    assert service.stats().queue_refusals == 2
    assert (await service.resolve(data_source(read(names[3])), tenant="t")).image_id == image_id(names[3])
    await service.close()


async def test_near_duplicates_are_per_tenant(service: ImageService) -> None:
    await service.resolve(data_source(read("base.png")), tenant="a")
    await service.resolve(data_source(read("near_bright.png")), tenant="b")
    await service.settle()
    assert service.near_duplicates("a") == service.near_duplicates("b") == []
    await service.resolve(data_source(read("near_bright.png")), tenant="a")
    await service.settle()
    assert len(service.near_duplicates("a")) == 1


async def test_close_leaves_no_task_and_no_thread() -> None:
    before = set(threading.enumerate())
    service = make()
    pixels = np.random.default_rng(0).integers(0, 256, (1500, 1500, 3), dtype=np.uint8)
    source = data_source(write_png(1500, 1500, [pixels.tobytes()]))
    running = asyncio.create_task(service.resolve(source, tenant="t"))
    await service.resolve(data_source(read("base.png")), tenant="t")
    await service.close()
    await asyncio.gather(running, return_exceptions=True)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("image")]


@pytest.mark.parametrize(
    ("limits", "fetch", "key"),
    [
        (replace(LIMITS, formats=("PNG", "EPS")), FETCH, "images.formats"),
        (LIMITS, FetchLimits(allow_private=("nonsense",)), "fetch.allow_private"),
    ],
)
def test_settings_that_cannot_be_honoured_stop_the_start(limits: ImageLimits, fetch: FetchLimits, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ImageService(limits, fetch, BlobStore("memory://"))
    assert caught.value.key == key
