"""What two prompts share in the real engine's prefix cache comes in stages.

The text before an image is shared whatever the image is. The image is shared only with the same image, and the text
after it only where the image is the same and the text is too. Each to the block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from pydantic_core import from_json

from engine.base import BlockStored, ChatRequest, Engine
from tests.contract.cases import EngineCase, Picture, ask, user, words
from tests.contract.engine_suite import name
from tests.contract.test_fake_matches_vllm import BLOCK_TOKENS
from tests.contract.test_vllm_engine import case

__all__ = ["case", "name"]

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

SIDE = 224
BEFORE, AFTER, OTHER_AFTER = words(60, seed=1), words(60, seed=2), words(60, seed=3)


@dataclass(frozen=True, slots=True)
class Stages:
    """Where in the prompt the image begins and ends, and where the prompt does, in tokens."""

    image: int
    text: int
    end: int


def blocks(tokens: int) -> int:
    """The tokens of the full blocks among so many."""
    return tokens // BLOCK_TOKENS * BLOCK_TOKENS


async def _stages(engine: Engine, name: str) -> Stages:
    """Told by what the engine says that it stored: its tokens, and which image is in which block from where on."""
    picture = Picture(f"{name}-probe", SIDE, SIDE)
    tokens: list[int] = []
    starts: set[int] = set()
    async with engine.events() as events:
        body = {"model": "demo", "messages": [user(BEFORE, picture, AFTER)], "max_tokens": 1, "temperature": 0}
        async with engine.chat(ChatRequest(f"{name}-probe", body, f"{name}-probe")) as reply:
            usage = from_json(await reply.read())["usage"]
        async for batch in events:
            for event in batch.events:
                if isinstance(event, BlockStored) and event.request_id == f"{name}-probe":
                    for at, keys in enumerate(event.extra_keys):
                        first = len(tokens) + at * event.block_size
                        starts |= {first + key[-1] for key in keys or () if key[0] == picture.uuid}
                    tokens += event.token_ids
            if len(tokens) >= blocks(usage["prompt_tokens"] - 1):
                break
    (image,) = starts
    length = usage["prompt_tokens_details"]["multimodal_tokens"]["image"]
    return Stages(image, image + length, usage["prompt_tokens"])


async def test_a_prompt_shares_text_then_the_image_then_the_text_after_it(
    vllm_engine: Engine, case: EngineCase, name: str
) -> None:
    stages = await _stages(vllm_engine, name)
    # Each stage has blocks of its own, and no border falls on a block's: a block across one belongs to the later one.
    assert BLOCK_TOKENS < blocks(stages.image) < stages.image
    assert blocks(stages.image) + BLOCK_TOKENS < blocks(stages.text) < stages.text
    assert blocks(stages.text) + BLOCK_TOKENS < blocks(stages.end - 1)
    one, two = Picture(f"{name}-1", SIDE, SIDE, shade=1), Picture(f"{name}-2", SIDE, SIDE, shade=2)
    everything = blocks(stages.end - 1)
    table: list[tuple[str, list[Any], int]] = [
        ("nothing before it", [BEFORE, one, AFTER], 0),
        ("all of it again", [BEFORE, one, AFTER], everything),
        ("another image: the text before it", [BEFORE, two, AFTER], blocks(stages.image)),
        ("the same image, other text: up to its end", [BEFORE, one, OTHER_AFTER], blocks(stages.text)),
        ("the other image with that text: nothing of the first one's", [BEFORE, two, OTHER_AFTER], blocks(stages.text)),
        ("both of the other image", [BEFORE, two, AFTER], everything),
    ]
    for what, content, expected in table:
        answered = await ask(vllm_engine, case, [user(*content)], salt=name)
        assert answered.prompt_tokens == stages.end, what
        assert answered.read_tokens == expected, what
    moved = await ask(vllm_engine, case, [user(OTHER_AFTER, one, AFTER)], salt=name)
    # Of an image behind other text nothing is shared: what all chats begin with is all that they have in common.
    assert moved.read_tokens <= blocks(stages.image) - BLOCK_TOKENS
    other_salt = await ask(vllm_engine, case, [user(BEFORE, one, AFTER)], salt=f"{name}-other")
    assert other_salt.read_tokens == 0
