"""What blocks, kept from the event loop: work in a thread that a stop does not wait for, and the end of processes."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

_T = TypeVar("_T")


def kill_children(patience_seconds: float, spared: frozenset[Any] = frozenset()) -> None:
    """End every child that this process started with `multiprocessing` and that is still there, but for the spared.

    They have `patience_seconds` to end by themselves; with none they are killed at once.
    """
    children = [child for child in multiprocessing.active_children() if child not in spared]
    for child in children:
        if patience_seconds > 0:
            child.terminate()
            child.join(patience_seconds)
        if child.is_alive():
            child.kill()
            child.join()


async def in_daemon_thread(work: Callable[[], _T]) -> _T:
    """Run blocking work in a thread of its own that a stop of the process does not wait for."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_T] = loop.create_future()

    def tell(result: _T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(cast("_T", result))

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except BaseException as error:
            failure = error
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(tell, result, failure)

    threading.Thread(target=run, daemon=True, name="stillframe-engine-build").start()
    return await done
