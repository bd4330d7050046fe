"""A disk that refuses or takes its time: Python asks audit hooks before it opens, renames or removes a file."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

SECONDS = 20.0


class _Disk:
    def __init__(self) -> None:
        # What is refused: event, ending of the path, error.
        self.refused: list[tuple[str, str, int]] = []
        self.slow: tuple[str, str, SlowDisk] | None = None

    def hook(self, event: str, values: tuple[Any, ...]) -> None:
        for refused, ending, error in self.refused:
            if event == refused and str(values[0]).endswith(ending):
                raise OSError(error, os.strerror(error))
        if self.slow is not None and event == self.slow[0] and str(values[0]).endswith(self.slow[1]):
            disk = self.slow[2]
            if not disk.begun.is_set():
                disk.begun.set()
                assert disk.may_go.wait(SECONDS)


class SlowDisk:
    """Work on it has begun, and ends when it may."""

    def __init__(self) -> None:
        self.begun, self.may_go = threading.Event(), threading.Event()


_disk = _Disk()
# A hook stays for the life of the process; most of the time it looks at nothing.
sys.addaudithook(_disk.hook)


@contextmanager
def refusing(event: str, error: int, ending: str = ".blockkv") -> Generator[None]:
    """Refuse `open`, `os.rename`, `os.remove` or `os.utime` of files whose names end so, with an error number."""
    refused = (event, ending, error)
    _disk.refused.append(refused)
    try:
        yield
    finally:
        _disk.refused.remove(refused)


@contextmanager
def slow(event: str, ending: str = ".blockkv") -> Generator[SlowDisk]:
    """Let the first `open`, `os.rename` or `os.remove` of a file whose name ends so take until it may end."""
    made = SlowDisk()
    _disk.slow = (event, ending, made)
    try:
        yield made
    finally:
        made.may_go.set()
        _disk.slow = None
