"""Costs of aligning a client's new history with its old one: `python -m tests.bench.alignment [--json]`.

Rows by number of messages: nothing changed; a window that slides by one screenshot; a time in every user message;
nothing in common; one message over and over between other ends. Processor time, so that a busy machine does not show.
Prints figures; passes no judgement.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence

from context.alignment import align
from context.images.base import ImageRef
from context.transcript import ImagePart, Message, message_of

SIZES = (60, 600, 2000)
WORDS = "The page shows a list of places with prices and a button to book. " * 6
Pair = tuple[list[Message], list[Message]]


def session(messages: int, *, keep: int | None = None, second: int | None = None, name: str = "s") -> list[Message]:
    """Steps of an agent: a screenshot with a text, and an action. `keep`: how many screenshots are left."""
    made = [message_of({"role": "system", "content": WORDS * 8})]
    steps = messages // 2
    for step in range(steps):
        ref = ImageRef(f"{name}{step}".encode().hex().ljust(64, "0"), 1280, 800, "image/png", 100_000)
        at = "" if second is None else f"[2026-04-12T23:38:{second:02}.919Z] "
        parts: list[object] = [{"type": "text", "text": f"{at}{name} {step}. {WORDS}"}]
        if keep is None or step >= steps - keep:
            parts.append(ImagePart(ref))
        made.append(message_of({"role": "user", "content": parts}))
        made.append(message_of({"role": "assistant", "content": f"{name} {step}: click. {WORDS}"}))
    return made


def repeated(size: int) -> Pair:
    one, two, same = (message_of({"role": "user", "content": text}) for text in ("one", "two", "same"))
    return [one, *[same] * size, two], [two, *[same] * (size - 7), one]


CASES: dict[str, Callable[[int], Pair]] = {
    "extension": lambda size: (session(size), session(size + 2)),
    "window": lambda size: (session(size, keep=3), session(size + 2, keep=3)),
    "time in all": lambda size: (session(size, second=10), session(size + 2, second=20)),
    "nothing common": lambda size: (session(size), session(size - 10, name="t")),
    "repeated": repeated,
}


def milliseconds(old: Sequence[Message], new: Sequence[Message], rounds: int = 7) -> float:
    """Median of some runs."""
    times: list[float] = []
    for _ in range(rounds):
        start = time.process_time()
        align(old, new)
        times.append(1000 * (time.process_time() - start))
    return round(statistics.median(times), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    rows = [
        {"case": name, "messages": size, "milliseconds": milliseconds(*make(size))}
        for name, make in CASES.items()
        for size in SIZES
    ]
    if parser.parse_args().json:
        print(json.dumps({"rows": rows}))
        return
    for row in rows:
        print(f"{row['case']:<16} {row['messages']:>6} messages {row['milliseconds']:>9} ms")


if __name__ == "__main__":
    main()
