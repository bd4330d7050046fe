"""The same requests to two engines, figure by figure.

The script is made for small caches: prompts that share prefixes, branch, repeat an image, change a salt, and evict each
other, so that an engine that is off by a block or keeps another eviction order is found out.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, cast

from engine.base import Engine, EngineImage, EventBatch
from tests.contract.cases import EngineCase, Picture, ask, encoder_events, user, words

# What the engine under comparison must be started with. 96 blocks hold tokens; the 97th is vLLM's null block.
BLOCK_TOKENS = 32
NUM_BLOCKS = 97
MAX_MODEL_TOKENS = 3072
MAX_BATCHED_TOKENS = 1024

SIZES = ((224, 224), (448, 336), (280, 700), (1000, 400), (97, 131), (640, 480))


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request of the script: what it is about, its messages, its tenant's salt."""

    about: str
    messages: list[dict[str, Any]]
    salt: str = "one"
    tools: list[dict[str, Any]] | None = None
    max_tokens: int = 1


@dataclass(frozen=True, slots=True)
class Figures:
    """What an engine says one request cost. `runs` and `hits` name images; None where it reports no encoder events."""

    prompt_tokens: int
    read_tokens: int
    write_tokens: int
    image_tokens: int
    runs: tuple[str, ...] | None
    hits: tuple[str, ...] | None


def picture(number: int) -> Picture:
    """The script's image of that number: always the same size and content."""
    width, height = SIZES[number % len(SIZES)]
    return Picture(f"img-{number}", width, height, number)


def script() -> Iterator[Exchange]:
    """The requests, in their order."""
    system = {"role": "system", "content": words(40)}
    one = [system, user("first", picture(0), "what is it?")]
    yield Exchange("cold", one)
    yield Exchange("identical", one)
    two = [*one, {"role": "assistant", "content": "a red square"}, user("and this?", picture(1))]
    yield Exchange("image appended", two)
    yield Exchange("identical again", two)
    yield Exchange("text appended", [*two, {"role": "assistant", "content": "a sign"}, user("are you sure?")])
    yield Exchange("another salt", two, salt="two")
    yield Exchange("the first salt is still there", two)
    yield Exchange("oldest image deleted", [system, user("first", "what is it?"), *two[2:]])
    yield Exchange("branch", [*one, {"role": "assistant", "content": "a blue square"}, user("and this?", picture(2))])
    yield Exchange("images swapped", [system, user(picture(1), picture(0))])
    yield Exchange("images in the first order", [system, user(picture(0), picture(1))])
    yield Exchange("one image twice", [system, user(picture(3), "and", picture(3))])
    yield Exchange("one image twice, once more", [system, user(picture(3), "and", picture(3), "and", picture(3))])
    yield Exchange("small image", [user(picture(4))])
    yield Exchange("no images", [user("plain text")])
    parameters: dict[str, Any] = {"type": "object", "properties": {}}
    tools: list[dict[str, Any]] = [{"type": "function", "function": {"name": "look", "parameters": parameters}}]
    yield Exchange("tools", one, tools=tools)
    yield Exchange("tools again", one, tools=tools)
    called = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
    answer = {"role": "tool", "tool_call_id": "c1", "content": "seen"}
    yield Exchange(
        "a tool's answer", [*one, {"role": "assistant", "content": None, "tool_calls": [called]}, answer], tools=tools
    )
    for number in range(5, 9):
        yield Exchange(f"evicting {number}", [user(words(60, seed=number), picture(number))])
    yield Exchange("long prompt in chunks", [user(*(picture(number) for number in range(5)), words(180, seed=9))])
    yield Exchange("its prefix", [user(*(picture(number) for number in range(5)), words(60, seed=9))])
    yield Exchange("what is left of the first", two)
    yield Exchange("what is left of the second salt", two, salt="two")
    yield Exchange("what is left of the tools", one, tools=tools)
    for extra in range(0, 36, 4):
        yield Exchange(f"across a block's end, {extra}", [user(words(20), " a" * extra)], salt="three")
    yield Exchange("long prompt once more", [user(*(picture(number) for number in range(5)), words(180, seed=9))])

    yield from _walk()


def _walk(requests: int = 60, conversations: int = 7) -> Iterator[Exchange]:
    """Conversations that grow, are cut and are asked again in a shuffled order, always a little over what fits: most
    reads end somewhere in the middle, wherever the eviction came to. Answers are long at times, to take blocks.
    """
    choose = random.Random(20_231)  # noqa: S311 - the same walk every time is the point
    turns: dict[int, list[dict[str, Any]]] = {number: [] for number in range(conversations)}
    for number in range(requests):
        which = choose.randrange(conversations)
        history = turns[which]
        if len(history) > 5 or (history and choose.random() < 0.15):
            del history[choose.randrange(len(history)) :]
        if not history or choose.random() < 0.6:
            content = words(choose.randrange(4, 50), seed=100 * which + len(history))
            history.append(user(content, picture(20 + choose.randrange(9))) if choose.random() < 0.5 else user(content))
        messages = [{"role": "system", "content": words(12, seed=which)}, *history]
        salt = f"walk-{which % 2}"
        yield Exchange(f"walk {number}", messages, salt=salt, max_tokens=choose.choice((1, 1, 1, 40, 70)))


async def measure(engine: Engine, case: EngineCase, exchange: Exchange, request_id: str) -> Figures:
    """Send one request and collect what the engine says of it."""
    extra: dict[str, Any] = {"max_tokens": exchange.max_tokens, "ignore_eos": True}
    extra |= {"tools": exchange.tools, "tool_choice": "none"} if exchange.tools else {}
    images = any(map(_has_images, exchange.messages))
    async with engine.events() as batches:
        answered = await ask(engine, case, exchange.messages, request_id=request_id, salt=exchange.salt, **extra)
        assert answered.status == 200, (exchange.about, answered.body)
        runs, hits = await _encoder(batches, request_id) if case.encoder_events and images else (None, None)
    return Figures(
        answered.prompt_tokens, answered.read_tokens, answered.write_tokens, answered.image_tokens, runs, hits
    )


async def differences(left: Engine, left_case: EngineCase, right: Engine, right_case: EngineCase) -> list[str]:
    """Run the script on both, from empty caches, and say where their figures differ."""
    await left.reset_caches()
    await right.reset_caches()
    found: list[str] = []
    for number, exchange in enumerate(script()):
        request_id = f"differential-{number}"
        one = await measure(left, left_case, exchange, request_id)
        other = await measure(right, right_case, exchange, request_id)
        if not _agree(one, other):
            found.append(f"{number} {exchange.about}: {one} against {other}")
    return found


async def _encoder(batches: AsyncIterator[EventBatch], request_id: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    events = await encoder_events(batches, request_id)
    runs = tuple(event.uuid for event in events if event.kind == "run")
    return runs, tuple(event.uuid for event in events if event.kind == "hit")


def _has_images(message: dict[str, Any]) -> bool:
    content: Any = message["content"]
    return isinstance(content, list) and any(isinstance(part, EngineImage) for part in cast("list[Any]", content))


def _agree(one: Figures, other: Figures) -> bool:
    counts = (one.prompt_tokens, one.read_tokens, one.write_tokens, one.image_tokens)
    if counts != (other.prompt_tokens, other.read_tokens, other.write_tokens, other.image_tokens):
        return False
    unreported = one.runs is None or other.runs is None
    return unreported or (one.runs, one.hits) == (other.runs, other.hits)
