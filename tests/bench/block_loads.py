"""Made-up traffic for a cache of blocks: conversations that go on, and such that do not.

Every load has conversations that are active, each with a turn about once in a unit of time, and beside them what comes
once, and what has some turns in quick succession and then rests, mostly for good. All of it from one seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

BLOCK = 16
IMAGE_TOKEN = 7


@dataclass(frozen=True, slots=True)
class Turn:
    """One request.

    Attributes:
        conversation: whose.
        is_active: whether of a conversation that goes on.
        prompt: all token ids, from its first turn on.
        images: identifier, first token and length of each image in it.
        reply: token ids of the answer.
    """

    conversation: str
    is_active: bool
    prompt: tuple[int, ...]
    images: tuple[tuple[str, int, int], ...]
    reply: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Mix:
    """What a load is made of. Times are in mean gaps between two turns of an active conversation, sizes in tokens.

    Attributes:
        active: conversations at one time.
        turns: of each of them, until another takes its place.
        gap: how regular they come: regular, exponential, heavy (many short gaps and few long ones).
        single: requests that come once, for each turn of an active conversation.
        resting: turns of conversations that rest afterwards, for each turn of an active conversation.
        resting_turns: of each, on average.
        resting_gap: between their turns.
        returning: share of them that comes back once, after 5 to 30.
        system: its system prompt.
        is_shared: whether all have the same.
        image: share of turns with an image.
        image_tokens, text, reply: of one.
        room: the cache, in sizes of what the active ones hold at one time.
    """

    active: int
    turns: int
    gap: str
    single: float
    resting: float
    resting_turns: int
    resting_gap: float
    returning: float
    system: int
    is_shared: bool
    image: float
    image_tokens: int
    text: int
    reply: int
    room: float


@dataclass(frozen=True, slots=True)
class Load:
    """Turns in their order, and how many blocks there are for them."""

    mix: Mix
    turns: tuple[Turn, ...]
    blocks: int


@dataclass(slots=True)
class _Conversation:
    name: str
    rng: random.Random
    tokens: list[int]
    images: list[tuple[str, int, int]] = field(default_factory=list[tuple[str, int, int]])
    turns: int = 0

    def turn(self, mix: Mix) -> Turn:
        self.turns += 1
        self.tokens += self._words(mix.text)
        if self.rng.random() < mix.image:
            self.images.append((f"{self.name}-{self.turns}", len(self.tokens), mix.image_tokens))
            self.tokens += [IMAGE_TOKEN] * mix.image_tokens
        prompt, reply = tuple(self.tokens), self._words(mix.reply)
        self.tokens += reply
        return Turn(self.name, self.name.startswith("active"), prompt, tuple(self.images), tuple(reply))

    def _words(self, about: int) -> list[int]:
        return words(self.rng, self.rng.randint(about // 2 + 1, about * 3 // 2))


def words(rng: random.Random, length: int) -> list[int]:
    """Token ids that nothing else has."""
    return [rng.randrange(1000, 1 << 30) for _ in range(length)]


def interleaved(seed: int) -> Mix:
    """Active conversations that would fit, among idle ones that push them out."""
    rng = random.Random(seed)  # noqa: S311
    return _mix(rng, single=rng.choice((0.5, 1, 3)), resting=rng.choice((0.3, 1.0)), room=rng.choice((1.5, 2.0)))


def any_mix(seed: int) -> Mix:
    """Anything: also loads without idle conversations, in too little room, or in so much that nothing is evicted."""
    rng = random.Random(seed)  # noqa: S311
    return _mix(rng, rng.choice((0, 0.3, 1, 3)), rng.choice((0, 0.1, 0.4, 1)), rng.choice((0.6, 1, 1.5, 2.5)))


def _mix(rng: random.Random, single: float, resting: float, room: float) -> Mix:
    return Mix(
        active=rng.randint(2, 8),
        turns=rng.choice((8, 20, 60)),
        gap=rng.choice(("regular", "exponential", "heavy")),
        single=single,
        resting=resting,
        resting_turns=rng.choice((2, 5, 10)),
        resting_gap=rng.choice((0.02, 0.3, 2.0)),
        returning=rng.choice((0, 0.1, 0.3)),
        system=rng.choice((0, 200, 2000)),
        is_shared=rng.random() < 0.5,
        image=rng.choice((0, 0.5, 1)),
        image_tokens=rng.choice((64, 256, 1024)),
        text=rng.choice((30, 150, 600)),
        reply=rng.choice((20, 150)),
        room=room,
    )


def make(mix: Mix, seed: int, length: float = 30, most: int = 700) -> Load:
    """A load.

    Args:
        mix: of what.
        seed: of all that is drawn.
        length: in mean gaps.
        most: turns at most.
    """
    rng = random.Random(seed)  # noqa: S311
    shared = words(rng, mix.system)
    known: dict[str, _Conversation] = {}
    made: list[Turn] = []
    for _, name in sorted(_arrivals(mix, rng, length))[:most]:
        if name not in known:
            own = random.Random(rng.random())  # noqa: S311
            known[name] = _Conversation(name, own, list(shared) if mix.is_shared else words(own, mix.system))
        made.append(known[name].turn(mix))
    # What the active ones hold half way.
    sizes = {turn.conversation: len(turn.prompt) for turn in made[: len(made) // 2] if turn.is_active}
    held = sum(list(sizes.values())[-mix.active :])
    longest = max(len(turn.prompt) + len(turn.reply) for turn in made)
    return Load(mix, tuple(made), int(max(held * mix.room, longest * 1.6)) // BLOCK + 2)


def _arrivals(mix: Mix, rng: random.Random, length: float) -> list[tuple[float, str]]:
    numbers, found = count(1), list[tuple[float, str]]()
    gap = _GAPS[mix.gap]
    for _ in range(mix.active):
        time = rng.random()
        while time < length:
            name = f"active-{next(numbers)}"
            for _ in range(mix.turns):
                found.append((time, name))
                time += gap(rng)
    time = 0.0
    while mix.single and (time := time + rng.expovariate(mix.single * mix.active)) < length:
        found.append((time, f"single-{next(numbers)}"))
    time = 0.0
    while mix.resting and (time := time + rng.expovariate(mix.resting * mix.active / mix.resting_turns)) < length:
        name, at = f"resting-{next(numbers)}", time
        for _ in range(rng.randint(1, 2 * mix.resting_turns - 1)):
            found.append((at, name))
            at += rng.expovariate(1 / mix.resting_gap)
        if rng.random() < mix.returning:
            found.append((at + rng.uniform(5, 30), name))
    return [one for one in found if one[0] < length]


_GAPS: dict[str, Callable[[random.Random], float]] = {
    "regular": lambda rng: rng.uniform(1, 1.1),
    "exponential": lambda rng: rng.expovariate(1),
    "heavy": lambda rng: 0.4 * rng.paretovariate(1.3),
}
