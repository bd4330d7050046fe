"""One cause for what was not read: from the plan, the engine's usage, and the mirror.

The prompt and what the turn before left have a common start. It ends where the plan breaks it, or earlier, where the
template or another salt makes another prompt of the same messages. Within it the engine reads up to the first block
that it no longer has. So what was expected and not read has three parts, one behind the other:

    0 ......... read ............ common ............ place ............ expected
                 engine_eviction   template or salt    the plan's break

The cause is that of the longest part, and all that was lost is put down to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pydantic_core import to_json

from context.estimates import message_tokens, text_tokens
from context.frozen import frozen
from context.plan import Actor, Cause, PromptPlan
from context.separation import in_front
from context.transcript import ImagePart
from metrics.attribution.base import Attribution, Cache, Left
from metrics.kv_mirror.base import Eviction, MirrorView, Owner
from metrics.usage import Usage

# What OpenAI's API reads in, for engines that do not say.
UNKNOWN_BLOCK_TOKENS = 128
# An estimated place may be wrong by this share of the tokens in front of it.
_ESTIMATE_ERROR = 0.15

Estimate = Callable[[Mapping[str, Any]], int]


@frozen
class _Lengths:
    """Tokens from the start of the prompt, in the order in which they follow one another.

    `common` is None where it is not known; `place` is estimated, give or take `slack`.
    """

    read: int
    common: int | None
    place: int
    expected: int
    slack: int


def attribute(
    plan: PromptPlan,
    before: Left | None,
    usage: Usage,
    view: MirrorView | None,
    block_tokens: int | None,
    *,
    cache: Cache,
    owner: Owner | None = None,
    estimate: Estimate = message_tokens,
    template_extends: bool | None = None,
    loaded_tokens: int = 0,
    apart_by: Actor | None = None,
    was_exact: bool = False,
) -> Attribution:
    """What a turn could have read, and why it read less.

    Args:
        plan: what was sent.
        before: what the turn that the plan goes on from left; None where there is none.
        usage: the engine's figures for this turn.
        view: what the mirror knows; None for an engine without events.
        block_tokens: tokens in a block; None where the engine does not say.
        cache: where this turn looked.
        owner: whose turn it is.
        estimate: prompt tokens of a message as it is sent.
        template_extends: what the probe at start found of the chat template.
        loaded_tokens: those of its images that came from a pool, wherever they stand.
        apart_by: who has allowed what makes the engine keep its blocks apart from those of the turn before, also where
            the plan could not know; the engine itself where it had nothing left that it keeps apart; None where it does
            not.
        was_exact: the engine has kept nothing apart of the turn before, whatever the plan supposed.
    """
    block = block_tokens or UNKNOWN_BLOCK_TOKENS
    if usage.read_tokens is None or usage.prompt_tokens is None:
        return Attribution(cause="engine_unreported", actor="engine")
    if before is None:
        return Attribution(0, 0, "cold", "client")
    if was_exact:
        plan = _without_salt(plan, before)
    lengths = _lengths(plan, before, usage.prompt_tokens, usage.read_tokens, view, block, estimate)
    if not lengths.expected:
        return Attribution(0, 0, "below_block", "engine")
    lost = lengths.expected - lengths.read
    if loaded_tokens:
        lost -= _loaded_of(lengths, plan, usage.prompt_tokens, loaded_tokens, estimate)
    if lost < block:
        return Attribution(lengths.expected, 0)
    cause, actor = _cause(plan, lengths, view, _mover(before.cache, cache), template_extends, apart_by)
    at = _break_token(cause, lengths, block)
    if cause != "engine_eviction" or view is None:
        return Attribution(lengths.expected, lost, cause, actor, at)
    image, whose, tokens = _evicted(view.evicted, lengths.read // block, owner)
    return Attribution(lengths.expected, lost, cause, actor, at, image, whose, tokens)


def _without_salt(plan: PromptPlan, before: Left) -> PromptPlan:
    """The plan as it is where nothing stood apart. What breaks it otherwise has become the first of its reports."""
    if not plan.breaks or plan.breaks[0].cause != "salt":
        return plan
    is_broken = before.messages is not None and plan.replayed < min(before.messages, len(plan.sent))
    rest = plan.reports if is_broken else ()
    return replace(plan, breaks=rest[:1], reports=plan.reports[len(rest[:1]) :], unread_from=None)


def _lengths(
    plan: PromptPlan,
    before: Left,
    prompt_tokens: int,
    read: int,
    view: MirrorView | None,
    block: int,
    estimate: Estimate,
) -> _Lengths:
    # The last token is always computed: its logits give the first one of the reply.
    longest = (prompt_tokens - 1) // block * block
    common = None if view is None or view.common_tokens is None else min(view.common_tokens, longest)
    left = before.tokens
    branched = before.messages is not None and plan.replayed < min(before.messages, len(plan.sent))
    place, slack, estimated = left or 0, 0, False
    if plan.breaks or branched or left is None:
        place = _place(plan, prompt_tokens, estimate)
        estimated = not plan.breaks or left is None
    if plan.breaks or estimated or before.tail_tokens:
        slack = max(2 * block, int(place * _ESTIMATE_ERROR))
        place = _settled(place, slack, read, common)
    if estimated or left is None or (before.tail_tokens and not plan.breaks):
        left = place
    expected = min(left // block * block, longest)
    common = None if common is None else max(read, min(common, expected))
    return _Lengths(read, common, max(common or 0, min(place, expected)), expected, slack)


def _settled(place: int, slack: int, read: int, common: int | None) -> int:
    """An estimated place, or what is known of it where that is as near as an estimate can be."""
    if common is not None and common >= place - slack:
        return common
    return read if read >= place - slack else place


def _place(plan: PromptPlan, prompt_tokens: int, estimate: Estimate) -> int:
    """Where the plan stops repeating what was sent: estimated, and put right by what the whole prompt came to."""
    if plan.breaks and plan.breaks[0].message < 0:
        return 0
    tools, sizes, tail = _sizes(plan, estimate)
    whole = tools + sum(sizes) + tail
    same = tools + sum(sizes[: plan.replayed])
    if plan.unread_from is not None and plan.breaks and plan.breaks[0].cause == "salt":
        message, part = plan.unread_from
        same = tools + sum(sizes[:message]) + in_front(plan.sent[message].wire, part, estimate)
    return round(same * prompt_tokens / whole) if whole else 0


def _loaded_of(lengths: _Lengths, plan: PromptPlan, prompt_tokens: int, loaded: int, estimate: Estimate) -> int:
    """How many of the tokens that were loaded had been expected to be read: of the images in front of the end of what
    was expected and behind it each has its share, by estimate."""
    tools, sizes, tail = _sizes(plan, estimate)
    scale = prompt_tokens / max(1, tools + sum(sizes) + tail)
    inside, outside, start = 0.0, 0.0, tools * scale
    for one, size in zip(plan.sent, sizes, strict=True):
        end = start + size * scale
        if one.images:
            inside += max(0.0, min(end, lengths.expected) - max(start, lengths.read))
            outside += max(0.0, end - max(start, lengths.expected))
        start = end
    if any(isinstance(part, ImagePart) for part in plan.tail):
        outside += tail * scale
    share = inside / (inside + outside) if inside + outside else 1.0
    at_least = loaded - (prompt_tokens - lengths.expected)
    return min(loaded, lengths.expected - lengths.read, max(at_least, round(loaded * share)))


def tail_tokens(plan: PromptPlan, prompt_tokens: int, estimate: Estimate) -> int:
    """About how many of a prompt's tokens stand at its tail."""
    if not plan.tail:
        return 0
    tools, sizes, tail = _sizes(plan, estimate)
    return round(tail * prompt_tokens / (tools + sum(sizes) + tail))


