"""A pool and its files, for tests."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from engine.vllm.image_kv.entry import Entry, Layout
from engine.vllm.image_kv.files import FileTier
from engine.vllm.image_kv.keys import EntryKey
from engine.vllm.image_kv.pool import Hold, ImagePool
from tests.unit.engine.image_kv.entries import FILE_BYTES

SECONDS = 30


def held(pool: ImagePool, entry_key: EntryKey) -> Hold:
    hold = pool.hold(entry_key).result(SECONDS)
    assert hold is not None
    return hold


def files(folder: Path, entries: int = 100) -> FileTier:
    return FileTier(folder, entries * FILE_BYTES + 8192)


class SlowFiles(FileTier):
    """A disk that does nothing until it may."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 100 * FILE_BYTES)
        self.may_go = threading.Event()
        self.begun = threading.Event()

    def read(self, key: EntryKey, layout: Layout) -> Entry | None:
        self.begun.set()
        assert self.may_go.wait(SECONDS)
        return super().read(key, layout)

    def write(self, key: EntryKey, entry: Entry, wanted: Callable[[], bool] = lambda: True) -> bool:
        self.begun.set()
        assert self.may_go.wait(SECONDS)
        return super().write(key, entry, wanted)
