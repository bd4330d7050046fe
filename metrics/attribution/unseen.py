"""Images that an engine took and did not show to its model.

Some upstreams drop an image that they cannot read, answer as if nothing were amiss, and the model makes something up.
Their usage betrays them: the prompt has too few tokens for its images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from context.plan import PromptPlan, SentMessage
from metrics.attribution.base import Left
from metrics.usage import Usage

# Text and visual tokens of a message as it is sent, not corrected by what the engine reported: an engine that drops
# every image would have taught that images take none.
Measure = Callable[[Mapping[str, Any]], tuple[int, int]]
# An estimate of text may be too high by this; of images half must be there.
_TEXT_AT_LEAST, _VISUAL_AT_LEAST = 0.6, 0.5


def are_unseen(
    plan: PromptPlan, before: Left | None, usage: Usage, measure: Measure, template_extends: bool | None
) -> bool:
    """Whether the engine counted too few prompt tokens for the images of a prompt that has some.

    Where the engine reports visual tokens, these tell. Else what it counted is compared with estimates: the growth
    since the turn before, where it is known that its prompt is the beginning of this one and an image came since, else
    the whole prompt. In doubt they were seen: an image may be lost beside much more text.

    Args:
        plan: what was sent.
        before: what the turn that the plan goes on from left.
        usage: the engine's figures.
        measure: tokens of a message.
        template_extends: what the probe at start found of the chat template.
    """
    if usage.visual_tokens is not None:
        return usage.visual_tokens == 0
    if usage.prompt_tokens is None:
        return False
    tail = {"role": "user", "content": list(plan.tail)}
    if template_extends and before is not None and before.prompt_tokens is not None and before.messages is not None:
        same = before.messages - before.replied
        if not plan.breaks and not before.tail_tokens and plan.replayed >= same:
            # The reply is counted as text, for the template may leave out what was thought.
            text, visual = _sums((*plan.sent[same:], tail), measure)
            if visual:
                return _are_too_few(usage.prompt_tokens - before.prompt_tokens, text, visual)
    text, visual = _sums((*plan.sent, tail), measure)
    return visual > 0 and _are_too_few(usage.prompt_tokens, text, visual)


def _sums(messages: Iterable[SentMessage | Mapping[str, Any]], measure: Measure) -> tuple[int, int]:
    text = visual = 0
    for one in messages:
        more = measure(one.wire if isinstance(one, SentMessage) else one)
        text, visual = text + more[0], visual + more[1]
    return text, visual


def _are_too_few(tokens: int, text: int, visual: int) -> bool:
    return tokens - _TEXT_AT_LEAST * text < _VISUAL_AT_LEAST * visual
