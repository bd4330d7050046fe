"""Hashes of their own for blocks that may be approximate.

A block behind an image whose KV was used again is not what an exact request would have computed. Its hash is salted,
and as each block's hash chains from the one before, so is that of every later block. No exact request can find them, on
the device or in an offload tier, for there is no other way to a block than its hash. A later turn that is salted in the
same way finds them as usual.

Source: vLLM 0.32, vllm/v1/core/kv_cache_utils.py::get_request_block_hasher, vllm/v1/request.py::Request.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Hasher = Callable[[Any], list[Any]]


def salt_hashes(request: Any, first_block: int, salt: str) -> None:
    """Salt the hashes of a request from a block on: those it has, and those of tokens that are still to come.

    Before it is looked up in the prefix cache: a request has hashed its whole prompt when it is made.

    Args:
        request: vLLM's; its hashes and its hasher are replaced.
        first_block: the first block, in units of the hashes, that may hold approximate KV.
        salt: what makes blocks interchangeable: mode, ratio and profile.
    """
    request._block_hasher = _Salted(request._block_hasher, first_block, salt)
    del request.block_hashes[first_block:]
    request.update_block_hashes()


def unsalt_hashes(request: Any, first_block: int) -> None:
    """Give a request that was salted at a block its exact hashes again."""
    request._block_hasher = request._block_hasher.exact
    del request.block_hashes[first_block:]
    request.update_block_hashes()


@dataclass(frozen=True, slots=True)
class _Salted:
    """A request's hasher, with a salt from a block on."""

    exact: Hasher
    first_block: int
    salt: str

    def __call__(self, request: Any) -> list[Any]:
        """Those of full blocks that the request has no hash of yet, as vLLM asks for them."""
        hashes, first = request.block_hashes, self.first_block
        known = len(hashes)
        if known > first:
            return self.exact(request)
        # vLLM may have cut it behind that block, and the exact hasher goes on to the end.
        before = self.exact(request)[: first - known] if known < first else []
        if known + len(before) < first:
            return before
        hashes.extend(before)
        try:
            return before + _behind_a_salt(self.exact, request, self.salt)
        finally:
            del hashes[known:]


def _behind_a_salt(exact: Hasher, request: Any, salt: str) -> list[Any]:
    """The hasher reads its start from the request: the hash of the block before, or for the first one the tenant's
    salt. Either is another one for the time of the call.
    """
    hashes = request.block_hashes
    if not hashes:
        own = request.cache_salt
        request.cache_salt = f"{own or ''}\0{salt}"
        try:
            return exact(request)
        finally:
            request.cache_salt = own
    own = hashes[-1]
    hashes[-1] = hashlib.sha256(own + salt.encode()).digest()
    try:
        return exact(request)
    finally:
        hashes[-1] = own
