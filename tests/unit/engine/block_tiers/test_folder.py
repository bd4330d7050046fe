"""Whose the folder is: of one engine and one user alone, and with data parallelism each replica's its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from context.errors import ConfigError
from engine import torchvision_ops
from engine.vllm.block_tiers.files import BlockFiles
from engine.vllm.block_tiers.folder import folder_of
from tests.unit.engine.block_tiers.test_files import FILE, ROOM, block, key


def stored(folder: Path, index: int, replicas: int, *numbers: int) -> BlockFiles:
    files = BlockFiles(folder_of(folder, index, replicas), ROOM, "model")
    for number in numbers:
        files.write(key(number), block(number))
    return files


def blocks_in(folder: Path) -> dict[str, int]:
    """Blocks in each folder that has any."""
    found = [path.parent.relative_to(folder).as_posix() for path in folder.rglob("*.blockkv")]
    return {name: found.count(name) for name in sorted(set(found))}


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_a_folder_in_which_others_may_write_is_refused_with_the_remedy(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "blocks"
    folder.mkdir()
    folder.chmod(mode)
    for replicas in (1, 2):
        with pytest.raises(ConfigError) as caught:
            stored(folder, 0, replicas)
        assert caught.value.key == "engine.vllm.block_tiers.folder"
        assert "chmod 700" in caught.value.reason
        assert str(tmp_path) not in caught.value.reason
    folder.chmod(0o755)
    stored(folder, 0, 1).close()


@pytest.mark.vllm
def test_blocks_of_another_number_of_replicas_are_removed_and_those_in_use_stay(tmp_path: Path) -> None:
    torchvision_ops.declare_missing()
    from engine.vllm.block_tiers.spec import empty_unused

    folder = tmp_path / "blocks"
    stored(folder, 0, 1, 1, 2).close()
    for index in range(4):
        stored(folder, index, 4, index, 9).close()
    (folder / "replica-x").mkdir()
    (folder / "replica-x" / ("f" * 64 + ".blockkv")).write_text("mine")
    (folder / "replica-7").symlink_to(folder / "replica-x")
    running = stored(folder, 3, 4)
    empty_unused(folder, 2)
    assert blocks_in(folder) == {"replica-0": 2, "replica-1": 2, "replica-3": 2, "replica-x": 1}
    running.close()
    empty_unused(folder, 1)
    assert blocks_in(folder) == {"replica-x": 1}
    # One engine's own are left alone.
    own = stored(folder, 0, 1, 1)
    empty_unused(folder, 1)
    assert (blocks_in(folder), own.stats().bytes) == ({".": 1, "replica-x": 1}, FILE)
    empty_unused(tmp_path / "none", 1)
