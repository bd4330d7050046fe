"""What is kept and not in the store yet: one append each, which outlives the process.

A process has two files: one takes what comes while the other is fed to the store and emptied. The first of them is
locked as long as the process lives, so that another one knows whose entries it has to feed (`abandoned`).

    ledger.db.journal-<process>-<random>.0, .1      entries, one after the other:
    "SFJ1" | bytes of the body | crc32 of the body | bytes of the header | header, a JSON list | columns that are bytes

A write that was cut off, as the last one may be, fails its checksum; nothing behind it is read.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import glob
import os
import secrets
import struct
import zlib
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from context.store.turn_codec import value_bytes, value_of
from context.store.turn_rows import Addition, Answer, Entry, Trouble, TurnStoreError
from context.transcript import DIGEST_BYTES

_MAGIC = b"SFJ1"
_FRAME = struct.Struct("<4sIII")
_LIBC = ctypes.PyDLL(None, use_errno=True)
_LIBC.write.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
_LIBC.write.restype = ctypes.c_ssize_t
_TROUBLES: dict[int, Trouble] = {
    errno.ENOSPC: "full",
    errno.EDQUOT: "full",
    errno.EFBIG: "full",
    errno.EROFS: "read-only",
    errno.EACCES: "read-only",
}


class Journal:
    """The two files of this process. Every call but `close` may raise `TurnStoreError`.

    Args:
        path: the store's file, beside which they stand.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files: list[_File] = []
        self._active = 0

    def open(self) -> None:
        """Begin two empty files in place of those that there were."""
        self.close(remove=True)
        with _translated():
            first = self._first()
            while not first.is_there:
                # Another process has found it before it was locked, and removed it.
                os.close(first.fd)
                first = self._first()
            self._files.append(first)
            self._files.append(_File(first.path.with_suffix(".1"), lock=False))

    @property
    def is_there(self) -> bool:
        """Whether both are open, and others can find them."""
        return len(self._files) == 2 and all(one.is_there for one in self._files)

    @property
    def size_bytes(self) -> int:
        """Bytes in both."""
        return sum(one.size for one in self._files)

    def _first(self) -> _File:
        name = f"{self._path.name}.journal-{os.getpid()}-{secrets.token_hex(4)}.0"
        return _File(self._path.with_name(name), lock=True)

    def append(self, *entries: Entry) -> int:
        """Keep entries, all or none: once this returns they outlive the process. Gives their bytes."""
        if not self._files:
            raise TurnStoreError("unusable")
        try:
            return self._files[self._active].append(entries)
        except OSError as error:
            raise _store_error(error) from error

    def swap(self) -> None:
        """Let the other file, which is empty, take what comes from now on."""
        self._active = 1 - self._active

    def clear(self) -> None:
        """Empty the file that takes nothing now: the store has it all. Any one thread may do it."""
        if self._files:
            with _translated():
                self._files[1 - self._active].clear()

    def close(self, *, remove: bool) -> None:
        """End it. What is not removed is fed by the next process that opens the store."""
        # The locked one last: the other one is nobody's without it.
        for one in reversed(self._files):
            with contextlib.suppress(OSError):
                if remove:
                    one.path.unlink()
            os.close(one.fd)
        self._files = []


class _File:
    def __init__(self, path: Path, *, lock: bool) -> None:
        self.path, self.size = path, 0
        # What people said stands in it: readable by its owner alone.
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._tools: set[bytes] = set()
        self._torn = False
        if lock:
            try:
                # Waits while another process looks at it.
                fcntl.flock(self.fd, fcntl.LOCK_EX)
            except OSError:
                os.close(self.fd)
                raise

    @property
    def is_there(self) -> bool:
        return os.fstat(self.fd).st_nlink > 0

    def append(self, entries: Sequence[Entry]) -> int:
        if self._torn:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        frames: list[bytes] = []
        named: set[bytes] = set()
        for entry in entries:
            tools = entry.tools if isinstance(entry, Addition) else None
            is_new = tools is not None and tools[0] not in self._tools and tools[0] not in named
            frames.append(encoded(entry, with_tools=is_new))
            if tools is not None:
                named.add(tools[0])
        data = b"".join(frames)
        written = _write(self.fd, data)
        if written != len(data):
            # Nothing behind half an entry would be read.
            self._torn = True
            os.ftruncate(self.fd, self.size)
            self._torn = False
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.size += written
        self._tools |= named
        return written

    def clear(self) -> None:
        if self.size or self._torn:
            os.ftruncate(self.fd, 0)
        self.size, self._torn = 0, False
        self._tools.clear()


