"""The file tier: one file for each block in a folder that a restart leaves alone; `format.py` says what is in one.

A file's name says which block it has to be; what cannot be read as that block is removed and counted, never served.
Files are renamed into place and not synced: after a crash of the machine the checksum tells those that were not written
whole. A disk that refuses ends the writing for the life of the process, with one warning. A file that cannot be read or
removed is not served any more, but counts until it is gone, so that the bound holds.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Literal

import blake3

from engine.vllm.block_tiers.folder import claimed, reason_of
from engine.vllm.block_tiers.format import HEADER_BYTES, BadFile, read_block, write_block
from engine.vllm.block_tiers.stats import FileStats

_log = logging.getLogger(__name__)
_FILE = re.compile(r"([0-9a-f]{64})\.blockkv")
_UNFINISHED = re.compile(r"[0-9a-f]{32}\.unfinished")
_Work = Literal["write", "read", "remove"]
_THEN: dict[_Work, str] = {
    "write": "blocks are kept in memory alone from here on",
    "read": "a file was not read",
    "remove": "a file was not removed",
}


class BlockFiles:
    """Blocks in files, of one engine alone. Methods may be called from several threads; `in`, `touch`, `drop` and
    `stats` never wait for the disk, all others do.

    Args:
        folder: made if it is not there, for its owner alone. Files in it with other names are left alone; those of
            other models count, and go like any that are not used.
        max_bytes: what all files together may have.
        fingerprint: of what computes the blocks; of another one no block is found.

    Raises:
        ConfigError: another engine has the folder, or it cannot be had.
    """

    def __init__(self, folder: Path, max_bytes: int, fingerprint: str) -> None:
        self._folder, self._max_bytes, self._fingerprint = folder, max_bytes, fingerprint.encode()
        # For names and counters; nobody has it while the disk works.
        self._lock = threading.Lock()
        # Who has it gives files their names or takes them away; taken before the other one.
        self._disk = threading.Lock()
        # Used least recently first.
        self._sizes: OrderedDict[str, int] = OrderedDict()
        # Files that are not served and could not be removed yet: first to go for room.
        self._unserved: dict[str, int] = {}
        self._bytes = self._stored = self._loaded = self._evicted = self._dropped = self._refused = self._faults = 0
        self._writing = True
        self._warned: set[_Work] = set()
        self._claim = claimed(folder)
        self._look()

    def __contains__(self, key: bytes) -> bool:
        """Whether there is a file of that name; only `read` says whether it is sound."""
        with self._lock:
            return self._name(key) in self._sizes

    def write(self, key: bytes, block: memoryview) -> bool:
        """Keep a block, in place of others if there is no room; whether it is kept."""
        name, size = self._name(key), HEADER_BYTES + block.nbytes
        unfinished = self._folder / f"{secrets.token_hex(16)}.unfinished"
        try:
            with self._disk:
                has_room = self._reserved(size)
            if has_room:
                self._keep(unfinished, name, block, size)
        except OSError as error:
            self.drop(1)
            self._fault(error, "write")
            return False
        if not has_room:
            self.drop(1)
        return has_room

    def read(self, key: bytes, block: memoryview) -> bool:
        """Fill `block` with the block of that key, checked to the last byte; False when it cannot be had.

        What `block` holds after False is not to be used.
        """
        name = self._name(key)
        try:
            read_block(self._path(name), name, block)
        except FileNotFoundError:
            self._discard(name)
            return False
        except BadFile as error:
            _log.warning("a file of the blocks' folder is removed: it %s", error)
            with self._lock:
                self._refused += 1
            self._discard(name)
            return False
        except OSError as error:
            with self._lock:
                if (size := self._sizes.pop(name, None)) is not None:
                    self._unserved[name] = size
            self._fault(error, "read")
            return False
        with self._lock:
            self._loaded += 1
            if name in self._sizes:
                self._sizes.move_to_end(name)
        return True

    def touch(self, keys: Iterable[bytes]) -> None:
        """Blocks are used, the last one of these last; what is not there is none."""
        with self._lock:
            for key in keys:
                if (name := self._name(key)) in self._sizes:
                    self._sizes.move_to_end(name)

    def drop(self, blocks: int) -> None:
        """Count blocks that are not written."""
        with self._lock:
            self._dropped += blocks

    def clear(self) -> bool:
        """Remove all blocks, those of other models too; whether all are gone. One that cannot be removed is not served,
        and counts.
        """
        gone = True
        with self._disk:
            with self._lock:
                leaving = [*self._unserved.items(), *self._sizes.items()]
                self._unserved.clear()
                self._sizes.clear()
            for name, size in leaving:
                try:
                    self._remove(name, size)
                except OSError as error:
                    self._fault(error, "remove")
                    gone = False
        return gone

    def close(self) -> None:
        """Let the folder go to whoever wants it."""
        os.close(self._claim)

    def stats(self) -> FileStats:
        """Figures now."""
        with self._lock:
            return FileStats(
                len(self._sizes),
                self._bytes,
                self._stored,
                self._loaded,
                self._evicted,
                self._dropped,
                self._refused,
                self._faults,
                self._writing,
            )

    def _name(self, key: bytes) -> str:
        return blake3.blake3(self._fingerprint + b"\0" + key).hexdigest()

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.blockkv"

    def _keep(self, unfinished: Path, name: str, block: memoryview, size: int) -> None:
        """Write a block for which there is room."""
        try:
            write_block(unfinished, name, block)
            with self._disk:
                unfinished.rename(self._path(name))
                with self._lock:
                    self._bytes -= self._taken(name)
                    self._sizes[name] = size
                    self._stored += 1
        except OSError:
            # What cannot be removed counts until the next start, which removes it.
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
                with self._lock:
                    self._bytes -= size
            raise

    def _reserved(self, size: int) -> bool:
        """Count a file before it is there, so that two writers cannot exceed the bound together, and remove others for
        it; whether there is room. Whoever calls has the disk.

        Raises:
            OSError: one that has to go cannot be removed.
        """
        while True:
            with self._lock:
                if not self._writing or size > self._max_bytes:
                    return False
                if self._bytes + size <= self._max_bytes:
                    self._bytes += size
                    return True
                if self._unserved:
                    name, gone = self._unserved.popitem()
                elif self._sizes:
                    name, gone = self._sizes.popitem(last=False)
                else:
                    # The rest is being written.
                    return False
            self._remove(name, gone)
            with self._lock:
                self._evicted += 1

    def _remove(self, name: str, size: int) -> None:
        """Remove a file that is served no more and still counts. Whoever calls has the disk.

        Raises:
            OSError: it cannot be removed, and counts on.
        """
        try:
            self._path(name).unlink(missing_ok=True)
        except OSError:
            with self._lock:
                self._unserved[name] = size
            raise
        with self._lock:
            self._bytes -= size

    def _discard(self, name: str) -> None:
        """Remove a file that is not what it should be."""
        with self._disk:
            with self._lock:
                size = self._taken(name)
            try:
                self._remove(name, size)
            except OSError as error:
                self._fault(error, "remove")

    def _taken(self, name: str) -> int:
        return self._sizes.pop(name, 0) + self._unserved.pop(name, 0)

    def _look(self) -> None:
        """Learn of the blocks that there are, least recently used first as far as a folder tells."""
        found: list[tuple[int, str, int]] = []
        try:
            for item in os.scandir(self._folder):
                if (match := _FILE.fullmatch(item.name)) and item.is_file(follow_symlinks=False):
                    about = item.stat(follow_symlinks=False)
                    found.append((about.st_mtime_ns, match[1], about.st_size))
                elif _UNFINISHED.fullmatch(item.name):
                    # The folder is ours alone: whoever wrote it is no more.
                    Path(item.path).unlink(missing_ok=True)
        except OSError as error:
            self._fault(error, "write")
        with self._lock:
            for _, name, size in sorted(found):
                self._sizes[name] = size
                self._bytes += size
        try:
            with self._disk:
                # The bound may be another one than before.
                self._reserved(0)
        except OSError as error:
            self._fault(error, "write")

    def _fault(self, error: OSError, work: _Work) -> None:
        with self._lock:
            self._faults += 1
            self._writing = self._writing and work != "write"
            said = work in self._warned
            self._warned.add(work)
        if not said:
            _log.warning("the blocks' folder fails, for %s: %s", reason_of(error), _THEN[work])
