"""Writes turns and is killed at a random moment, again and again.

    python -m tests.e2e.ledger_writer FILE SEED

For each line on its input it starts a writer on FILE, kills it with SIGKILL, and answers with a JSON list of what the
writer had been told was kept: `[conversation, turns, replied]`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from pathlib import Path

from context.ledger import Ledger
from tests.contract.ledger_chats import Wire, answer, assistant, chain, new_turn, user

_CONVERSATIONS = 3
_MOST_REPORTS = 60


def history(conversation: str, turns: int) -> list[Wire]:
    """A conversation's messages up to the request of its turn number `turns`."""
    questions: list[Wire] = []
    for number in range(turns):
        questions += [user(f"{conversation} asks {number} " + "word " * 300, number), assistant(f"answer {number}")]
    return questions[:-1]


async def converse(ledger: Ledger, conversation: str, report: int) -> None:
    """Turn after turn, without end; reports each thing that is kept."""
    turn = None
    number = 0
    while True:
        wires = history(conversation, number := number + 1)
        found = await ledger.find("t", chain(wires))
        turn = await ledger.commit("t", new_turn(wires, found and found.turn, conversation=conversation))
        os.write(report, f"{json.dumps([conversation, number, False])}\n".encode())
        await answer(ledger, turn, wires, f"answer {number - 1}")
        os.write(report, f"{json.dumps([conversation, number, True])}\n".encode())


async def write(path: Path, name: str, report: int) -> None:
    ledger = await Ledger.open(path)
    await asyncio.gather(*(converse(ledger, f"{name}.{number}", report) for number in range(_CONVERSATIONS)))


def killed(path: Path, name: str, reports: int) -> list[list[object]]:
    """What a writer reported that was killed once it had reported so many times."""
    receiver, sender = os.pipe()
    child = os.fork()
    if not child:
        try:
            asyncio.run(write(path, name, sender))
        finally:
            os._exit(1)
    os.close(sender)
    with os.fdopen(receiver) as lines:
        heard = [next(lines) for _ in range(reports)]
        os.kill(child, signal.SIGKILL)
        # What it had written before it died counts too.
        heard += [line for line in lines if line.endswith("\n")]
    os.waitpid(child, 0)
    return [json.loads(line) for line in heard]


def main() -> None:
    path, dice = Path(sys.argv[1]), random.Random(int(sys.argv[2]))  # noqa: S311
    for name in sys.stdin:
        print(json.dumps(killed(path, name.strip(), dice.randrange(_MOST_REPORTS))), flush=True)


if __name__ == "__main__":
    main()
