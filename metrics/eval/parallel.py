"""Questions side by side: the demo model's matrices are so small that threads within one wait for each other."""

# torch leaves much of its types open.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


def each(items: Sequence[_Item], work: Callable[[_Item], _Made], done: Callable[[int], None]) -> list[_Made]:
    """What `work` makes of each item, in order, without gradients, by as many threads as torch would use.

    Args:
        items: are independent of each other.
        work: is called on several threads.
        done: is told after each item, in order, how many are made.
    """
    threads = torch.get_num_threads()

    def one(item: _Item) -> _Made:
        with torch.inference_mode():
            return work(item)

    torch.set_num_threads(1)
    made: list[_Made] = []
    pool = ThreadPoolExecutor(threads)
    try:
        for result in pool.map(one, items):
            made.append(result)
            done(len(made))
    finally:
        # Interrupted, what has not begun is not begun.
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)
    return made
