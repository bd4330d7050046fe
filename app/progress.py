"""How far long work is, on standard error: a line that changes in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console

_EVERY_SECONDS = 5.0


@contextmanager
def progress(console: Console, first: str, every_seconds: float = _EVERY_SECONDS) -> Generator[Callable[[str], None]]:
    """Gives what is to be called with a text whenever the work has gone on.

    Where the console is no terminal a text is a line of its own: the first one, each that begins with another word than
    the one before, and of the others one in `every_seconds`.
    """
    if console.is_terminal:
        with console.status(first) as status:
            yield status.update
        return
    told, at = "", 0.0

    def tell(text: str) -> None:
        nonlocal told, at
        word, now = text.partition(" ")[0], time.monotonic()
        if word == told and now - at < every_seconds:
            return
        told, at = word, now
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    tell(first)
    yield tell
