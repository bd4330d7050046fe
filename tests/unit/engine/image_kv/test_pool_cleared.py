"""After a pool was emptied nothing of before is given, whoever held, read or wrote it meanwhile."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import errno
from pathlib import Path

from engine.vllm.image_kv.entry import Entry, Layout
from engine.vllm.image_kv.files import FileTier
from engine.vllm.image_kv.keys import EntryKey
from engine.vllm.image_kv.pool import ImagePool
from tests.unit.engine.disk import refusing, slow
from tests.unit.engine.image_kv.entries import BYTES, LAYOUT, entry, key, same
from tests.unit.engine.image_kv.pooled import SECONDS, SlowFiles, files, held


def test_after_clear_nothing_is_left_not_even_what_was_being_written(tmp_path: Path) -> None:
    disk = SlowFiles(tmp_path)
    pool = ImagePool(LAYOUT, 4 * BYTES, disk, threads=1)
    pool.put(key(1), entry(1))
    pool.put(key(2), entry(2))
    assert disk.begun.wait(SECONDS)
    pool.clear()
    assert [pool.where(key(number)) for number in (1, 2)] == [None, None]
    disk.may_go.set()
    pool.close()
    assert list(tmp_path.iterdir()) == []
    assert (pool.stats().memory_bytes, pool.stats().files.bytes) == (0, 0)


def test_what_is_being_written_while_the_pool_is_emptied_has_no_file_after_it(tmp_path: Path) -> None:
    pool = ImagePool(LAYOUT, 4 * BYTES, files(tmp_path), threads=1)
    with slow("open", ".unfinished") as disk:
        pool.put(key(1), entry(1))
        assert disk.begun.wait(SECONDS)
        assert pool.clear()
        # Not even for a moment: it would be a fault.
        with refusing("os.rename", errno.EACCES, ".unfinished"):
            disk.may_go.set()
            pool.close()
    stats = pool.stats()
    assert (list(tmp_path.iterdir()), stats.memory_entries, stats.files.entries) == ([], 0, 0)
    assert (stats.files.faults, stats.files.writing) == (0, True)


def test_what_was_put_since_the_pool_was_emptied_keeps_its_file_when_an_older_write_ends(tmp_path: Path) -> None:
    pool = ImagePool(LAYOUT, 4 * BYTES, files(tmp_path))
    with slow("open", ".unfinished") as disk:
        pool.put(key(1), entry(1))
        assert disk.begun.wait(SECONDS)
        assert pool.clear()
        assert pool.put(key(1), entry(5))
        # It is written by the other thread, and then read by it.
        assert pool.hold(key(9)).result(SECONDS) is None
        disk.may_go.set()
    pool.close()
    assert same(files(tmp_path).read(key(1), LAYOUT), entry(5))


def test_what_is_held_while_the_pool_is_emptied_goes_with_its_last_holder_and_nobody_else_gets_it() -> None:
    pool = ImagePool(LAYOUT, 2 * BYTES)
    for number in (1, 2):
        pool.put(key(number), entry(number))
    one, two = held(pool, key(1)), held(pool, key(1))
    pool.clear()
    assert pool.where(key(1)) is None
    assert pool.hold(key(1)).result(0) is None
    assert same(one.entry, entry(1))
    # Until then it takes its memory.
    assert pool.put(key(2), entry(2))
    with held(pool, key(2)):
        assert not pool.put(key(3), entry(3))
        one.release()
        one.release()
        assert (pool.stats().held_entries, pool.stats().memory_bytes) == (2, 2 * BYTES)
        two.release()
        assert (pool.stats().held_entries, pool.stats().memory_bytes) == (1, BYTES)
        assert pool.put(key(3), entry(3))
    pool.close()


def test_what_was_put_since_the_pool_was_emptied_is_given_and_not_what_was_held_before() -> None:
    pool = ImagePool(LAYOUT, 2 * BYTES)
    pool.put(key(1), entry(1))
    with held(pool, key(1)) as before:
        pool.clear()
        assert pool.put(key(1), entry(5))
        with held(pool, key(1)) as found:
            assert same(found, entry(5))
        assert same(before, entry(1))
    assert pool.where(key(1)) == "memory"
    pool.close()


def test_what_is_being_read_while_the_pool_is_emptied_is_given_to_nobody(tmp_path: Path) -> None:
    class ReadThenSlow(SlowFiles):
        """What is read before the reset arrives after it."""

        def read(self, key: EntryKey, layout: Layout) -> Entry | None:
            found = FileTier.read(self, key, layout)
            self.begun.set()
            assert self.may_go.wait(SECONDS)
            return found

    files(tmp_path).write(key(1), entry(1))
    disk = ReadThenSlow(tmp_path)
    pool = ImagePool(LAYOUT, 4 * BYTES, disk)
    before = pool.hold(key(1))
    assert disk.begun.wait(SECONDS)
    pool.clear()
    after = pool.hold(key(1))
    disk.may_go.set()
    assert [future.result(SECONDS) for future in (before, after)] == [None, None]
    assert (pool.where(key(1)), pool.stats().memory_entries, list(tmp_path.iterdir())) == (None, 0, [])
    pool.close()
