"""How many slots of KV blocks stay empty, and what would blocks of their own for each modality change?

    python -m tests.bench.fragmentation [--traces t1 t2 ...] [--json FILE]

The six shapes of sessions under the default policy, in blocks of 16 and 32 tokens. Exact, and the same everywhere.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from context.conversations import Conversations
from context.ledger import Ledger
from context.policies.choice import load_policy
from engine.fake.core import FakeCore, Usage
from engine.fake.sequence import PlacedImage
from engine.vllm.blocks.labels import labels_of
from metrics.replay.images import trace_images
from metrics.replay.simulate import SimulatedSession, default_config
from metrics.replay.traces import KINDS, load_trace

BLOCKS = (16, 32)


@dataclass(slots=True)
class Slots:
    """Sums over the turns of a session, each as its request ends.

    Attributes:
        slots: in all blocks.
        unused: of the last ones that stay empty; what stands last is a reply, so they are text's.
        text, image, mixed: blocks.
        apart_unused: slots that would stay empty if no block held both text and an image.
    """

    slots: int = 0
    unused: int = 0
    text: int = 0
    image: int = 0
    mixed: int = 0
    apart_unused: int = 0

    def add(self, tokens: int, images: Sequence[PlacedImage], block: int) -> None:
        """Count a request of so many tokens."""
        full = tokens // block
        self.slots += -(-tokens // block) * block
        self.unused += -tokens % block
        for label in labels_of([_Feature(image) for image in images], 0, full, block):
            setattr(self, label.modality, getattr(self, label.modality) + 1)
        at = 0
        for image in images:
            self.apart_unused += -(image.offset - at) % block + -image.tokens % block
            at = image.end
        self.apart_unused += -(tokens - at) % block


@dataclass(frozen=True, slots=True)
class _Place:
    offset: int
    length: int


class _Feature:
    """An image as vLLM's requests have it."""

    def __init__(self, image: PlacedImage) -> None:
        self.identifier, self.mm_position = image.uuid, _Place(image.offset, image.tokens)


class _Counting(FakeCore):
    """A fake engine that counts the blocks of each request as it ends."""

    def __init__(self) -> None:
        super().__init__(default_config())
        self.found = {block: Slots() for block in BLOCKS}

    def complete(self, body: Mapping[str, Any], request_id: str = "simulated", *, answer: str | None = None) -> Usage:
        usage = super().complete(body, request_id, answer=answer)
        # The body names images that were seen without their bytes, which only a chat may.
        for block, slots in self.found.items():
            slots.add(usage.prompt_tokens + usage.completion_tokens, self.placed, block)
        return usage

    def accept(self, body: Mapping[str, Any], request_id: str, answer: str | None = None) -> Any:
        chat = super().accept(body, request_id, answer)
        self.placed = chat.prompt.images
        return chat


async def measure(name: str) -> dict[int, Slots]:
    """One session, by the size of blocks."""
    trace = load_trace(name)
    core, ledger = _Counting(), await Ledger.open(None)
    async with trace_images() as images:
        session = SimulatedSession(core, Conversations(ledger), load_policy("stable"), images)
        for turn in trace.turns:
            await session.ask(turn, turn.messages)
    await ledger.close()
    return core.found


def row(name: str, block: int, slots: Slots) -> dict[str, Any]:
    """A session's shares."""
    blocks = slots.text + slots.image + slots.mixed
    return {
        "trace": name,
        "block_tokens": block,
        "unused_ratio": slots.unused / slots.slots,
        "mixed_block_ratio": slots.mixed / blocks,
        "image_block_ratio": slots.image / blocks,
        "apart_unused_ratio": slots.apart_unused / (slots.slots - slots.unused + slots.apart_unused),
    }


def main(words: Sequence[str] | None = None) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", nargs="+", default=list(KINDS))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(words)
    rows = [
        row(name, block, slots)
        for name in cast("list[str]", args.traces)
        for block, slots in asyncio.run(measure(name)).items()
    ]
    if args.json:
        args.json.write_text(json.dumps({"rows": rows}, indent=1))
    print(f"{'trace':8}{'block':>6}{'unused':>9}{'mixed':>9}{'image':>9}{'unused, apart':>15}")
    for one in rows:
        shares = (one[f"{key}_ratio"] for key in ("unused", "mixed_block", "image_block", "apart_unused"))
        print(f"{one['trace']:8}{one['block_tokens']:6}" + "".join(f"{share:9.2%}" for share in shares))


if __name__ == "__main__":
    main()
