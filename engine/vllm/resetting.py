"""Empty the core's prefix cache, and the tiers below it, when it has nothing to do."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
from typing import Any

from context.errors import EngineUnavailable
from engine.vllm.core_calls import answered

_SECONDS = 1.0
_TRIES = 3


def unfinished(client: Any) -> int:
    """Requests that the engine works on.

    Args:
        client: vLLM's, of the core.
    """
    return int(client.output_processor.get_num_unfinished_requests())


async def reset_prefixes(client: Any) -> None:
    """Empty the prefix cache.

    Args:
        client: vLLM's, of the core.

    Raises:
        EngineUnavailable: the engine works on requests, for a second or longer, or its core died.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + _SECONDS
    # A core that works answers after its step alone; so it is asked when it has nothing to do any more. It frees a
    # finished request's blocks one step after its last token left, and refuses until then.
    while loop.time() < until:
        if not unfinished(client) and await answered(client, client.reset_prefix_cache()):
            return
        await asyncio.sleep(0.02)
    raise _busy()


async def reset_tiers(client: Any, *, has_folder: bool) -> bool:
    """Empty the prefix cache and the tiers below it; whether all files are gone.

    Args:
        client: vLLM's, of the core.
        has_folder: whether there are files.

    Raises:
        EngineUnavailable: as `reset_prefixes`.
    """
    for _ in range(_TRIES):
        if await answered(client, client.reset_prefix_cache(reset_connector=True)):
            return True
        # No is the answer for blocks in use as well as for files that stay; so until they are not.
        await reset_prefixes(client)
    if not has_folder:
        raise _busy()
    return False


def _busy() -> EngineUnavailable:
    return EngineUnavailable("The prefix cache cannot be emptied while requests are running.")
