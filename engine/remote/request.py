"""A request as it stands on the wire."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from context.errors import RequestError

# What is smaller is joined with what stands beside it; what is larger is never copied.
SMALL_BYTES = 32 * 1024
# A large segment is handed to the event loop in parts of this size: each that is taken shows that the upstream reads.
_PART_BYTES = 256 * 1024

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TARGET = re.compile(r"/[!-~]*")
# Said once, by `request_head` and its caller: a second one could make two servers read two different requests.
_OURS = frozenset(("accept-encoding", "connection", "content-length", "host", "transfer-encoding"))


@lru_cache(512)
def _token(text: str, what: str) -> str:
    """A method or the name of a header, if it may stand on the wire."""
    if not _TOKEN.fullmatch(text) or text.lower() in _OURS:
        raise RequestError(f"The {what} {text[:60]!r} cannot be sent on to the engine.", code="invalid_header")
    return text


@lru_cache(64)
def _first_lines(method: str, target: str, host: str) -> str:
    if not _TARGET.fullmatch(target):
        raise RequestError("The path holds a character that a URL must percent-encode.", code="invalid_path")
    return f"{_token(method, 'method')} {target} HTTP/1.1\r\nhost: {host}\r\naccept-encoding: identity"


def request_head(method: str, target: str, host: str, headers: Mapping[str, str], length: int | None) -> bytes:
    """The head of a request.

    Args:
        method: any.
        target: path and query, percent-encoded.
        host: the value of the header of this name.
        headers: the others; names in lower case.
        length: bytes of the body; None for a request without one.

    Raises:
        RequestError: it holds something that cannot stand in a head.
    """
    lines = [_first_lines(method, target, host)]
    if "user-agent" not in headers:
        lines.append("user-agent: stillframe")
    lines += [f"{_token(name, 'header')}: {value}" for name, value in headers.items()]
    if length is not None:
        lines.append(f"content-length: {length}")
    try:
        head = "\r\n".join(lines).encode("latin-1")
    except UnicodeEncodeError:
        head = b"\0"
    # Counted, because that is cheaper than to look at each value. Two stand in the first of the lines.
    breaks = len(lines) + 1
    if head.count(b"\n") != breaks or head.count(b"\r") != breaks or b"\0" in head:
        raise RequestError("A header holds a character that HTTP cannot carry.", code="invalid_header")
    return head + b"\r\n\r\n"


def pieces(head: bytes, segments: Sequence[bytes]) -> Iterator[bytes | memoryview]:
    """Head and body in what should be written one by one: small neighbours joined, large segments in parts."""
    joined = [head]
    size = len(head)
    for segment in segments:
        if len(segment) < SMALL_BYTES and size < SMALL_BYTES:
            joined.append(segment)
            size += len(segment)
            continue
        yield b"".join(joined)
        joined, size = [], 0
        if len(segment) < SMALL_BYTES:
            joined, size = [segment], len(segment)
            continue
        view = memoryview(segment)
        for start in range(0, len(segment), _PART_BYTES):
            yield view[start : start + _PART_BYTES]
    if joined:
        yield b"".join(joined)
