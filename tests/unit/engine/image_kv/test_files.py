"""The file tier: whole or not at all, bounded, shared, and nothing unsound is ever served."""

from __future__ import annotations

import errno
import json
import logging
import os
import struct
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import blake3
import pytest

from context.errors import ConfigError
from engine.vllm.image_kv.entry import Layout
from engine.vllm.image_kv.files import FileTier
from tests.unit.engine.damage import Damage, append, cut, flip, link, pipe
from tests.unit.engine.disk import refusing
from tests.unit.engine.image_kv.entries import FILE_BYTES, LAYOUT, TOKENS, entry, file_of, key, same

ROOM = 100 * FILE_BYTES


def test_what_was_written_is_read_after_a_restart(tmp_path: Path) -> None:
    tier = FileTier(tmp_path / "pool", ROOM)
    assert tier.write(key(1), entry(1, cost=2.5, position=11))
    again = FileTier(tmp_path / "pool", ROOM)
    assert key(1) in again
    assert key(2) not in again
    assert same(again.read(key(1), LAYOUT), entry(1, cost=2.5, position=11))
    assert again.read(key(2), LAYOUT) is None
    assert again.stats() == tier.stats()
    assert (again.stats().entries, again.stats().bytes) == (1, FILE_BYTES)
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "pool", file_of(tmp_path / "pool", key(1)))] == [
        0o700,
        0o600,
    ]


def _header(change: Callable[[dict[str, object]], object]) -> Damage:
    """A header that says something else under a right checksum."""

    def rewrite(path: Path) -> None:
        content = path.read_bytes()
        (length,) = struct.unpack("<I", content[12:16])
        fields = json.loads(content[48 : 48 + length])
        change(fields)
        written = json.dumps(fields).encode()
        prefix = content[:12] + struct.pack("<I", len(written)) + blake3.blake3(written).digest()
        path.write_bytes((prefix + written).ljust(4096, b"\0") + content[4096:])

    return rewrite


def _version(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:8] + struct.pack("<I", 2) + content[12:])


def _text(path: Path) -> None:
    path.write_text("not an entry")


DAMAGE: dict[str, Damage] = {
    "a bit of the magic": flip(0),
    "a bit of the header's length": flip(12),
    "a bit of the header's checksum": flip(20),
    "a bit of the header": flip(60),
    "the first bit of the memory": flip(4096),
    "the last bit of the memory": flip(-1),
    "cut in the memory": cut(FILE_BYTES - 1),
    "cut in the header": cut(100),
    "cut in the prefix": cut(10),
    "empty": cut(0),
    "longer than it says": append,
    "of another version": _version,
    "somebody else's text": _text,
    "a link": link,
    "a pipe": pipe,
    "another model's": _header(lambda fields: fields.update(fingerprint="e" * 64)),
    "another group's": _header(lambda fields: fields.update(group="e" * 64)),
    "another entry's": _header(lambda fields: fields.update(digest="e" * 64)),
    "of another layout": _header(
        lambda fields: fields.update(layout={**_dict(fields["layout"]), "kv_heads": 4, "layers": 2})
    ),
    "of an unknown layout": _header(
        lambda fields: fields.update(layout={**_dict(fields["layout"]), "dtype": "pickle"})
    ),
    "without a layout": _header(lambda fields: fields.pop("layout")),
    "of no number of tokens": _header(lambda fields: fields.update(tokens="4")),
    "of more tokens": _header(lambda fields: fields.update(tokens=TOKENS + 1)),
    "of fewer than no tokens": _header(lambda fields: fields.update(tokens=-1)),
}


