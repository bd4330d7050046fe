"""What costs processor time for an image: digests, base64 and pixels, and the threads in which it is done."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from blake3 import blake3

from context.images.base import ImageLimits
from context.images.dataurl import decode_image_text
from context.images.decode import Canonical, canonicalize
from context.images.snapshots import digest_of
from context.images.sniff import sniff

_T = TypeVar("_T")
_HASH_CHARS = 1024 * 1024
_DECODER_NICENESS = 10


async def run_in(pool: ThreadPoolExecutor, work: Callable[..., _T], *args: Any) -> _T:
    """Run in a thread of the pool, without holding the arguments longer than the caller waits."""
    # What waits for a thread must not outlive who asked: a cancelled call's place in the queue would go on holding
    # the whole body of its request.
    held = [args]

    def call() -> _T:
        return work(*held.pop())

    try:
        return await asyncio.get_running_loop().run_in_executor(pool, call)
    finally:
        held.clear()


def step_back() -> None:
    """Let the event loop go first: on a busy machine it would wait behind the decoders for whole time slices."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _DECODER_NICENESS)


def text_digest(tenant: str, text: str | memoryview) -> bytes:
    """Digest of what the client sent. In pieces, so that a long text is never copied as a whole."""
    digest = blake3(digest_of("wire", tenant))
    if isinstance(text, memoryview):
        return digest.update(text).digest()
    for start in range(0, len(text), _HASH_CHARS):
        # surrogatepass: any string that JSON can carry has a digest; the decoder refuses it later.
        digest.update(text[start : start + _HASH_CHARS].encode("utf-8", "surrogatepass"))
    return digest.digest()


def bytes_digest(tenant: str, data: bytes) -> bytes:
    return blake3(digest_of("bytes", tenant)).update(data).digest()


def bytes_of(tenant: str, text: str | memoryview, max_bytes: int) -> tuple[bytes, bytes]:
    data = decode_image_text(text, max_bytes)
    return data, bytes_digest(tenant, data)


def canonical_of(data: bytes, limits: ImageLimits) -> Canonical:
    return canonicalize(data, sniff(data, limits), limits)