def _write(fd: int, data: bytes) -> int:
    """`os.write` that keeps the interpreter's lock: into the page cache it takes a few microseconds, and to have the
    lock back from a thread that writes to SQLite takes up to milliseconds, on the event loop."""
    written: int = _LIBC.write(fd, data, len(data))
    if written < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return written


def encoded(entry: Entry, *, with_tools: bool) -> bytes:
    """An entry as bytes; its tools are named alone unless they are asked for."""
    columns: tuple[Any, ...] = entry.columns
    if isinstance(entry, Addition):
        tools = entry.tools[1] if with_tools and entry.tools is not None else b""
        blobs = (columns[8], columns[9] or b"", columns[10], columns[13], columns[14], columns[15], tools)
        head = ("+", tuple(map(len, blobs)), *columns[:8], columns[11], columns[12], entry.on_reply, entry.length)
    else:
        blobs = (columns[1], columns[2], columns[3], columns[4], entry.name)
        head = ("=", tuple(map(len, blobs)), entry.id, entry.tenant, entry.length)
    header = value_bytes(head)
    body = b"".join((header, *blobs))
    return _FRAME.pack(_MAGIC, len(body), zlib.crc32(body), len(header)) + body


def decoded(data: bytes) -> list[Entry]:
    """The entries in a journal's bytes, up to the first that is not whole."""
    entries: list[Entry] = []
    tools: dict[bytes, bytes] = {}
    at = 0
    while at + _FRAME.size <= len(data):
        magic, length, checksum, header = _FRAME.unpack_from(data, at)
        body = data[at + _FRAME.size : at + _FRAME.size + length]
        if magic != _MAGIC or len(body) != length or zlib.crc32(body) != checksum:
            break
        entries.append(_entry(body, header, tools))
        at += _FRAME.size + length
    return entries


def _entry(body: bytes, header: int, tools: dict[bytes, bytes]) -> Entry:
    kind, lengths, *head = value_of(body[:header])
    blobs: list[bytes] = []
    at = header
    for length in lengths:
        blobs.append(body[at : at + length])
        at += length
    if kind == "=":
        id, tenant, length = head
        return Answer(id, tenant, blobs[0], blobs[-1], length, (id, *blobs[:-1]))
    chain, digest, state, digests, client, sent, data = blobs
    if data:
        tools[digest] = data
    id, tenant, conversation, number, base, kept_client, kept_sent, walked, epoch, policy, on_reply, length = head
    columns = (id, tenant, conversation, number, base, kept_client, kept_sent, walked, chain, digest or None, state)
    named = (digest, tools[digest]) if len(digest) == DIGEST_BYTES and digest in tools else None
    return Addition(id, tenant, base, on_reply, chain, length, named, (*columns, epoch, policy, digests, client, sent))


@contextlib.contextmanager
def abandoned(path: Path) -> Generator[list[Entry]]:
    """What processes that are dead have left beside a store, each entry behind what it needs. On leaving it is removed,
    unless an error is raised: then it stays for the next time.

    Raises:
        TurnStoreError: it cannot be read.
    """
    entries: list[Entry] = []
    names: list[Path] = []
    with _translated(), contextlib.ExitStack() as undo:
        for found in sorted(path.parent.glob(f"{glob.escape(path.name)}.journal-*.0")):
            with contextlib.suppress(FileNotFoundError, BlockingIOError):
                fd = os.open(found, os.O_RDWR | os.O_CLOEXEC)
                undo.callback(os.close, fd)
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                names += [found.with_suffix(".1"), found]
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                entries += decoded(name.read_bytes())
        # A turn is younger than what it is based on, and what comes first is not always in the first file.
        entries.sort(key=lambda one: (one.id, isinstance(one, Answer)))
        yield entries
        for name in names:
            name.unlink(missing_ok=True)


@contextlib.contextmanager
def _translated() -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise _store_error(error) from error


def _store_error(error: OSError) -> TurnStoreError:
    return TurnStoreError(_TROUBLES.get(error.errno or 0, "unusable"))
