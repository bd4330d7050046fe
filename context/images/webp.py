"""Decoding of still WebP images without holding the interpreter lock.

Pillow's WebP reader keeps the lock for the whole picture (90 ms measured for 12 megapixels), which would stop the
event loop. The libwebp that Pillow ships is called directly instead; the pixels are the same. Where that library
cannot be found, the caller goes through Pillow.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import importlib.metadata

import numpy as np
from numpy.typing import NDArray


def decode_webp(data: bytes, width: int, height: int, *, alpha: bool) -> NDArray[np.uint8] | None:
    """Pixels of a still WebP as rows x columns x 3 (4 with `alpha`), or None where libwebp was not found.

    Raises:
        ValueError: libwebp cannot decode the data to these dimensions.
    """
    library = _library()
    if library is None:
        return None
    channels = 4 if alpha else 3
    pixels = np.empty((height, width, channels), np.uint8)
    decode = library.WebPDecodeRGBAInto if alpha else library.WebPDecodeRGBInto
    if not decode(data, len(data), pixels.ctypes.data, pixels.nbytes, width * channels):
        raise ValueError("libwebp refused the data")
    return pixels


@functools.cache
def _library() -> ctypes.CDLL | None:
    names = [
        str(file.locate())
        for file in importlib.metadata.files("pillow") or ()
        if file.name.startswith("libwebp-") and ".so" in file.name
    ]
    for name in (*names, ctypes.util.find_library("webp")):
        if name is None:
            continue
        try:
            library = ctypes.CDLL(name)
            for function in (library.WebPDecodeRGBInto, library.WebPDecodeRGBAInto):
                function.restype = ctypes.c_void_p
                function.argtypes = (
                    ctypes.c_char_p,
                    ctypes.c_size_t,
                    ctypes.c_void_p,
                    ctypes.c_size_t,
                    ctypes.c_int,
                )
        except (OSError, AttributeError):
            continue
        return library
    return None
