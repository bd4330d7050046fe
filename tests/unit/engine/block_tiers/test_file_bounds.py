"""The bound of the folder holds on a disk that refuses, and nobody who must not wait waits for one that is slow."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine.vllm.block_tiers.files import BlockFiles
from tests.unit.engine.block_tiers.test_files import FILE, block, key, only_file, read, reopened
from tests.unit.engine.disk import SECONDS, refusing, slow

ROOM_FOR = 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "blocks"


@pytest.fixture
def files(folder: Path) -> BlockFiles:
    return BlockFiles(folder, ROOM_FOR * FILE, "model")


def on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


@pytest.mark.parametrize("error", [errno.EMFILE, errno.EACCES, errno.EIO])
def test_a_file_that_cannot_be_read_is_not_served_and_counts_until_it_is_gone(
    files: BlockFiles, folder: Path, error: int, caplog: pytest.LogCaptureFixture
) -> None:
    files.write(key(1), block(1))
    with refusing("open", error):
        assert read(files, 1) is None
    assert (key(1) in files, files.stats().blocks, files.stats().bytes) == (False, 0, FILE)
    assert (files.stats().faults, files.stats().writing) == (1, True)
    assert str(folder) not in caplog.text
    for number in range(2, 2 + ROOM_FOR):
        assert files.write(key(number), block(number))
        assert on_disk(folder) == files.stats().bytes <= ROOM_FOR * FILE
    # It was the first to go.
    assert (files.stats().evicted, files.stats().blocks) == (1, ROOM_FOR)


def test_a_file_that_could_not_be_read_is_written_again_and_counts_once(files: BlockFiles, folder: Path) -> None:
    files.write(key(1), block(1))
    with refusing("open", errno.EMFILE):
        assert read(files, 1) is None
    assert files.write(key(1), block(1))
    assert (read(files, 1), files.stats().bytes, on_disk(folder)) == (block(1), FILE, FILE)


def test_a_damaged_file_that_cannot_be_removed_counts_until_it_is_gone(
    files: BlockFiles, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files.write(key(1), block(1))
    os.truncate(only_file(folder), FILE - 1)
    with caplog.at_level(logging.WARNING), refusing("os.remove", errno.EACCES):
        assert read(files, 1) is None
    assert (key(1) in files, files.stats().bytes, files.stats().refused, files.stats().faults) == (False, FILE, 1, 1)
    assert files.stats().writing
    assert [os.strerror(errno.EACCES) in caplog.text, "was not removed" in caplog.text] == [False, True]
    for number in range(2, 2 + ROOM_FOR):
        assert files.write(key(number), block(number))
    assert files.stats().bytes == on_disk(folder) == ROOM_FOR * FILE


def test_what_cannot_be_evicted_ends_the_writing_and_still_counts(files: BlockFiles, folder: Path) -> None:
    for number in range(ROOM_FOR):
        files.write(key(number), block(number))
    with refusing("os.remove", errno.EROFS):
        assert not files.write(key(7), block(7))
    state = files.stats()
    assert (state.writing, state.faults, state.dropped, state.evicted) == (False, 1, 1, 0)
    assert state.bytes == on_disk(folder) == ROOM_FOR * FILE
    # The others are read on.
    assert (key(0) in files, read(files, 1)) == (False, block(1))


def test_what_a_reset_cannot_remove_is_not_served_and_counts(files: BlockFiles, folder: Path) -> None:
    for number in range(ROOM_FOR):
        files.write(key(number), block(number))
    kept = next(folder.glob("*.blockkv"))
    with refusing("os.remove", errno.EACCES, kept.name):
        assert not files.clear()
    assert [key(number) in files for number in range(ROOM_FOR)] == [False] * ROOM_FOR
    assert (files.stats().blocks, files.stats().bytes, on_disk(folder)) == (0, FILE, FILE)
    assert files.clear()
    assert (files.stats().bytes, list(folder.glob("*.blockkv"))) == (0, [])


def test_a_lower_bound_that_cannot_be_reached_at_the_start_is_told_and_nothing_is_written(
    files: BlockFiles, folder: Path
) -> None:
    for number in range(2):
        files.write(key(number), block(number))
    with refusing("os.remove", errno.EACCES):
        again = reopened(files, folder, FILE)
    assert (again.stats().bytes, again.stats().faults, again.stats().writing) == (2 * FILE, 1, False)


def test_a_file_that_gets_no_name_counts_if_it_cannot_be_removed(files: BlockFiles, folder: Path) -> None:
    with refusing("os.rename", errno.EIO, ".unfinished"):
        assert not files.write(key(1), block(1))
    assert (files.stats().bytes, on_disk(folder)) == (0, 0)
    again = reopened(files, folder)
    with refusing("os.rename", errno.EIO, ".unfinished"), refusing("os.remove", errno.EIO, ".unfinished"):
        assert not again.write(key(1), block(1))
    assert (again.stats().bytes, on_disk(folder)) == (FILE, FILE)
    # The next start removes it.
    assert (reopened(again, folder).stats().bytes, on_disk(folder)) == (0, 0)


WORK: dict[str, Callable[[BlockFiles], object]] = {
    "evict": lambda files: files.write(key(9), block(9)),
    "clear": lambda files: files.clear(),
    "discard": lambda files: read(files, 0),
}


@pytest.mark.parametrize("work", WORK.values(), ids=WORK.keys())
def test_nobody_asks_in_vain_while_the_disk_removes(
    files: BlockFiles, folder: Path, work: Callable[[BlockFiles], object]
) -> None:
    for number in range(ROOM_FOR):
        files.write(key(number), block(number))
    # To be discarded when they are read; eviction and reset do not look.
    for path in folder.glob("*.blockkv"):
        os.truncate(path, FILE - 1)
    with ThreadPoolExecutor(2) as threads, slow("os.remove") as disk:
        removing = threads.submit(work, files)
        assert disk.begun.wait(SECONDS)
        asked = threads.submit(lambda: (key(0) in files, files.touch([key(1)]), files.drop(1), files.stats().bytes))
        # What is being removed is not served, and counts.
        assert asked.result(SECONDS / 2) == (False, None, None, ROOM_FOR * FILE)
        assert not removing.done()
        disk.may_go.set()
        removing.result(SECONDS)
    assert len(list(folder.glob("*.blockkv"))) == files.stats().blocks
