"""A folder for what the engine computed: whoever can write there has its words taken for the model's own."""

from __future__ import annotations

import os
from pathlib import Path

from context.errors import ConfigError

_OTHERS_WRITE = 0o022


def make_private(folder: Path, key: str) -> None:
    """Make a folder that this process's user alone may use; one that is there stays as it is.

    Args:
        folder: with those above it, where they are missing.
        key: the dotted key of the setting that names it.

    Raises:
        ConfigError: it is another user's, or others may write to it; what they put there would be served.
        OSError: it cannot be made, or not be looked at.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    about = folder.stat()
    if about.st_uid != os.geteuid():
        reason = "belongs to another user, who could put KV of their own there; name a folder of this user's"
        raise ConfigError("settings", key, reason)
    if about.st_mode & _OTHERS_WRITE:
        reason = "may be written by other users, who could put KV of their own there; empty it and run chmod 700 on it"
        raise ConfigError("settings", key, reason)
