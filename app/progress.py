"""How far long work is, on standard error: a line that changes in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console

_EVERY_SECONDS = 5.0


@contextmanager
def progress(
    console: Console, first: str, every_seconds: float = _EVERY_SECONDS
) -> Generator[Callable[[str, str], None]]:
    """Gives what is to be called, whenever the work has gone on, with the stage it is at and a text.

    Where the console is no terminal a text is a line of its own: the first one, the first of each stage, and of the
    others one in `every_seconds`.
    """
    if console.is_terminal:
        with console.status(first) as status:
            yield lambda _stage, text: status.update(text)
        return
    at_stage, at = "", -math.inf

    def tell(stage: str, text: str) -> None:
        nonlocal at_stage, at
        now = time.monotonic()
        if stage == at_stage and now - at < every_seconds:
            return
        at_stage, at = stage, now
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    tell("", first)
    yield tell
