"""A fake engine's scheduler as a source of KV events, without chats: prompts are token ids."""

from __future__ import annotations

from collections.abc import Sequence

from engine.base import BlockStored, EngineEvent, EventBatch
from engine.fake import FakeConfig
from engine.fake.scheduler import Scheduler
from engine.fake.sequence import FakeSequence, PlacedImage, Prompt
from metrics.kv_mirror.base import BlockHash

BLOCK = 4


class KvSource:
    """Runs prompts and gives what the engine tells of them, a batch at a time."""

    def __init__(self, num_blocks: int = 33) -> None:
        config = FakeConfig(
            block_tokens=BLOCK,
            num_blocks=num_blocks,
            max_model_tokens=(num_blocks - 1) * BLOCK,
            max_batched_tokens=64,
            max_running=4,
        )
        self.scheduler = Scheduler(config)
        self.sequence = 0
        self.events = 0
        self.seen: set[BlockHash] = set()

    def add(
        self, tokens: Sequence[int], *images: PlacedImage, request_id: str = "", salt: str | None = None, reply: int = 1
    ) -> FakeSequence:
        """Queue a prompt that is answered with `reply` tokens."""
        plan = [1000 + number for number in range(reply)]
        sequence = FakeSequence(
            request_id, Prompt(list(tokens), images, salt), plan, "length", BLOCK, session_id=request_id
        )
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> list[EventBatch]:
        """Run one step."""
        self.scheduler.finish(self.scheduler.schedule())
        return self.batches()

    def run(self) -> list[EventBatch]:
        """Run to the end of all that is queued."""
        found: list[EventBatch] = []
        while self.scheduler.waiting or self.scheduler.running:
            found += self.step()
        return found

    def batches(self) -> list[EventBatch]:
        """What happened since the last call, as one batch at most."""
        events, _ = self.scheduler.take_events()
        if not events:
            return []
        self.note(events)
        batch = EventBatch("kv", self.sequence, float(self.sequence), tuple(events))
        self.sequence += 1
        return [batch]

    def note(self, events: Sequence[EngineEvent]) -> None:
        self.events += len(events)
        for event in events:
            if isinstance(event, BlockStored):
                self.seen.update(event.block_hashes)

    def resident(self) -> frozenset[BlockHash]:
        """What the engine can find now."""
        # What is gone is seen again when it is stored again.
        self.seen = {one for one in self.seen if isinstance(one, bytes) and self.scheduler.pool.find([one], 1)}
        return frozenset(self.seen)
