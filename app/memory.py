"""How the process has its memory from the system."""

from __future__ import annotations

import contextlib
import ctypes

# glibc's number for it: blocks as large as this are mapped each by itself.
_M_MMAP_THRESHOLD = -3
_LARGE_BYTES = 2 * 1024 * 1024


def give_large_blocks_back() -> None:
    """Have the system get large blocks back as soon as they are free, such as bodies with images.

    glibc raises the size from which it does so to that of the largest block that was ever freed, up to 32 MiB; what is
    smaller then stays with the thread that had it. To have each new from the system costs a body of a megabyte or two
    some of its time, so smaller ones stay. Does nothing with another C library.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
