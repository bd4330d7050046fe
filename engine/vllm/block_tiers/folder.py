"""The folder of the file tier: one engine's alone."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from context.errors import ConfigError
from engine.vllm.block_tiers.settings import SETTING

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


def claimed(folder: Path) -> int:
    """A descriptor with which the folder is this process's alone, until it is closed or the process ends.

    Raises:
        ConfigError: another engine has the folder, or it cannot be had.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        claim = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ConfigError("settings", f"{SETTING}.folder", f"cannot be used: {reason_of(error)}") from error
    try:
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(claim)
        reason = "is used by another engine; give each a folder of its own"
        raise ConfigError("settings", f"{SETTING}.folder", reason) from error
    return claim


def reason_of(error: OSError) -> str:
    """What is wrong with a disk, in words of ours."""
    if error.errno in _FULL:
        return "the disk is full"
    return "it may not be used" if error.errno in _FORBIDDEN else "its disk or its path is at fault"
