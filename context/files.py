"""Reading a file that somebody names: never a pipe that blocks, a device without an end, or more than is wanted."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from context.errors import ConfigError


class UnusableFile(Exception):
    """A file cannot be used. Its text says why and what to do, and follows on the file's name."""

    @property
    def what(self) -> str:
        """Why alone, for a file that nobody has named."""
        return str(self).partition(";")[0]


def expanded(path: str, key: str) -> Path:
    """The path that a setting names, from a home folder where it begins with one.

    Args:
        path: as it is written.
        key: the setting's dotted key.

    Raises:
        ConfigError: there is no such home folder.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        reason = "there is no such home folder; give a whole path, such as /var/lib/stillframe"
        raise ConfigError("settings", key, reason) from error


def read_text(path: str | Path, max_bytes: int) -> str:
    """The text of a regular file, UTF-8, with or without a byte order mark.

    Raises:
        UnusableFile: there is none, it is something else than a file, it is longer than `max_bytes`, or no text.
    """
    try:
        # A pipe that nobody writes to would be waited for.
        fd = os.open(Path(path).expanduser(), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise UnusableFile("there is no such file; check the path") from error
    except PermissionError as error:
        raise UnusableFile("cannot be read: its permissions do not let it; check who may read it") from error
    except (OSError, RuntimeError, ValueError) as error:
        # RuntimeError: no such home folder. ValueError: a name that no system has.
        raise UnusableFile("cannot be read; check the path") from error
    try:
        _require_file(os.fstat(fd).st_mode)
        data = _read(fd, max_bytes + 1)
    except OSError as error:
        raise UnusableFile("cannot be read; check the disk that it lies on") from error
    finally:
        os.close(fd)
    if len(data) > max_bytes:
        raise UnusableFile(f"is longer than {max_bytes} bytes; shorten it, or name another file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnusableFile("is no text in UTF-8; save it as that, or name another file") from error


def require_file(path: Path) -> None:
    """See that a regular file stands there.

    Raises:
        FileNotFoundError: there is nothing.
        UnusableFile: it is something else, or may not be looked at.
    """
    try:
        _require_file(path.stat().st_mode)
    except FileNotFoundError:
        raise
    except PermissionError as error:
        raise UnusableFile("cannot be read: its permissions do not let it; check who may read it") from error
    except (OSError, ValueError) as error:
        raise UnusableFile("cannot be read; check the path") from error


def _read(fd: int, most: int) -> bytes:
    with open(fd, "rb", closefd=False) as file:
        return file.read(most)


def _require_file(mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise UnusableFile("is a folder; name the file in it")
    if not stat.S_ISREG(mode):
        raise UnusableFile("is a pipe or a device; name a file")
