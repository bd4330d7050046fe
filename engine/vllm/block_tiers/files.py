"""The file tier: one file for each block in a folder that a restart leaves alone.

    8 bytes   magic
    4 bytes   version, little-endian
    8 bytes   length of the block
    32 bytes  BLAKE3 of fingerprint and key: whose block it is
    32 bytes  BLAKE3 of all of the above and of the block
    block     as it lies in the engine's cache

A file's name says which block it has to be; what cannot be read as that block is removed and counted, never served.
Files are renamed into place and not synced: after a crash of the machine the checksum tells those that were not written
whole. A disk that refuses ends the writing for the life of the process, with one warning.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import secrets
import stat
import struct
import threading
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import blake3

from engine.vllm.block_tiers.folder import claimed, reason_of
from engine.vllm.block_tiers.stats import FileStats

_log = logging.getLogger(__name__)
VERSION = 1
_MAGIC = b"SFBLKKV\x00"
_HEADER = struct.Struct("<8sIQ32s32s")
_FILE = re.compile(r"([0-9a-f]{64})\.blockkv")
_UNFINISHED = re.compile(r"[0-9a-f]{32}\.unfinished")


class _BadFile(Exception):
    """A file is not the block that its name says. Its text says why, without a path."""


class BlockFiles:
    """Blocks in files, of one engine alone. Methods may be called from several threads; all but `in` and `touch` block.

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
        self._lock = threading.Lock()
        # Used least recently first.
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._bytes = self._stored = self._loaded = self._evicted = self._dropped = self._refused = self._faults = 0
        self._writing = True
        self._warned: set[bool] = set()
        self._claim = claimed(folder)
        self._look()

    def __contains__(self, key: bytes) -> bool:
        """Whether there is a file of that name; only `read` says whether it is sound."""
        with self._lock:
            return self._name(key) in self._sizes

    def write(self, key: bytes, block: memoryview) -> bool:
        """Keep a block, in place of others if there is no room; whether it is kept."""
        name, size = self._name(key), _HEADER.size + block.nbytes
        unfinished = self._folder / f"{secrets.token_hex(16)}.unfinished"
        try:
            with self._lock:
                if not self._writing or not self._room(size):
                    self._dropped += 1
                    return False
                # Counted before it is there, so that two writers cannot exceed the bound together.
                self._bytes += size
            try:
                self._put(unfinished, name, block)
                unfinished.rename(self._path(name))
            except OSError:
                with self._lock:
                    self._bytes -= size
                    self._dropped += 1
                with suppress(OSError):
                    unfinished.unlink()
                raise
        except OSError as error:
            self._fault(error)
            return False
        with self._lock:
            self._bytes -= self._sizes.pop(name, 0)
            self._sizes[name] = size
            self._stored += 1
        return True

    def read(self, key: bytes, block: memoryview) -> bool:
        """Fill `block` with the block of that key, checked to the last byte; False when it cannot be had.

        What `block` holds after False is not to be used.
        """
        name = self._name(key)
        try:
            self._get(name, block)
        except FileNotFoundError:
            with self._lock:
                self._forget(name)
            return False
        except _BadFile as error:
            with self._lock:
                self._refuse(name, error)
            return False
        except OSError as error:
            with self._lock:
                self._forget(name)
            self._fault(error, ends_writing=False)
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
        """Count blocks that were not even tried."""
        with self._lock:
            self._dropped += blocks

    def clear(self) -> None:
        """Remove all blocks, those of other models too."""
        with self._lock:
            for name in list(self._sizes):
                self._forget(name)
                with suppress(OSError):
                    self._path(name).unlink(missing_ok=True)

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

    def _put(self, path: Path, name: str, block: memoryview) -> None:
        header = _HEADER.pack(_MAGIC, VERSION, block.nbytes, bytes.fromhex(name), bytes(32))[:-32]
        checksum = blake3.blake3(header).update(block).digest()
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(header + checksum)
            file.write(block)

    def _get(self, name: str, block: memoryview) -> None:
        # Neither a link nor a pipe that nobody writes to is followed or waited for.
        try:
            fd = os.open(self._path(name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise _BadFile("is a link") from error
            raise
        with open(fd, "rb", buffering=0) as file:
            about = os.fstat(fd)
            if not stat.S_ISREG(about.st_mode):
                raise _BadFile("is no file")
            header = file.read(_HEADER.size)
            if len(header) < _HEADER.size or not header.startswith(_MAGIC):
                raise _BadFile("is none of ours")
            _, version, length, whose, checksum = _HEADER.unpack(header)
            if version != VERSION:
                raise _BadFile("is of another version")
            if whose.hex() != name:
                raise _BadFile("is another block or another model's")
            if length != block.nbytes or about.st_size != _HEADER.size + length:
                raise _BadFile("does not have its length")
            filled = 0
            while filled < length:
                count = cast("Any", file).readinto(block[filled:])
                if not count:
                    raise _BadFile("was cut off")
                filled += count
            if blake3.blake3(header[:-32]).update(block).digest() != checksum:
                raise _BadFile("is damaged")
            # After a restart this tells what was used last.
            with suppress(OSError):
                os.utime(fd)

    def _room(self, size: int) -> bool:
        if size > self._max_bytes:
            return False
        while self._bytes + size > self._max_bytes:
            if not self._sizes:
                # The rest is being written.
                return False
            name, gone = self._sizes.popitem(last=False)
            self._bytes -= gone
            self._evicted += 1
            self._path(name).unlink(missing_ok=True)
        return True

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
            self._fault(error)
        with self._lock:
            for _, name, size in sorted(found):
                self._sizes[name] = size
                self._bytes += size
            with suppress(OSError):
                # The bound may be another one than before.
                self._room(0)

    def _forget(self, name: str) -> None:
        self._bytes -= self._sizes.pop(name, 0)

    def _refuse(self, name: str, reason: _BadFile) -> None:
        _log.warning("a file of the blocks' folder is removed: it %s", reason)
        self._refused += 1
        self._forget(name)
        with suppress(OSError):
            self._path(name).unlink(missing_ok=True)

    def _fault(self, error: OSError, *, ends_writing: bool = True) -> None:
        with self._lock:
            self._faults += 1
            self._writing = self._writing and not ends_writing
            said = ends_writing in self._warned
            self._warned.add(ends_writing)
        if not said:
            kept = "blocks are kept in memory alone from here on" if ends_writing else "a file was not read"
            _log.warning("the blocks' folder fails, for %s: %s", reason_of(error), kept)
