"""Blocks in files: whole or not at all, bounded, one engine's, and nothing unsound is ever served."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from pathlib import Path

import pytest

from context.errors import ConfigError
from engine.vllm.block_tiers.files import BlockFiles
from tests.unit.engine.damage import Damage, append, cut, flip, link, pipe

BLOCK, HEADER = 4096, 84
FILE = BLOCK + HEADER
ROOM = 100 * FILE


def key(number: int) -> bytes:
    return number.to_bytes(36, "big")


def block(number: int) -> memoryview:
    return memoryview(bytes([number]) * BLOCK)


def read(files: BlockFiles, number: int) -> bytes | None:
    into = bytearray(BLOCK)
    return bytes(into) if files.read(key(number), memoryview(into)) else None


def only_file(folder: Path) -> Path:
    (path,) = folder.glob("*.blockkv")
    return path


def reopened(files: BlockFiles, folder: Path, room: int = ROOM, fingerprint: str = "model") -> BlockFiles:
    files.close()
    return BlockFiles(folder, room, fingerprint)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "blocks"


@pytest.fixture
def files(folder: Path) -> BlockFiles:
    return BlockFiles(folder, ROOM, "model")


def test_a_block_is_read_as_it_was_written_also_after_a_restart(files: BlockFiles, folder: Path) -> None:
    assert files.write(key(1), block(1))
    assert key(1) in files
    assert key(2) not in files
    again = reopened(files, folder)
    assert key(1) in again
    assert read(again, 1) == block(1)
    assert read(again, 2) is None
    assert (again.stats().blocks, again.stats().bytes, again.stats().loaded) == (1, FILE, 1)
    assert [path.stat().st_mode & 0o777 for path in (folder, only_file(folder))] == [0o700, 0o600]


def test_another_model_finds_nothing_and_what_it_writes_counts_too(files: BlockFiles, folder: Path) -> None:
    files.write(key(1), block(1))
    other = reopened(files, folder, 2 * FILE, "another")
    assert key(1) not in other
    assert read(other, 1) is None
    for number in (2, 3):
        assert other.write(key(number), block(number))
    # The other model's was used least recently.
    assert (other.stats().blocks, other.stats().evicted) == (2, 1)
    assert read(reopened(other, folder), 1) is None


def _renamed(path: Path) -> None:
    """Another block's file under this one's name."""
    other = BlockFiles(path.parent.parent / "other", ROOM, "model")
    other.write(key(9), block(1))
    shutil.copy(only_file(path.parent.parent / "other"), path)


DAMAGE: dict[str, Damage] = {
    "a bit of the magic": flip(0),
    "a bit of the version": flip(8),
    "a bit of the length": flip(12),
    "a bit of whose it is": flip(30),
    "a bit of the checksum": flip(60),
    "the first bit of the block": flip(HEADER),
    "the last bit of the block": flip(-1),
    "cut in the block": cut(FILE - 1),
    "cut in the header": cut(20),
    "empty": cut(0),
    "longer than it says": append,
    "somebody else's text": lambda path: path.write_text("not a block"),
    "a link": link,
    "a pipe": pipe,
    "another block's": _renamed,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_what_is_not_the_block_that_its_name_says_is_removed_and_counted_and_never_served(
    files: BlockFiles, folder: Path, damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    files.write(key(1), block(1))
    path = only_file(folder)
    damage(path)
    assert read(files, 1) is None
    assert files.stats().refused == 1
    assert (key(1) in files, path.exists(), files.stats().bytes) == (False, False, 0)
    assert str(folder) not in caplog.text
    # It can be written again.
    assert files.write(key(1), block(1))
    assert read(files, 1) == block(1)


def test_a_file_that_was_taken_away_is_a_miss(files: BlockFiles, folder: Path) -> None:
    files.write(key(1), block(1))
    only_file(folder).unlink()
    assert read(files, 1) is None
    assert (key(1) in files, files.stats().refused, files.stats().faults) == (False, 0, 0)


def test_the_bound_holds_and_what_was_used_least_recently_goes_first(folder: Path) -> None:
    files = BlockFiles(folder, 3 * FILE, "model")
    for number in (1, 2, 3):
        files.write(key(number), block(number))
    assert read(files, 1) is not None
    files.touch([key(2), key(7)])
    files.write(key(4), block(4))
    assert [key(number) in files for number in (1, 2, 3, 4)] == [True, True, False, True]
    assert (files.stats().bytes, files.stats().evicted) == (3 * FILE, 1)
    assert len(list(folder.glob("*.blockkv"))) == 3
    # Not even a bound that was lowered is exceeded, nor by one block alone.
    fewer = reopened(files, folder, FILE)
    assert (fewer.stats().blocks, len(list(folder.glob("*.blockkv")))) == (1, 1)
    none = reopened(fewer, folder, FILE - 1)
    assert not none.write(key(5), block(5))
    assert (none.stats().dropped, none.stats().bytes) == (1, 0)


def test_what_was_used_last_is_known_after_a_restart(files: BlockFiles, folder: Path) -> None:
    for number in (1, 2, 3):
        files.write(key(number), block(number))
    for path in folder.glob("*.blockkv"):
        os.utime(path, (1000, 1000))
    assert read(files, 2) is not None
    again = reopened(files, folder, FILE)
    assert key(2) in again


def test_a_folder_is_one_engine_s_alone(files: BlockFiles, folder: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        BlockFiles(folder, ROOM, "model")
    assert (caught.value.key, "another engine" in caught.value.reason) == ("engine.vllm.block_tiers.folder", True)
    files.close()
    BlockFiles(folder, ROOM, "model")


def test_a_folder_that_cannot_be_had_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError) as caught:
        BlockFiles(tmp_path / "file" / "blocks", ROOM, "model")
    assert caught.value.key == "engine.vllm.block_tiers.folder"
    assert str(tmp_path) not in caught.value.reason


def test_other_files_of_the_folder_stay_and_unfinished_ones_go(folder: Path) -> None:
    folder.mkdir()
    kept = [folder / name for name in ("notes.txt", "f" * 63 + ".blockkv", "g" * 64 + ".blockkv")]
    for path in kept:
        path.write_text("mine")
    unfinished = folder / ("a" * 32 + ".unfinished")
    unfinished.write_text("half")
    files = BlockFiles(folder, ROOM, "model")
    files.write(key(1), block(1))
    files.clear()
    assert all(path.read_text() == "mine" for path in kept)
    assert not unfinished.exists()
    assert (list(folder.glob("*.blockkv"))[2:], files.stats().blocks, files.stats().bytes) == ([], 0, 0)


def test_a_disk_that_refuses_ends_the_writing_with_one_warning(
    files: BlockFiles, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files.write(key(1), block(1))
    moved = folder.rename(folder.with_name("moved"))
    with caplog.at_level(logging.WARNING):
        assert not files.write(key(2), block(2))
        assert not files.write(key(3), block(3))
    assert len(caplog.records) == 1
    assert os.strerror(errno.ENOENT) not in caplog.text
    assert str(folder) not in caplog.text
    assert (files.stats().writing, files.stats().faults, files.stats().dropped) == (False, 1, 2)
    # What there is can be read on.
    moved.rename(folder)
    assert read(files, 1) == block(1)
    assert files.stats().bytes == FILE
