"""The folder of the file tier: one engine's alone. With data parallelism each replica has one in it."""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path

from context.errors import ConfigError
from engine.vllm.block_tiers.settings import SETTING
from engine.vllm.private_folder import make_private

_KEY = f"{SETTING}.folder"
_REPLICA = re.compile(r"replica-\d+")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


def folder_of(folder: Path, index: int, size: int) -> Path:
    """Where the replica of that index has its blocks, of `size` ones. Makes what is above it.

    Raises:
        ConfigError: others may write there, and so put another folder in its place; or it cannot be had.
    """
    if size == 1:
        return folder
    _make(folder)
    return _replica(folder, index)


def unused(folder: Path, size: int) -> Iterator[Path]:
    """Folders in which blocks may be of a time with more or fewer replicas: none of `size` ones reads them.

    Raises:
        OSError: the folder cannot be read.
    """
    used = {folder} if size == 1 else {_replica(folder, index) for index in range(size)}
    if folder not in used:
        yield folder
    for item in folder.iterdir():
        if _REPLICA.fullmatch(item.name) and item not in used and item.is_dir() and not item.is_symlink():
            yield item


def claimed(folder: Path) -> int:
    """A descriptor with which the folder is this process's alone, until it is closed or the process ends.

    Raises:
        ConfigError: another engine has the folder, others may write to it, or it cannot be had.
    """
    _make(folder)
    try:
        claim = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise _refused(error) from error
    try:
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(claim)
        raise ConfigError("settings", _KEY, "is used by another engine; give each a folder of its own") from error
    return claim


def reason_of(error: OSError) -> str:
    """What is wrong with a disk, in words of ours."""
    if error.errno in _FULL:
        return "the disk is full"
    return "it may not be used" if error.errno in _FORBIDDEN else "its disk or its path is at fault"


def _replica(folder: Path, index: int) -> Path:
    return folder / f"replica-{index}"


def _make(folder: Path) -> None:
    try:
        make_private(folder, _KEY)
    except OSError as error:
        raise _refused(error) from error


def _refused(error: OSError) -> ConfigError:
    return ConfigError("settings", _KEY, f"cannot be used: {reason_of(error)}")
