"""Calls of the engine core that end when it dies: vLLM waits for ever for the answer of one that died meanwhile.

Source: vLLM 0.32, vllm/v1/engine/core_client.py::AsyncMPClient._call_utility_async.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Protocol, TypeVar

from context.errors import EngineUnavailable

_T = TypeVar("_T")
_LOOK_SECONDS = 0.25
_RETRY_SECONDS = 5


class Client(Protocol):
    """What is asked of vLLM's client of the core."""

    @property
    def errored(self) -> bool:
        """It has no core any more."""
        ...


async def answered(client: Client, call: Awaitable[_T]) -> _T:
    """What the core answers to a call of its client.

    Raises:
        EngineUnavailable: it died before it did.
    """
    answer = asyncio.ensure_future(call)
    try:
        while not answer.done():
            await asyncio.wait((answer,), timeout=_LOOK_SECONDS)
            if not answer.done() and client.errored:
                raise _died()
        return answer.result()
    except EngineUnavailable:
        raise
    except Exception as error:
        if client.errored:
            raise _died() from error
        raise
    finally:
        answer.cancel()


def _died() -> EngineUnavailable:
    return EngineUnavailable("The engine is not ready: the engine core died.", retry_after_seconds=_RETRY_SECONDS)
