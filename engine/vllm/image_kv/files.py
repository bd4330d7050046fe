"""The file tier of the pool: one file for each entry in a folder that processes may share and a restart leaves alone.

A file is there whole or not at all: it is written under another name, synced and renamed. What cannot be read as the
entry that its name says is removed and counted, never served. A disk that refuses to write ends the writing for the
life of the process, with one warning; what can be read is read on. A file that cannot be opened or removed is counted
as a fault of its own, and ends nothing.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Literal

from engine.vllm.image_kv import format as file_format
from engine.vllm.image_kv.entry import Entry, Layout
from engine.vllm.image_kv.format import BadFile
from engine.vllm.image_kv.keys import EntryKey
from engine.vllm.image_kv.order import Order
from engine.vllm.image_kv.settings import SETTING
from engine.vllm.image_kv.stats import FileStats
from engine.vllm.private_folder import make_private

_log = logging.getLogger(__name__)
_ENTRY = re.compile(r"([0-9a-f]{64})\.imagekv")
_UNFINISHED = re.compile(r"[0-9a-f]{32}\.unfinished")
_ABANDONED_SECONDS = 3600.0
_Work = Literal["write", "read", "remove"]
_THEN: dict[_Work, str] = {
    "write": "images' KV stays in memory alone from here on",
    "read": "a file was not read",
    "remove": "a file was not removed",
}
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


class FileTier:
    """Entries in files. All methods that read, write or remove wait for the disk; they may be called from several
    threads.

    Args:
        folder: made if it is not there, for its owner alone. Files in it with other names are left alone.
        max_bytes: what all entries' files together may have, those of other processes among them. Processes that write
            at the same moment may exceed it by what they are writing, and what cannot be opened does not count.

    Raises:
        ConfigError: the folder is another user's, or others may write to it.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder, self._max_bytes = folder, max_bytes
        # Who changes the folder has the first one, for as long as the disk takes; names and counts are under the other,
        # with which nobody does more than look up. The first one is taken before the other.
        self._disk, self._lock = threading.Lock(), threading.Lock()
        self._order = Order()
        self._writing = True
        # Files that cannot be opened or removed: not looked at again until they are read or written.
        self._left: set[str] = set()
        self._warned: set[_Work] = set()
        self._evicted = self._refused = self._faults = 0
        try:
            make_private(folder, f"{SETTING}.folder")
            with self._disk:
                self._look()
        except OSError as error:
            self._fault(error)

    def __contains__(self, key: EntryKey) -> bool:
        """Whether there is a file of that name, as far as is known; only `read` says whether it is sound.

        Does not wait for the disk. What another process has written is known from the next read of it on, or the next
        write of any.
        """
        with self._lock:
            return key.digest in self._order

    def write(self, key: EntryKey, entry: Entry, wanted: Callable[[], bool] = lambda: True) -> bool:
        """Keep an entry, in place of others if there is no room; whether it is kept.

        Args:
            key: of the entry.
            entry: whole.
            wanted: asked when all is written, before the file has its name. An entry of which it is false by the time
                that `clear` is called is so never there after `clear`. Must not wait for the disk.
        """
        unfinished = self._folder / f"{secrets.token_hex(16)}.unfinished"
        try:
            if not self._has_room(key, entry):
                return False
            with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                file_format.write(file, key, entry)
                file.flush()
                # Before the name: a crash must leave no file that has its name and not its bytes. The folder itself is
                # not synced; an entry that a crash takes away is computed again.
                os.fsync(file.fileno())
                size = os.fstat(file.fileno()).st_size
            with self._disk:
                if not wanted():
                    unfinished.unlink()
                    return False
                unfinished.rename(self._path(key.digest))
                with self._lock:
                    self._left.discard(key.digest)
                    self._order.remove(key.digest)
                    self._order.add(key.digest, key.group, size, entry.cost)
        except OSError as error:
            with suppress(OSError):
                unfinished.unlink()
            self._fault(error)
            return False
        return True

    def read(self, key: EntryKey, layout: Layout) -> Entry | None:
        """The entry, checked; None when it is not there, or not sound and therefore gone."""
        try:
            with _opened(self._path(key.digest)) as file:
                entry = file_format.read(file, key, layout)
                with suppress(OSError):
                    # Other processes, and this one after a restart, tell by it what was used last. A disk that is only
                    # to be read does not take it.
                    os.utime(file.fileno())
                size = os.fstat(file.fileno()).st_size
        except FileNotFoundError:
            with self._lock:
                self._order.remove(key.digest)
            return None
        except BadFile as error:
            self._refuse(key.digest, error)
            return None
        except OSError as error:
            self._fault(error, "read")
            return None
        with self._lock:
            self._left.discard(key.digest)
            if key.digest not in self._order:
                self._order.add(key.digest, key.group, size, entry.cost)
            self._order.touch(key.digest)
        return entry

    def clear(self) -> bool:
        """Remove all entries, those of other processes too; whether all are gone."""
        gone = True
        with self._disk:
            self._forget()
            try:
                names = [item.name for item in os.scandir(self._folder) if _ENTRY.fullmatch(item.name)]
                for name in names:
                    gone = self._removed(self._folder / name) and gone
            except (FileNotFoundError, NotADirectoryError):
                # Then there are none.
                pass
            except OSError as error:
                self._fault(error, "remove")
                gone = False
            # What was read in the meantime is known again.
            self._forget()
        return gone

    def stats(self) -> FileStats:
        """Figures now; those of other processes' files as of the last write. Does not wait for the disk."""
        with self._lock:
            return FileStats(
                len(self._order), self._order.bytes, self._evicted, self._refused, self._faults, self._writing
            )

    def _path(self, digest: str) -> Path:
        return self._folder / f"{digest}.imagekv"

    def _removed(self, path: Path) -> bool:
        """Whether an entry's file is gone. A folder of that name was never one."""
        try:
            path.unlink(missing_ok=True)
        except IsADirectoryError:
            return True
        except OSError as error:
            self._fault(error, "remove")
            return False
        return True

    def _forget(self) -> None:
        with self._lock:
            self._order = Order()

    def _has_room(self, key: EntryKey, entry: Entry) -> bool:
        """Make room for an entry; whether there is."""
        # The header and its padding are below two of a disk's blocks.
        size = entry.bytes + 8192
        with self._disk:
            if not self._writing:
                return False
            self._look()
            with self._lock:
                over = self._order.bytes + size - self._max_bytes
                if over <= 0:
                    return True
                fits = size <= self._max_bytes
                leaving = self._order.make_room(over, lambda member: member == key.digest) if fits else None
            # One that stays is learned of again with the next write.
            gone = [self._removed(self._path(digest)) for digest in leaving or ()]
            with self._lock:
                self._evicted += sum(gone)
            return leaving is not None and all(gone)

    def _look(self) -> None:
        """Learn of entries that other processes, or this one before a restart, wrote or removed."""
        found: dict[str, float] = {}
        for item in os.scandir(self._folder):
            match = _ENTRY.fullmatch(item.name)
            if match:
                found[match[1]] = _changed(item)
            elif _UNFINISHED.fullmatch(item.name) and time.time() - _changed(item) > _ABANDONED_SECONDS:
                self._removed(Path(item.path))
        with self._lock:
            for gone in [digest for digest in self._order.members() if digest not in found]:
                self._order.remove(gone)
            # Least recently used first, as far as a folder tells.
            by_use = sorted(found, key=lambda digest: found[digest])
            unknown = [digest for digest in by_use if digest not in self._order and digest not in self._left]
        for digest in unknown:
            self._learn(digest)

    def _learn(self, digest: str) -> None:
        try:
            with _opened(self._path(digest)) as file:
                header = file_format.read_header(file)
                if header.digest != digest:
                    raise BadFile("belongs to another image or model")
                size = os.fstat(file.fileno()).st_size
        except FileNotFoundError:
            return
        except BadFile as error:
            self._refuse(digest, error)
            return
        except OSError as error:
            with self._lock:
                self._left.add(digest)
            self._fault(error, "read")
            return
        with self._lock:
            if digest not in self._order:
                self._order.add(digest, header.group, size, header.cost)

    def _refuse(self, digest: str, reason: BadFile) -> None:
        _log.warning("a file of the image pool is removed: it %s", reason)
        with self._lock:
            self._refused += 1
            self._order.remove(digest)
        try:
            self._path(digest).unlink(missing_ok=True)
        except OSError:
            # A folder, or somebody else's: not looked at again.
            with self._lock:
                self._left.add(digest)

    def _fault(self, error: OSError, work: _Work = "write") -> None:
        with self._lock:
            self._faults += 1
            self._writing = self._writing and work != "write"
            said = work in self._warned
            self._warned.add(work)
        if not said:
            _log.warning("the image pool's folder fails, for %s: %s", _reason(error), _THEN[work])


def _reason(error: OSError) -> str:
    if error.errno in _FULL:
        return "the disk is full"
    return "it may not be used" if error.errno in _FORBIDDEN else "its disk or its path is at fault"


@contextmanager
def _opened(path: Path) -> Generator[BinaryIO]:
    """A file to read. Neither a link nor a pipe that nobody writes to is followed or waited for."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise BadFile("is a link") from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise BadFile("is no file")
        with open(fd, "rb", buffering=0, closefd=False) as file:
            yield file
    finally:
        os.close(fd)


def _changed(item: os.DirEntry[str]) -> float:
    """When, as far as can be told."""
    try:
        return item.stat(follow_symlinks=False).st_mtime
    except OSError:
        return 0.0
