"""One contract for every kind of store."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from context.errors import ConfigError
from context.store.blobs import BlobStore, StoreError
from tests.unit.images.bucket import running_bucket

Opener = Callable[[int], BlobStore]


@pytest.fixture(params=["folder", "file-url", "memory", pytest.param("s3", marks=pytest.mark.services)])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """`s3` needs STILLFRAME_TEST_S3_URL (`s3://bucket/prefix`) and the usual AWS_ variables, with AWS_ENDPOINT."""
    if request.param == "s3":
        url = os.environ.get("STILLFRAME_TEST_S3_URL")
        if not url:
            pytest.skip("STILLFRAME_TEST_S3_URL names no object store")
        url = f"{url}/{uuid.uuid4()}"
        return lambda max_bytes: BlobStore(url, max_bytes, client_options={"allow_http": True})
    urls = {"folder": str(tmp_path / "new" / "store"), "file-url": f"file://{tmp_path}", "memory": "memory://"}
    return lambda max_bytes: BlobStore(urls[request.param], max_bytes)


async def test_put_get_size_delete(opener: Opener) -> None:
    store = opener(0)
    assert await store.get("t/images/a") is None
    assert await store.size("t/images/a") is None
    await store.put("t/images/a", b"one", {"Content-Type": "image/png"})
    await store.put("t/images/a", b"two")
    assert await store.get("t/images/a") == b"two"
    assert await store.size("t/images/a") == 3
    await store.delete("t/images/a")
    await store.delete("t/images/a")
    assert await store.get("t/images/a") is None
    await store.close()


async def test_the_oldest_go_when_the_bound_is_passed(opener: Opener) -> None:
    store = opener(1000)
    for index in range(8):
        await store.put(f"t/{index}", bytes(150))
        await store.settle()
    kept = [index for index in range(8) if await store.size(f"t/{index}")]
    assert kept == list(range(8 - len(kept), 8))
    assert 0 < store.stats().size_bytes <= 1000
    assert store.stats().swept_blobs == 8 - len(kept)


async def test_a_blob_above_the_bound_is_refused_and_sweeps_nothing(opener: Opener) -> None:
    store = opener(100)
    await store.put("t/small", b"x")
    with pytest.raises(StoreError):
        await store.put("t/large", bytes(101))
    assert await store.size("t/small") == 1


async def test_readers_see_whole_blobs(opener: Opener) -> None:
    store = opener(0)
    versions = [bytes([index]) * 100_000 for index in range(8)]
    await store.put("t/a", versions[0])

    async def read() -> bytes | None:
        return await store.get("t/a")

    reads = [read() for _ in range(20)]
    results = await asyncio.gather(*(store.put("t/a", version) for version in versions), *reads)
    assert all(result in versions for result in results[len(versions) :])


async def test_a_folder_outlives_the_process_and_counts_what_it_holds(tmp_path: Path) -> None:
    await BlobStore(str(tmp_path)).put("t/old", bytes(600))
    store = BlobStore(str(tmp_path), 1000)
    assert await store.get("t/old") == bytes(600)
    await store.put("t/new", bytes(600))
    await store.settle()
    assert [await store.size(key) for key in ("t/old", "t/new")] == [None, 600]


async def test_a_store_that_cannot_be_written_says_so_without_a_path(tmp_path: Path) -> None:
    (tmp_path / "tenant").write_text("a file where a folder is needed")
    store = BlobStore(str(tmp_path))
    with pytest.raises(StoreError) as caught:
        await store.put("tenant/images/a", b"x")
    assert str(tmp_path) not in str(caught.value)


def test_a_store_that_cannot_be_opened_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for url in (str(tmp_path / "file" / "store"), "nonsense://x"):
        with pytest.raises(ConfigError) as caught:
            BlobStore(url)
        assert caught.value.key == "images.store_url"


def test_an_object_store_is_opened_with_its_options() -> None:
    options = {"endpoint": "http://127.0.0.1:9000", "region": "x", "access_key_id": "a", "secret_access_key": "b"}
    BlobStore("s3://bucket/prefix", options=options, client_options={"allow_http": True})


async def test_a_sweep_that_fails_breaks_no_write_that_is_under_way() -> None:
    async with running_bucket() as bucket:
        store = bucket.open(1000)
        await store.put("t/a", bytes(600))
        bucket.refused.add("list")
        await store.put("t/b", bytes(600))
        held = bucket.hold("put")
        writing = asyncio.create_task(store.put("t/c", bytes(100)))
        await bucket.wait_for("put", 3)
        await store.settle()
        held.set()
        await writing
        assert store.stats().size_bytes == 1300
        await store.settle()
        # The next write over the bound sweeps.
        bucket.refused.clear()
        await store.put("t/d", bytes(100))
        await store.settle()
        assert (store.stats().size_bytes, sorted(bucket.blobs)) == (800, ["t/b", "t/c", "t/d"])
        await store.close()


async def test_what_is_written_during_a_sweep_is_counted() -> None:
    async with running_bucket() as bucket:
        store = bucket.open(1000)
        await store.put("t/a", bytes(600))
        held = bucket.hold("delete")
        await store.put("t/b", bytes(600))
        await bucket.wait_for("delete")
        await store.put("t/c", bytes(300))
        held.set()
        await store.settle()
        assert store.stats().size_bytes == sum(map(len, bucket.blobs.values())) == 900
        await store.close()


async def test_what_is_used_stays_in_a_folder(tmp_path: Path) -> None:
    writer = BlobStore(str(tmp_path))
    for at, key in enumerate(("t/used", "t/unused", "t/other")):
        await writer.put(key, bytes(300))
        os.utime(tmp_path / key, (1000 + at, 1000 + at))
    store = BlobStore(str(tmp_path), 1000)
    await store.touch("t/used")
    await store.touch("t/missing")
    await store.touch("../outside")
    await store.put("t/new", bytes(300))
    await store.settle()
    kept = [key for key in ("t/used", "t/unused", "t/other", "t/new") if await store.size(key)]
    assert kept == ["t/used", "t/other", "t/new"]
    # Once an hour is enough.
    os.utime(tmp_path / "t/used", (1000, 1000))
    await store.touch("t/used")
    assert (tmp_path / "t/used").stat().st_mtime == 1000
