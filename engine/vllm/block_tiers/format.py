"""A block in a file.

8 bytes   magic
4 bytes   version, little-endian
8 bytes   length of the block
32 bytes  BLAKE3 of fingerprint and key: whose block it is
32 bytes  BLAKE3 of all of the above and of the block
block     as it lies in the engine's cache
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import blake3

VERSION = 1
_MAGIC = b"SFBLKKV\x00"
_HEADER = struct.Struct("<8sIQ32s32s")
HEADER_BYTES = _HEADER.size


class BadFile(Exception):
    """A file is not the block that it should be. Its text says why, without a path."""


def write_block(path: Path, name: str, block: memoryview) -> None:
    """Write a file that must not be there, for its owner alone.

    Args:
        path: where to.
        name: whose block it is; 64 hex digits.
        block: of bytes.

    Raises:
        OSError: the disk refuses; what was written stays.
    """
    header = _HEADER.pack(_MAGIC, VERSION, block.nbytes, bytes.fromhex(name), bytes(32))[:-32]
    checksum = blake3.blake3(header).update(block).digest()
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(header + checksum)
        file.write(block)


def read_block(path: Path, name: str, block: memoryview) -> None:
    """Fill `block` from a file, checked to the last byte. The file's time becomes now.

    Raises:
        BadFile: it is not that block; what `block` holds is not to be used.
        OSError: it is not there, or the disk refuses.
    """
    # Neither a link nor a pipe that nobody writes to is followed or waited for.
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise BadFile("is a link") from error
        raise
    with open(fd, "rb", buffering=0) as file:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            raise BadFile("is no file")
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size or not header.startswith(_MAGIC):
            raise BadFile("is none of ours")
        _, version, length, whose, checksum = _HEADER.unpack(header)
        if version != VERSION:
            raise BadFile("is of another version")
        if whose.hex() != name:
            raise BadFile("is another block or another model's")
        if length != block.nbytes or about.st_size != _HEADER.size + length:
            raise BadFile("does not have its length")
        filled = 0
        while filled < length:
            count = cast("Any", file).readinto(block[filled:])
            if not count:
                raise BadFile("was cut off")
            filled += count
        if blake3.blake3(header[:-32]).update(block).digest() != checksum:
            raise BadFile("is damaged")
        # After a restart this tells what was used last.
        with suppress(OSError):
            os.utime(fd)
