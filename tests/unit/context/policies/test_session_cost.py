"""What a GUI agent's session costs under each policy: 60 steps, one screenshot a step, tokens by estimate.

The floor is the prompt of the last step as if nothing were ever evicted, each token computed once.
"""

from __future__ import annotations

import pytest

from context.estimates import message_tokens
from context.policies.base import Policy, Request
from context.policies.batched import Batched
from context.policies.keep import STABLE
from context.policies.sliding import Sliding
from context.transcript import ImagePart
from tests.unit.context.policies.sessions import Wire, same_start, session, shot, text

STEPS = 60


def words(tokens: int) -> str:
    """A text of about so many tokens."""
    return ("look " * tokens)[: 4 * tokens]


def step(number: int) -> Wire:
    """Every seventh screenshot is equal to the one before: nothing had happened."""
    return {"role": "user", "content": [text(words(40)), shot(number - 1 if number % 7 == 0 else number)]}


def keep_last_images(history: list[Wire], count: int) -> None:
    """What a client does that keeps its last images."""
    with_image = [at for at, one in enumerate(history) if any(isinstance(part, ImagePart) for part in one["content"])]
    for at in with_image[:-count] if count else ():
        history[at] = {**history[at], "content": history[at]["content"][:1]}


async def uncached_over_floor(policy: Policy, window: int = 0) -> tuple[float, int]:
    """Uncached tokens of the session over its floor, and the most prompt tokens of a step."""
    system: Wire = {"role": "system", "content": words(2700)}
    uncached = largest = 0
    async with session(policy, Request(), system) as client:
        for number in range(STEPS):
            client.history.append(step(number))
            keep_last_images(client.history, window)
            begun = await client.ask(reply=words(120))
            sent = [message_tokens(one.wire) for one in begun.plan.sent]
            # The engine holds what it was sent and what it answered.
            uncached += sum(sent[same_start(begun) :])
            largest = max(largest, sum(sent))
    replies = (STEPS - 1) * message_tokens({"role": "assistant", "content": words(120)})
    floor = message_tokens(system) + replies + sum(message_tokens(step(number)) for number in range(STEPS))
    return uncached / floor, largest


@pytest.mark.parametrize(
    ("policy", "window", "most", "tokens"),
    [
        (STABLE, 0, 1.02, 93_000),
        (Batched(), 0, 1.25, 40_000),
        (Batched(), 3, 1.3, 40_000),
        (Batched("visual_tokens", 26_000, 4_000), 0, 1.25, 40_000),
        (Batched("turns", 20, 3), 0, 1.25, 34_000),
        (Batched("prompt_tokens", 30_000, 10_000), 0, 1.25, 30_000),
    ],
)
async def test_a_policy_that_shrinks_seldom_is_near_the_floor(
    policy: Policy, window: int, most: float, tokens: int
) -> None:
    ratio, largest = await uncached_over_floor(policy, window)
    assert ratio <= most
    assert largest <= tokens


@pytest.mark.parametrize(
    ("policy", "window"), [(Sliding(3), 0), (STABLE, 3), (Batched(defer_client_deletions=False), 3)]
)
async def test_an_image_less_a_turn_is_far_from_it(policy: Policy, window: int) -> None:
    assert (await uncached_over_floor(policy, window))[0] >= 2.5
