"""From what a client sends and what was sent before to what is sent now.

    found    the turn that the ledger knows this transcript to continue
    latest   the newest turn of the conversation, where the history was changed

    nothing known                     everything is laid out anew
    a known prefix, then new turns    the prefix is replayed as it was sent, the rest laid out
    a changed history                 aligned with the latest turn: what means the same is replayed as it was sent, the
                                      rest laid out; one break, at the first difference

Pure functions: nothing is read or written, nothing that came is mutated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from blake3 import blake3
from pydantic_core import to_json

from context.alignment import align, heals
from context.estimates import message_tokens
from context.layout.control import DEFAULT_TOKENS, ControlTokens, neutralize_message, neutralize_value
from context.layout.patterns import BUILTIN, Patterns
from context.layout.tools import canonical_tools, compare_tools
from context.plan import Healed, PrefixBreak, PromptPlan, SentMessage, Turn
from context.transcript import Message, Transcript

Tools = tuple[Mapping[str, Any], ...]
Estimate = Callable[[Mapping[str, Any]], int]

_NO_TOOLS_FORM = blake3(b"null").hexdigest()
# Role and content are all that most messages have: then the text alone has to be looked at.
_PLAIN_KEYS = 2


@dataclass(frozen=True, slots=True)
class Known:
    """What the ledger knows of a transcript: the turn that ends at its longest known prefix, and how long that is."""

    turn: Turn
    length: int
    at_reply: bool


@dataclass(frozen=True, slots=True)
class Rules:
    """What a policy allows the planner to do.

    Attributes:
        replay: send again what was sent; without it messages go as they come, and differences are only reported.
        canonical_tools: send tools in one order and spelling.
        control_tokens: tokens that no text may hold; None leaves texts as they are.
        patterns: what counts as volatile text.
        estimate: prompt tokens of a message, for what a break lost.
    """

    replay: bool = True
    canonical_tools: bool = True
    control_tokens: ControlTokens | None = DEFAULT_TOKENS
    patterns: Patterns = BUILTIN
    estimate: Estimate = message_tokens


# By the name of the policy.
RULES: Mapping[str, Rules] = {
    "observe": Rules(replay=False, canonical_tools=False, control_tokens=None),
    "stable": Rules(),
}


def continues(known: Known, transcript: Transcript) -> bool:
    """Whether what follows the known prefix is new, and not a history that differs from what was sent.

    New are messages without a reply among them: the next turn, a regeneration, a branch. A turn whose reply the gateway
    has not seen whole (it was aborted, or there were several) takes the client's word for it.
    """
    rest = transcript.messages[known.length :]
    replies = [at for at, message in enumerate(rest) if message.role == "assistant"]
    if not replies:
        return True
    ends_open = not known.at_reply and not known.turn.replied and known.length == len(known.turn.client)
    return ends_open and replies == [0]


def plan(
    transcript: Transcript, tools: Sequence[Any] | None, known: Known | None, latest: Turn | None, rules: Rules
) -> PromptPlan:
    """What to send for a transcript.

    Args:
        transcript: what came.
        tools: the request's tools as they came, None where it has none.
        known: what the ledger found; None when it knows no prefix.
        latest: the turn to compare with where the history was changed; None when there is none.
        rules: what may be done.

    Raises:
        RequestError: the tools cannot be used.
    """
    if known is None and latest is None:
        return _plan_anew(transcript, tools, rules)
    base: Turn | None = None
    kept: list[SentMessage] = []
    breaks: list[PrefixBreak] = []
    if known is not None and (continues(known, transcript) or latest is None):
        base, kept = known.turn, _covered(known)
    elif latest is not None:
        base = latest
        kept, breaks = _aligned(latest, transcript, rules)
    done = {one.source for one in kept}
    fresh = [_laid_out(message, at, rules) for at, message in enumerate(transcript.messages) if at not in done]
    sent = (
        _in_order(kept, fresh)
        if rules.replay
        else [SentMessage(m.wire, at) for at, m in enumerate(transcript.messages)]
    )
    sent_tools, form, tool_break, tool_heals = _tools(tools, base, rules)
    if tool_break is not None and base is not None:
        # Tools stand before every message: nothing behind them can be read, and no other break matters.
        breaks = [replace(tool_break, lost_tokens=sum(rules.estimate(one.wire) for one in base.sent))]
    return PromptPlan(
        sent=tuple(sent),
        tools=sent_tools,
        replayed=_common(base.sent if base else (), sent),
        breaks=tuple(breaks[:1]),
        healed=(*tool_heals, *_healed(base, kept, transcript)) if rules.replay and base else (),
        reports=tuple(breaks[1:]),
        state={**(base.state if base else {}), "tools_form": form},
        epoch=base.epoch if base else 0,
    )


def _plan_anew(transcript: Transcript, tools: Sequence[Any] | None, rules: Rules) -> PromptPlan:
    """What to send for a transcript of which nothing is known."""
    laid_out, form, _, _ = _tools(tools, None, rules)
    if rules.replay:
        sent = tuple([_laid_out(message, at, rules) for at, message in enumerate(transcript.messages)])
    else:
        sent = tuple([SentMessage(message.wire, at) for at, message in enumerate(transcript.messages)])
    return PromptPlan(sent, laid_out, 0, state={"tools_form": form})


def _covered(known: Known) -> list[SentMessage]:
    """What was sent for the known prefix: up to the first message that stands for a later one."""
    kept: list[SentMessage] = []
    for one in known.turn.sent:
        if one.source is not None and one.source >= known.length:
            break
        kept.append(one)
    return kept


def _aligned(latest: Turn, transcript: Transcript, rules: Rules) -> tuple[list[SentMessage], list[PrefixBreak]]:
    """What was sent for the messages that mean the same as before, and a break for each difference."""
    found = align(latest.client, transcript.messages, patterns=rules.patterns)
    behind: dict[int, list[SentMessage]] = {}
    source = -1
    for one in latest.sent:
        source = source if one.source is None else one.source
        behind.setdefault(source, []).append(one)
    kept = [
        replace(one, source=None if one.source is None else after)
        for before, after in found.pairs
        for one in behind.get(before, ())
    ]
    breaks: list[PrefixBreak] = []
    for difference in found.differences:
        first = difference.before if difference.before is not None else difference.at
        lost = sum(rules.estimate(one.wire) for source, ones in behind.items() if source >= first for one in ones)
        breaks.append(
            PrefixBreak(
                difference.cause,
                "client",
                difference.at,
                difference.part,
                difference.character,
                0 if breaks else lost,
                difference.detail,
            )
        )
    return kept, breaks


def _laid_out(message: Message, at: int, rules: Rules) -> SentMessage:
    """A message that is sent for the first time."""
    tokens, wire = rules.control_tokens, message.wire
    if tokens is None:
        return SentMessage(wire, at)
    text = wire.get("content")
    if len(wire) == _PLAIN_KEYS and isinstance(text, str) and not tokens.in_text(text):
        return SentMessage(wire, at)
    # Calls that the gateway has not seen a model write are a client's text like any other.
    calls = message.role == "assistant"
    return SentMessage(neutralize_message(wire, tokens, include_calls=calls)[0], at)


def _in_order(kept: Sequence[SentMessage], fresh: Sequence[SentMessage]) -> list[SentMessage]:
    """Both by the message they stand for; what stands for none stays behind the one before it."""
    made: list[SentMessage] = []
    rest = list(reversed(fresh))
    for one in kept:
        while one.source is not None and rest and rest[-1].source is not None and rest[-1].source < one.source:
            made.append(rest.pop())
        made.append(one)
    return made + rest[::-1]


def _tools(
    tools: Sequence[Any] | None, base: Turn | None, rules: Rules
) -> tuple[Tools | None, str, PrefixBreak | None, tuple[Healed, ...]]:
    """The tools to send, the digest of their spelling, and how they differ from the base turn's."""
    form = _NO_TOOLS_FORM if tools is None else blake3(to_json(tools)).hexdigest()
    if tools is None:
        laid_out = None
    else:
        clean = [neutralize_value(tool, rules.control_tokens) for tool in tools] if rules.control_tokens else tools
        laid_out = canonical_tools(clean) if rules.canonical_tools and rules.replay else tuple(clean)
    if base is None:
        return laid_out, form, None, ()
    if to_json(laid_out) == to_json(base.tools):
        respelled = rules.replay and base.state.get("tools_form", form) != form
        return base.tools, form, None, (Healed("tools", -1),) if respelled else ()
    change = compare_tools(base.tools, laid_out)
    words = change.words if change is not None else "the tools differ"
    return laid_out, form, PrefixBreak("tools_changed", "client", -1, detail=words), ()


def _healed(base: Turn | None, kept: Sequence[SentMessage], transcript: Transcript) -> tuple[Healed, ...]:
    """What the client now spells in another way than when it was first sent."""
    by_digest = {message.digest: message for message in base.client} if base else {}
    found: list[Healed] = []
    for one in kept:
        now = transcript.messages[one.source] if one.source is not None else None
        before = by_digest.get(now.digest) if now else None
        if now is not None and before is not None and before.form != now.form:
            found += [Healed(word, one.source or 0) for word in heals(before, now)]
    return tuple(found)


def _common(before: Sequence[SentMessage], now: Sequence[SentMessage]) -> int:
    """How many messages at the start are sent as they were."""
    count = 0
    for one, two in zip(before, now, strict=False):
        if one.wire is not two.wire and one.wire != two.wire:
            break
        count += 1
    return count