def _sizes(plan: PromptPlan, estimate: Estimate) -> tuple[int, list[int], int]:
    tools = 0 if plan.tools is None else text_tokens(to_json(plan.tools).decode())
    tail = estimate({"role": "user", "content": list(plan.tail)}) if plan.tail else 0
    return tools, [estimate(one.wire) for one in plan.sent], tail


def _mover(before: Cache | None, now: Cache) -> Actor | None:
    """Who has gone to another cache: the client, where it asks for another model, else the gateway; None for nobody."""
    if before is None or before == now:
        return None
    return "gateway" if before.model == now.model else "client"


def _cause(
    plan: PromptPlan,
    lengths: _Lengths,
    view: MirrorView | None,
    mover: Actor | None,
    template_extends: bool | None,
    apart_by: Actor | None,
) -> tuple[Cause, Actor]:
    """The cause of the longest part; of parts that are equally long the plan's. Another cache has nothing in common
    with the one before, whatever the plan did in the same turn."""
    if mover is not None and not lengths.read and not lengths.common:
        return "salt", mover
    other, engine = 0, 0
    if lengths.common is not None:
        engine, other = lengths.common - lengths.read, lengths.place - lengths.common
    else:
        other = lengths.place - lengths.read
    is_salt = bool(plan.breaks) and plan.breaks[0].cause == "salt" and not (view is not None and view.restarted)
    if plan.breaks and (other <= lengths.slack or is_salt):
        # As near as an estimate can be: the plan's break is where reading stopped. That the engine looks elsewhere
        # explains all of it: the first image may end within a block, and the block begin far in front of it.
        other = 0
    broken = lengths.expected - lengths.read - engine - other
    if plan.breaks and broken >= max(engine, other):
        return plan.breaks[0].cause, plan.breaks[0].actor
    if engine > other:
        return "engine_eviction", "engine"
    if mover is not None:
        return "salt", mover
    if apart_by is not None and not (view is not None and view.restarted):
        return ("engine_eviction", "engine") if apart_by == "engine" else ("salt", apart_by)
    if lengths.common is not None:
        return "template", "template"
    if view is not None and view.restarted:
        return "engine_eviction", "engine"
    return ("template", "template") if template_extends is False else ("engine_unreported", "engine")


def _break_token(cause: Cause, lengths: _Lengths, block: int) -> int:
    if cause in ("engine_eviction", "engine_unreported"):
        return lengths.read
    if lengths.common is None:
        return lengths.read if cause in ("salt", "template") else lengths.place
    if cause in ("salt", "template"):
        return lengths.common
    # The two differ within the block behind what they have in common.
    return min(max(lengths.place, lengths.common), lengths.common + block - 1)


def _evicted(
    evictions: tuple[Eviction, ...], read_blocks: int, owner: Owner | None
) -> tuple[str | None, Owner | None, int]:
    """The image that lost most, whose the blocks were, and how many tokens: of what was not read."""
    paid = [one for one in evictions if one.depth > read_blocks]
    images: Counter[str] = Counter()
    for one in paid:
        if one.image is not None:
            images[one.image] += one.tokens
    owners = [one for eviction in paid for one in eviction.owners]
    whose = owner if owner is not None and owner in owners else owners[0] if owners else None
    return (images.most_common(1)[0][0] if images else None), whose, sum(one.tokens for one in paid)
