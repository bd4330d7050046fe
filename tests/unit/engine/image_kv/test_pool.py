"""The pool: entries there at once, held while they are used, in files behind that."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.vllm.image_kv.entry import Entry, Layout
from engine.vllm.image_kv.files import FileTier
from engine.vllm.image_kv.pool import Hold, ImagePool
from tests.unit.engine.image_kv.entries import BYTES, FILE_BYTES, LAYOUT, entry, file_of, key, same
from tests.unit.engine.image_kv.pooled import SECONDS, SlowFiles, files, held


def test_an_entry_is_there_as_soon_as_it_is_put() -> None:
    pool = ImagePool(LAYOUT, 10 * BYTES)
    assert pool.hold(key(1)).result(0) is None
    assert pool.put(key(1), entry(1))
    with held(pool, key(1)) as found:
        assert same(found, entry(1))
    # Another tenant's, another model's and another size's are others.
    for other in (key(1, tenant="b"), key(1, fingerprint="e" * 64), key(1, grid=(1, 4, 1)), key(2)):
        assert pool.hold(other).result(0) is None
    stats = pool.stats()
    assert (stats.memory_hits, stats.misses, stats.memory_entries, stats.memory_bytes) == (1, 5, 1, BYTES)
    pool.close()


def test_memory_is_bounded_and_what_is_held_stays() -> None:
    pool = ImagePool(LAYOUT, 2 * BYTES)
    assert pool.put(key(1), entry(1))
    assert pool.put(key(2), entry(2))
    one = held(pool, key(1))
    assert pool.put(key(3), entry(3))
    assert [pool.where(key(number)) for number in (1, 2, 3)] == ["memory", None, "memory"]
    two = held(pool, key(3))
    assert not pool.put(key(4), entry(4))
    assert same(one.entry, entry(1))
    again = held(pool, key(1))
    one.release()
    one.release()
    assert not pool.put(key(4), entry(4))
    again.release()
    assert pool.put(key(4), entry(4))
    assert [pool.where(key(number)) for number in (1, 3, 4)] == [None, "memory", "memory"]
    two.release()
    stats = pool.stats()
    assert (stats.memory_evicted, stats.refused_entries, stats.held_entries, stats.memory_bytes) == (2, 2, 0, 2 * BYTES)
    assert not ImagePool(LAYOUT, BYTES - 1).put(key(1), entry(1))
    pool.close()


def test_what_left_memory_comes_back_from_its_file_also_after_a_restart(tmp_path: Path) -> None:
    pool = ImagePool(LAYOUT, 2 * BYTES, files(tmp_path))
    for number in range(2):
        assert pool.put(key(number), entry(number))
    pool.close()
    pool = ImagePool(LAYOUT, BYTES, files(tmp_path))
    assert [pool.where(key(number)) for number in range(3)] == ["file", "file", None]
    for number in (0, 1, 0):
        with held(pool, key(number)) as found:
            assert same(found, entry(number))
            assert pool.where(key(number)) == "memory"
    stats = pool.stats()
    assert (stats.file_hits, stats.memory_hits, stats.memory_evicted, stats.memory_bytes) == (3, 0, 2, BYTES)
    assert pool.hold(key(7)).result(SECONDS) is None
    pool.close()


def test_an_unsound_file_is_a_miss(tmp_path: Path) -> None:
    pool = ImagePool(LAYOUT, 2 * BYTES, files(tmp_path))
    pool.put(key(1), entry(1))
    pool.close()
    path = file_of(tmp_path, key(1))
    content = bytearray(path.read_bytes())
    content[4100] ^= 1
    path.write_bytes(content)
    pool = ImagePool(LAYOUT, 2 * BYTES, files(tmp_path))
    assert pool.hold(key(1)).result(SECONDS) is None
    assert (pool.stats().misses, pool.stats().files.refused, pool.where(key(1))) == (1, 1, None)
    pool.close()


def test_without_a_disk_the_pool_goes_on_in_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    pool = ImagePool(LAYOUT, 2 * BYTES, files(tmp_path / "file" / "pool"))
    assert pool.put(key(1), entry(1))
    with held(pool, key(1)) as found:
        assert same(found, entry(1))
    assert pool.hold(key(2)).result(SECONDS) is None
    pool.close()
    assert (pool.stats().files.writing, pool.stats().unwritten_entries) == (False, 0)


def test_nobody_waits_for_the_disk(tmp_path: Path) -> None:
    disk = SlowFiles(tmp_path)
    pool = ImagePool(LAYOUT, 2 * BYTES, disk)
    assert pool.put(key(1), entry(1))
    assert disk.begun.wait(SECONDS)
    with held(pool, key(1)) as found:
        assert same(found, entry(1))
    waiting = [pool.hold(key(9)) for _ in range(2)]
    assert pool.put(key(2), entry(2))
    # What is not in its file yet stays in memory.
    assert not pool.put(key(3), entry(3))
    assert (pool.stats().unwritten_entries, [future.done() for future in waiting]) == (2, [False, False])
    disk.may_go.set()
    assert [future.result(SECONDS) for future in waiting] == [None, None]
    pool.close()
    assert pool.stats().unwritten_entries == 0
    assert same(FileTier(tmp_path, 100 * FILE_BYTES).read(key(2), LAYOUT), entry(2))


def test_all_who_wait_for_one_file_hold_it_but_not_those_who_left(tmp_path: Path) -> None:
    files(tmp_path).write(key(1), entry(1))
    disk = SlowFiles(tmp_path)
    pool = ImagePool(LAYOUT, BYTES, disk)
    first, left, second = (pool.hold(key(1)) for _ in range(3))
    assert left.cancel()
    disk.may_go.set()
    holds = [future.result(SECONDS) for future in (first, second)]
    assert [hold is not None and same(hold.entry, entry(1)) for hold in holds] == [True, True]
    assert not pool.put(key(2), entry(2))
    for hold in holds:
        assert hold is not None
        hold.release()
    assert (pool.stats().held_entries, pool.stats().file_hits) == (0, 2)
    pool.close()


def test_an_entry_that_finds_no_room_is_a_miss_and_stays_in_its_file(tmp_path: Path) -> None:
    files(tmp_path).write(key(1), entry(1))
    pool = ImagePool(LAYOUT, BYTES, files(tmp_path))
    pool.put(key(2), entry(2))
    with held(pool, key(2)):
        assert pool.hold(key(1)).result(SECONDS) is None
    assert pool.where(key(1)) == "file"
    pool.close()
    assert pool.stats().refused_entries == 1


@pytest.mark.parametrize("call", ["scandir", "open", "unlink"])
def test_who_asks_where_an_entry_is_or_for_figures_does_not_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """A write learns of another process's file and removes it for room, on a disk that does nothing until it may."""
    pool = ImagePool(LAYOUT, 4 * BYTES, files(tmp_path, 1))
    files(tmp_path).write(key(1), entry(1))
    begun, may_go, real = threading.Event(), threading.Event(), getattr(os, call)

    def held_up(*given: Any, **named: Any) -> Any:
        if threading.current_thread().name.startswith("stillframe-image-pool"):
            begun.set()
            assert may_go.wait(SECONDS)
        return real(*given, **named)

    monkeypatch.setattr(os, call, held_up)
    try:
        assert pool.put(key(2), entry(2))
        assert begun.wait(SECONDS)
        with ThreadPoolExecutor(1) as asking:
            answers = asking.submit(lambda: ([pool.where(key(number)) for number in (2, 3)], pool.stats()))
            try:
                where, stats = answers.result(SECONDS)
            finally:
                may_go.set()
    finally:
        may_go.set()
    pool.close()
    assert (where, stats.unwritten_entries, stats.files.writing) == (["memory", None], 1, True)
    assert (pool.stats().files.evicted, pool.stats().files.entries) == (1, 1)


