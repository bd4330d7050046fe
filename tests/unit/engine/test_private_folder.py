"""Folders for KV are one user's: what others could write is refused before anything is read of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from context.errors import ConfigError
from engine.vllm.private_folder import make_private


def test_a_folder_is_made_for_its_user_alone_and_kept(tmp_path: Path) -> None:
    folder = tmp_path / "above" / "pool"
    for _ in range(2):
        make_private(folder, "engine.vllm.x.folder")
        assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
def test_a_folder_that_others_may_write_is_refused_with_the_remedy(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "pool"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(ConfigError, match="chmod 700") as caught:
        make_private(folder, "engine.vllm.x.folder")
    assert caught.value.key == "engine.vllm.x.folder"
    assert str(tmp_path) not in str(caught.value)
    folder.chmod(0o755)
    make_private(folder, "engine.vllm.x.folder")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "pool"
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, -1)
    with pytest.raises(ConfigError, match="another user"):
        make_private(folder, "engine.vllm.x.folder")


def test_a_folder_that_cannot_be_made_is_the_disk_s_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        make_private(tmp_path / "file" / "pool", "engine.vllm.x.folder")