def _dict(value: object) -> dict[str, object]:
    assert isinstance(value, dict)
    return value  # pyright: ignore[reportUnknownVariableType]


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=list(DAMAGE))
@pytest.mark.parametrize("restarted", [False, True])
def test_a_file_that_is_not_sound_is_removed_and_never_served(
    tmp_path: Path, damage: Damage, restarted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    tier = FileTier(tmp_path, ROOM)
    assert tier.write(key(1), entry(1))
    assert tier.write(key(2), entry(2))
    damage(file_of(tmp_path, key(1)))
    if restarted:
        tier = FileTier(tmp_path, ROOM)
    assert tier.read(key(1), LAYOUT) is None
    assert tier.read(key(1), LAYOUT) is None
    assert tier.stats().refused == 1
    assert not os.path.lexists(file_of(tmp_path, key(1)))
    assert (tier.stats().entries, tier.stats().bytes) == (1, FILE_BYTES)
    assert str(tmp_path) not in caplog.text
    # The others are not touched, and the place is free again.
    assert same(tier.read(key(2), LAYOUT), entry(2))
    assert tier.write(key(1), entry(3))
    assert same(tier.read(key(1), LAYOUT), entry(3))


def test_the_file_of_another_image_under_this_ones_name_is_refused(tmp_path: Path) -> None:
    tier = FileTier(tmp_path, ROOM)
    tier.write(key(1), entry(1))
    tier.write(key(1, tenant="b"), entry(2))
    os.replace(file_of(tmp_path, key(1)), file_of(tmp_path, key(1, tenant="b")))
    assert tier.read(key(1, tenant="b"), LAYOUT) is None
    assert tier.stats().refused == 1


def test_files_that_are_not_the_pools_are_left_alone(tmp_path: Path) -> None:
    for name in ("notes.txt", "a.imagekv", "x.unfinished"):
        (tmp_path / name).write_text("mine")
    folder = file_of(tmp_path, key(1))
    folder.mkdir()
    tier = FileTier(tmp_path, FILE_BYTES)
    assert tier.read(key(1), LAYOUT) is None
    tier.write(key(2), entry(2))
    tier.write(key(3), entry(3))
    tier.clear()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["a.imagekv", folder.name, "notes.txt", "x.unfinished"]
    )


def test_the_folder_stays_within_its_bound_and_keeps_what_was_used_last(tmp_path: Path) -> None:
    tier = FileTier(tmp_path, 3 * FILE_BYTES + 8192)
    for number in range(3):
        assert tier.write(key(number), entry(number))
    assert tier.read(key(0), LAYOUT) is not None
    assert tier.write(key(3), entry(3))
    assert [number for number in range(4) if key(number) in tier] == [0, 2, 3]
    assert (tier.stats().evicted, tier.stats().bytes) == (1, 3 * FILE_BYTES)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == 3 * FILE_BYTES
    assert not FileTier(tmp_path / "small", FILE_BYTES - 1).write(key(1), entry(1))


def test_after_a_restart_the_order_of_use_and_a_smaller_bound_hold(tmp_path: Path) -> None:
    tier = FileTier(tmp_path, ROOM)
    for number, used in enumerate((40, 10, 30, 20)):
        tier.write(key(number), entry(number))
        os.utime(file_of(tmp_path, key(number)), (used, used))
    # The oldest was used again since.
    assert tier.read(key(1), LAYOUT) is not None
    again = FileTier(tmp_path, 3 * FILE_BYTES + 8192)
    assert again.write(key(4), entry(4))
    assert [number for number in range(5) if key(number) in again] == [0, 1, 4]


def test_two_processes_share_a_folder_and_its_bound(tmp_path: Path) -> None:
    one, two = (FileTier(tmp_path, 3 * FILE_BYTES + 8192) for _ in range(2))
    one.write(key(1), entry(1))
    assert same(two.read(key(1), LAYOUT), entry(1))
    assert key(1) in two
    for number in (2, 3, 4):
        assert two.write(key(number), entry(number))
    assert one.read(key(1), LAYOUT) is None
    assert one.write(key(5), entry(5))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == 3 * FILE_BYTES
    # Both may write one entry at once; the last one stays, whole.
    one.write(key(6), entry(6))
    two.write(key(6), entry(6))
    assert same(one.read(key(6), LAYOUT), entry(6))
    assert (one.stats().refused, one.stats().faults, two.stats().refused, two.stats().faults) == (0, 0, 0, 0)


def test_what_a_crash_left_unfinished_is_never_served_and_goes_in_time(tmp_path: Path) -> None:
    tier = FileTier(tmp_path, ROOM)
    tier.write(key(1), entry(1))
    old, young = (tmp_path / f"{digit * 32}.unfinished" for digit in "ab")
    for path in (old, young):
        path.write_bytes(file_of(tmp_path, key(1)).read_bytes()[:5000])
    os.utime(old, (1, 1))
    again = FileTier(tmp_path, ROOM)
    assert again.stats().entries == 1
    assert (old.exists(), young.exists()) == (False, True)


def test_a_folder_that_cannot_be_made_costs_the_file_tier_and_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    tier = FileTier(tmp_path / "file" / "pool", ROOM)
    for number in range(3):
        assert not tier.write(key(number), entry(number))
        assert key(number) not in tier
    tier.clear()
    assert (tier.stats().writing, tier.stats().entries) == (False, 0)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert str(tmp_path) not in caplog.text