def test_an_entry_of_another_layout_is_refused() -> None:
    pool = ImagePool(LAYOUT, 10 * BYTES)
    with pytest.raises(ValueError, match="another layout"):
        pool.put(key(1), Entry.empty(Layout(1, 1, 8, "float32"), 4, 0, 1.0))
    pool.close()


def test_many_threads_find_what_they_put_or_nothing(tmp_path: Path) -> None:
    pool = ImagePool(LAYOUT, 4 * BYTES, files(tmp_path, 8))

    def work(seed: int) -> int:
        found = 0
        for step in range(40):
            number = (seed * 7 + step * 5) % 12
            pool.put(key(number), entry(number))
            hold = pool.hold(key((number + step) % 12)).result(SECONDS)
            if hold is not None:
                with hold as got:
                    assert same(got, entry((number + step) % 12))
                found += 1
        return found

    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(work, range(4))) > 20
    pool.close()
    stats = pool.stats()
    assert stats.memory_bytes <= 4 * BYTES
    assert stats.files.bytes <= 8 * FILE_BYTES + 8192
    assert (stats.held_entries, stats.unwritten_entries, stats.files.refused, stats.files.faults) == (0, 0, 0, 0)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from("puhr"), st.integers(0, 5), st.integers(1, 9)), max_size=60))
def test_whatever_is_done_memory_is_bounded_and_holds_are_true(steps: list[tuple[str, int, int]]) -> None:
    pool = ImagePool(LAYOUT, 3 * BYTES)
    holds: list[tuple[int, Hold]] = []
    try:
        for what, number, cost in steps:
            if what == "p":
                pool.put(key(number), entry(number, cost=cost))
            elif what == "h" and (hold := pool.hold(key(number)).result(0)) is not None:
                holds.append((number, hold))
            elif what == "r" and holds:
                holds.pop(number % len(holds))[1].release()
            stats = pool.stats()
            assert stats.memory_bytes == stats.memory_entries * BYTES <= 3 * BYTES
            assert stats.held_entries == len({held_number for held_number, _ in holds})
            for held_number, hold in holds:
                assert pool.where(key(held_number)) == "memory"
                assert hold.entry.memory.equal(entry(held_number).memory)
    finally:
        pool.close()
