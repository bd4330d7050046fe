"""What may happen to a file of KV while nobody looks: each of these does it to one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

Damage = Callable[[Path], object]


def flip(at: int) -> Damage:
    """One bit of the byte at this place."""

    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[at] ^= 4
        path.write_bytes(content)

    return damage


def cut(size: int) -> Damage:
    """All but so many bytes at the beginning."""
    return lambda path: os.truncate(path, size)


def append(path: Path) -> None:
    """A byte more than it had."""
    path.write_bytes(path.read_bytes() + b"\0")


def link(path: Path) -> None:
    """A link to where it is now."""
    path.rename(path.with_suffix(".elsewhere"))
    path.symlink_to(path.with_suffix(".elsewhere"))


def pipe(path: Path) -> None:
    """A pipe that nobody writes to."""
    path.unlink()
    os.mkfifo(path)
