"""The encoder cache: vision features by image, in embeddings, shared by all requests.

Source: vLLM 0.32, v1/core/encoder_cache_manager.py::EncoderCacheManager.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

from engine.base import EncoderEvent
from engine.fake.blocks import UNTAKEN_EVENTS
from engine.fake.sequence import FakeSequence


@dataclass(slots=True)
class _Entry:
    embeddings: int
    users: set[int] = field(default_factory=set[int])


class EncoderCache:
    """Features stay until room is needed; those that no sequence refers to go first, oldest first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._free = capacity
        self._entries: dict[str, _Entry] = {}
        self._unused: OrderedDict[str, int] = OrderedDict()
        self._unused_embeddings = 0
        # Which of its images each sequence refers to, by position in the prompt.
        self._held: dict[int, set[int]] = {}
        self._reported: dict[int, set[int]] = {}
        self._events: deque[EncoderEvent] = deque(maxlen=UNTAKEN_EVENTS)

    def check(self, sequence: FakeSequence, image: int) -> bool:
        """Whether the features are there; then the sequence refers to them (check_and_update_cache)."""
        placed = sequence.prompt.images[image]
        entry = self._entries.get(placed.uuid)
        if entry is None:
            return False
        if not entry.users:
            self._unused_embeddings -= self._unused.pop(placed.uuid)
        self._refer(entry, sequence, image)
        self._report("hit", sequence, image)
        return True

    def has_room(self, sequence: FakeSequence, image: int, budget: int, scheduled: int) -> bool:
        """Whether the features fit beside `scheduled` others; evicts unused ones to make it so (can_allocate)."""
        placed = sequence.prompt.images[image]
        if placed.tokens > budget:
            return False
        wanted = placed.tokens + scheduled
        if wanted <= self._free:
            return True
        if wanted > self._free + self._unused_embeddings:
            return False
        while wanted > self._free:
            uuid, embeddings = self._unused.popitem(last=False)
            del self._entries[uuid]
            self._unused_embeddings -= embeddings
            self._free += embeddings
            self._events.append(EncoderEvent("evict", sequence.request_id, uuid, embeddings))
        return True

    def allocate(self, sequence: FakeSequence, image: int) -> None:
        """Keep room for features that this step computes."""
        placed = sequence.prompt.images[image]
        entry = self._entries.setdefault(placed.uuid, _Entry(placed.tokens))
        self._free -= placed.tokens
        self._refer(entry, sequence, image)
        self._report("run", sequence, image)

    def held(self, sequence: FakeSequence) -> list[int]:
        """The images, by position, whose features the sequence refers to."""
        return sorted(self._held.get(id(sequence), ()))

    def let_go(self, sequence: FakeSequence, image: int) -> None:
        """No longer refer to an image's features (free_encoder_input). An image that stands several times is referred
        to until the last of them is let go.
        """
        held = self._held.get(id(sequence))
        if held is None or image not in held:
            return
        held.discard(image)
        if not held:
            del self._held[id(sequence)]
        uuid = sequence.prompt.images[image].uuid
        entry = self._entries.get(uuid)
        if entry is None or any(sequence.prompt.images[other].uuid == uuid for other in held):
            return
        entry.users.discard(id(sequence))
        if not entry.users:
            self._unused[uuid] = entry.embeddings
            self._unused_embeddings += entry.embeddings

    def free(self, sequence: FakeSequence, *, done: bool = False) -> None:
        """Let go of all; `done` says that the sequence has ended and will not come back."""
        for image in self.held(sequence):
            self.let_go(sequence, image)
        if done:
            self._reported.pop(id(sequence), None)

    def done(self, request_id: str) -> None:
        """Say that a request has had its last event."""
        self._events.append(EncoderEvent("done", request_id))

    def reset(self) -> None:
        """Drop all features, whoever refers to them."""
        self._entries.clear()
        self._unused.clear()
        self._held.clear()
        self._free, self._unused_embeddings = self.capacity, 0
        self._events.append(EncoderEvent("reset", ""))

    def take_events(self) -> list[EncoderEvent]:
        """What happened since the last call; of very many events the oldest are lost."""
        events = list(self._events)
        self._events.clear()
        return events

    def _refer(self, entry: _Entry, sequence: FakeSequence, image: int) -> None:
        entry.users.add(id(sequence))
        self._held.setdefault(id(sequence), set()).add(image)

    def _report(self, kind: str, sequence: FakeSequence, image: int) -> None:
        # A long image is looked up again by every chunk that overlaps it: once for each place is what it cost.
        reported = self._reported.setdefault(id(sequence), set())
        if image in reported:
            return
        reported.add(image)
        placed = sequence.prompt.images[image]
        event_kind = "run" if kind == "run" else "hit"
        self._events.append(EncoderEvent(event_kind, sequence.request_id, placed.uuid, placed.tokens))
