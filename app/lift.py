"""Image data is lifted out of a body before the body is parsed as JSON.

A data URL of megabytes would be copied into a string, scanned and encoded again, on the event loop. Its characters are
plain, so its place in the body is enough: a short stand-in is parsed in its stead, and the image service gets a view of
the bytes as they came.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import field

from context.frozen import frozen

# Below this the parser is as fast.
_MIN_CHARS = 16 * 1024
_OPENING = b'"data:'


@frozen
class Lifted:
    """A body without its long data URLs. `texts` gives the text for each stand-in string of `skeleton`.

    The views keep the whole body in memory for as long as they live.
    """

    skeleton: bytes | bytearray
    texts: Mapping[str, memoryview] = field(default_factory=dict[str, memoryview])


def lift(raw: bytes | bytearray) -> Lifted:
    """Lift every JSON string that is a long data URL and holds no escape.

    A quote that no backslash precedes opens or closes a string. One before `data:` opens it: behind a closing quote
    the body would not be JSON, and it is not with the stand-in either.
    """
    if len(raw) < _MIN_CHARS:
        return Lifted(raw)
    view = memoryview(raw)
    marker = f"data:,{secrets.token_hex(16)}-"
    pieces: list[bytes | memoryview] = []
    texts: dict[str, memoryview] = {}
    done = at = 0
    while (at := raw.find(_OPENING, at)) >= 0:
        start = at + 1
        end = raw.find(b'"', start)
        if end < 0:
            break
        long = end - start >= _MIN_CHARS
        if long and raw[at - 1 : at] != b"\\" and raw.find(b"\\", start, end) < 0:
            name = f"{marker}{len(texts)}"
            texts[name] = view[start:end]
            pieces += (view[done:start], name.encode())
            done = end
        at = end
    return Lifted(b"".join((*pieces, view[done:])), texts) if texts else Lifted(raw)
