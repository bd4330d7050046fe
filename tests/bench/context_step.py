"""How long does a request wait for its context: found in the ledger, planned, kept?

    python -m tests.bench.context_step [--conversations 40] [--policy stable]

Conversations of 60 turns with an image each, as a GUI agent makes them. Timed is the last turn: digests of its
messages, the look-up, the plan, and what keeps it before the client has its reply. Its figures are wall times: give it
a quiet machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from context.conversations import Conversations
from context.images.base import ImageRef
from context.ledger import Ledger
from context.policies.choice import LoadedPolicy, load_policy
from context.transcript import ImagePart
from tests.bench.ledger import spread

_TURNS = 60


def turn(conversation: int, number: int) -> dict[str, Any]:
    """A screenshot with some words."""
    shot = ImagePart(ImageRef(f"{conversation * _TURNS + number:064x}", 1280, 800, "image/png", 210_000), "high")
    text = {"type": "text", "text": f"Screenshot {conversation}.{number}. " + "What next? " * 20}
    return {"role": "user", "content": [text, shot]}


def reply(number: int) -> dict[str, Any]:
    """What the model did."""
    return {"role": "assistant", "content": f"I click at {number}. " + "Because of this. " * 10}


async def measure(folder: Path, conversations: int, policy: str) -> dict[str, Any]:
    """Seconds of the last turns, by step."""
    ledger = await Ledger.open(folder / "ledger.db")
    served, chosen = Conversations(ledger), load_policy(policy)
    seconds: dict[str, list[float]] = {}
    for conversation in range(conversations):
        system = {"role": "system", "content": f"You work on a computer. {conversation} " + "Rules. " * 150}
        history: list[dict[str, Any]] = [system]
        for number in range(_TURNS):
            history.append(turn(conversation, number))
            answer = reply(number)
            begin, drafted, accept = await serve(served, chosen, history, answer)
            history.append(answer)
            if number == _TURNS - 1:
                took = {"begin": begin, "draft, beside the engine": drafted, "accept": accept}
                for name, figure in (took | {"begin and accept": begin + accept}).items():
                    seconds.setdefault(name, []).append(figure)
    await ledger.close()
    return {name: spread(some) for name, some in seconds.items()}


async def serve(
    served: Conversations, policy: LoadedPolicy, history: list[dict[str, Any]], answer: dict[str, Any]
) -> tuple[float, float, float]:
    """Seconds of a turn's steps."""
    # As it comes out of a request's body: objects that nobody has seen.
    wires = [{**message} for message in history]
    began = time.perf_counter()
    begun = await served.begin(wires, None, tenant="tenant", key=b"bench", policy=policy)
    planned = time.perf_counter()
    draft = served.draft(begun)
    drafted = time.perf_counter()
    await served.accept(begun, answer, draft)
    return planned - began, drafted - planned, time.perf_counter() - drafted


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.context_step")
    parser.add_argument("--conversations", type=int, default=40)
    parser.add_argument("--policy", default="stable")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measure(Path(folder), options.conversations, options.policy))
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