def test_a_file_that_cannot_be_opened_is_left_out_and_the_others_are_written_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    FileTier(tmp_path, ROOM).write(key(1), entry(1))
    FileTier(tmp_path, ROOM).write(key(2), entry(2))
    with refusing("open", errno.EIO, file_of(tmp_path, key(1)).name):
        tier = FileTier(tmp_path, ROOM)
        for number in (3, 4):
            assert tier.write(key(number), entry(number))
        assert [number for number in range(5) if key(number) in tier] == [2, 3, 4]
        # It was looked at once.
        assert (tier.stats().writing, tier.stats().faults, tier.stats().refused) == (True, 1, 0)
        assert "a file was not read" in caplog.text
        assert tier.read(key(1), LAYOUT) is None
    # Its disk is well again.
    assert same(tier.read(key(1), LAYOUT), entry(1))
    assert key(1) in tier


def test_a_file_that_cannot_be_removed_for_room_costs_one_write_and_not_all(tmp_path: Path) -> None:
    tier = FileTier(tmp_path, 2 * FILE_BYTES + 8192)
    for number in (1, 2):
        assert tier.write(key(number), entry(number))
    with refusing("os.remove", errno.EACCES, ".imagekv"):
        assert not tier.write(key(3), entry(3))
    assert (tier.stats().writing, tier.stats().faults, tier.stats().evicted) == (True, 1, 0)
    assert tier.write(key(3), entry(3))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == tier.stats().bytes == 2 * FILE_BYTES


def test_an_entry_is_read_where_the_disk_does_not_take_that_it_was(tmp_path: Path) -> None:
    """As where a file system is mounted to be read only."""
    tier = FileTier(tmp_path, ROOM)
    assert tier.write(key(1), entry(1))
    with refusing("os.utime", errno.EROFS, ""):
        assert same(tier.read(key(1), LAYOUT), entry(1))
    assert tier.stats().faults == 0


def test_an_entry_that_is_not_wanted_any_more_when_it_is_written_gets_no_file(tmp_path: Path) -> None:
    tier = FileTier(tmp_path, ROOM)
    assert not tier.write(key(1), entry(1), lambda: False)
    assert (list(tmp_path.iterdir()), key(1) in tier, tier.stats().writing) == ([], False, True)


def test_emptying_says_whether_a_file_stayed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tier = FileTier(tmp_path / "pool", ROOM)
    assert tier.write(key(1), entry(1))
    (tmp_path / "pool" / f"{'0' * 64}.imagekv").mkdir()
    # A folder of that name was never an entry.
    assert tier.clear()
    assert tier.write(key(1), entry(1))
    with refusing("os.remove", errno.EACCES, ".imagekv"):
        assert not tier.clear()
    assert "a file was not removed" in caplog.text
    assert key(1) not in tier


def test_a_folder_that_others_may_write_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "pool"
    FileTier(folder, ROOM).write(key(1), entry(1))
    folder.chmod(0o777)
    with pytest.raises(ConfigError, match="chmod 700") as caught:
        FileTier(folder, ROOM)
    assert caught.value.key == "engine.vllm.image_kv.folder"


def test_a_full_disk_ends_the_writing_with_one_warning_and_what_is_there_is_read_on(tmp_path: Path) -> None:
    """A process may have no file longer than a bound: its disk is full in the middle of the second entry."""
    program = """
        import logging, resource, sys
        from pathlib import Path
        from engine.vllm.image_kv.files import FileTier
        from tests.unit.engine.image_kv.entries import FILE_BYTES, LAYOUT, entry, key, same
        logging.basicConfig(stream=sys.stdout, format="WARNED %(message)s")
        folder = Path(sys.argv[1])
        tier = FileTier(folder, 100 * FILE_BYTES)
        assert tier.write(key(1), entry(1))
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES - 100, FILE_BYTES))
        assert not tier.write(key(2), entry(2))
        assert not tier.write(key(3), entry(3))
        assert same(tier.read(key(1), LAYOUT), entry(1))
        assert [path.name for path in folder.iterdir()] == [key(1).digest + ".imagekv"]
        stats = tier.stats()
        assert (stats.writing, stats.faults, stats.entries) == (False, 1, 1), stats
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("WARNED") == 1
    assert "the disk is full" in done.stdout
    assert str(tmp_path) not in done.stdout


def test_an_entry_of_a_layout_that_the_model_no_longer_has_is_refused(tmp_path: Path) -> None:
    tier = FileTier(tmp_path, ROOM)
    tier.write(key(1), entry(1))
    assert tier.read(key(1), Layout(3, 2, 8, "float16", encoder_width=16)) is None
    assert tier.stats().refused == 1
