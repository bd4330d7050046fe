"""The engine's limits, kept before the engine refuses a prompt, under every policy that replays."""

from __future__ import annotations

from dataclasses import replace

from context.policies.base import Estimate, Shaped, View
from context.policies.batched import shrink_tokens
from context.policies.eviction import Draft
from context.replay import common
from context.transcript import ImagePart

# The rest of the context is for the reply, and for what an estimate is wrong by.
_PROMPT_RATIO = 0.85
# More than any template puts around a message.
_MESSAGE_TOKENS = 64
# Role and content are all that most messages have.
_PLAIN_KEYS = 2


def fit(shaped: Shaped, view: View) -> Shaped:
    """What a policy made of a view, within the limits of `view.request`.

    Nothing changes within them: `max_images` with the images of the tail counted, and 85 % of `max_prompt_tokens` by
    estimate, tools and tail counted. Above, the oldest images give way to their markers until half of the limit is
    left, of tokens half of what tools and tail leave, so that the next turns have room; where the tokens of that do not
    suffice, whole turns follow. Pinned images stay as long as the limit itself can be kept with them. The current turn
    is sent as it is, even if it is too much alone.
    """
    limits = view.request.limits
    if _is_far_within(shaped, view):
        return shaped
    now = replace(view, sent=shaped.sent, broken_at=_broken_at(shaped, view))
    draft = Draft(now)
    tail = [*shaped.tail, *view.waiting]
    in_tail = [part for part in tail if isinstance(part, ImagePart)]
    details: list[str] = []
    if limits.max_images is not None and _fit_images(draft, limits.max_images, len(in_tail)):
        details.append(f"more images than the engine's {limits.max_images}")
    if limits.max_prompt_tokens is not None:
        others = view.request.estimate({"role": "user", "content": tail}) if tail else 0
        if _fit_tokens(draft, int(limits.max_prompt_tokens * _PROMPT_RATIO), others + tools_tokens(view)):
            details.append(f"close to the engine's {limits.max_prompt_tokens} tokens")
    return draft.shaped(" and ".join(details), base=shaped)


def tools_tokens(view: View) -> int:
    """Prompt tokens of a view's tools, by estimate."""
    if not view.tools:
        return 0
    return spelled_tokens(view.tools, view.request.estimate)


def spelled_tokens(tools: bytes, estimate: Estimate) -> int:
    """Prompt tokens of tools, by estimate: their JSON as one text, which an estimator that has seen it knows."""
    return estimate({"role": "system", "content": tools.decode("utf-8", "surrogatepass")})


def _is_far_within(shaped: Shaped, view: View) -> bool:
    """Whether a prompt is so short that nothing has to be estimated, as most chats' first ones are."""
    limits = view.request.limits
    if limits.max_prompt_tokens is None:
        return limits.max_images is None
    room = int(limits.max_prompt_tokens * _PROMPT_RATIO) - (_MESSAGE_TOKENS + len(view.tools) if view.tools else 0)
    for one in shaped.sent:
        text = one.wire.get("content")
        if not isinstance(text, str) or len(one.wire) != _PLAIN_KEYS:
            return False
        # No vocabulary has more tokens for a text than it has bytes.
        room -= _MESSAGE_TOKENS + len(text) * (1 if text.isascii() else 4)
        if room < 0:
            return False
    return not shaped.tail and not view.waiting


def _fit_images(draft: Draft, most: int, others: int) -> bool:
    """Bring the images down to half of `most`, `others` counted, where there are more; whether there were."""
    count = others + sum(1 for _ in draft.images(pinned=True))
    if count <= most:
        return False
    count -= draft.take_oldest(count - most // 2, lambda _: 1)
    draft.take_oldest(count - most, lambda _: 1, pinned=True)
    return True


def _fit_tokens(draft: Draft, most: int, others: int) -> bool:
    """Bring the tokens down to half of what `others` leave of `most`, where there are more; whether there were."""
    count = others + draft.tokens()
    if count <= most:
        return False
    shrink_tokens(draft, count - others - max(0, most - others) // 2)
    shrink_tokens(draft, others + draft.tokens() - most, pinned=True)
    return True


def _broken_at(shaped: Shaped, view: View) -> int | None:
    same = common(view.before, shaped.sent)
    return same if same < len(view.before) else None
