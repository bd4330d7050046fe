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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from blake3 import blake3
from pydantic_core import to_json

from context.alignment import heals
from context.layout.control import neutralize_message, neutralize_value
from context.layout.tools import canonical_tools, compare_tools
from context.plan import Healed, PrefixBreak, PromptPlan, SentMessage, Turn
from context.policies.base import Policy, Request, Rules, Shaped, View
from context.replay import Replay, common, in_order, replay_changed, replay_prefix
from context.transcript import Message, Transcript

Tools = tuple[Mapping[str, Any], ...]

_NO_TOOLS_FORM = blake3(b"null").hexdigest()
# Role and content are all that most messages have: then the text alone has to be looked at.
_PLAIN_KEYS = 2
_DEFAULT = Request()


@dataclass(frozen=True, slots=True)
class Known:
    """What the ledger knows of a transcript: the turn that ends at its longest known prefix, and how long that is."""

    turn: Turn
    length: int
    at_reply: bool


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
    transcript: Transcript,
    tools: Sequence[Any] | None,
    known: Known | None,
    latest: Turn | None,
    policy: Policy,
    request: Request = _DEFAULT,
    *,
    number: int = 1,
    summary: str | None = None,
) -> PromptPlan:
    """What to send for a transcript.

    Args:
        transcript: what came.
        tools: the request's tools as they came, None where it has none.
        known: what the ledger found; None when it knows no prefix.
        latest: the turn to compare with where the history was changed; None when there is none.
        policy: what may be done, and how the context shrinks.
        request: what else counts.
        number: the turn's number in its branch.
        summary: the text that an earlier plan of the same asked for.

    Raises:
        RequestError: the tools cannot be used.
    """
    rules = policy.rules
    base, found = None, Replay([])
    if known is not None and (latest is None or continues(known, transcript)):
        base, found = known.turn, replay_prefix(known.turn, known.length)
    elif latest is not None:
        base, found = latest, replay_changed(latest, transcript, rules, request.estimate)
    laid_out = _sent(transcript, found.kept, rules)
    sent_tools, form, tool_break, tool_heals = _tools(tools, base, rules)
    before = base.sent if base is not None else ()
    same = common(before, laid_out)
    if tool_break is not None:
        # Tools stand before every message: nothing behind them can be read, and no other break matters.
        lost = sum(request.estimate(one.wire) for one in before)
        found = Replay(found.kept, [replace(tool_break, lost_tokens=lost)], found.deferred)
        same = 0
    view = View(
        client=transcript.messages,
        sent=tuple(laid_out),
        before=before,
        state=base.state.get("policy", {}) if base is not None and base.policy == policy.name else {},
        broken_at=same if base is not None and same < len(before) else None,
        number=number,
        request=request,
        summary=summary,
    )
    shaped = policy.shape(view)
    breaks, reports = _breaks(found, shaped)
    return PromptPlan(
        sent=shaped.sent,
        tools=sent_tools,
        replayed=common(before, shaped.sent),
        breaks=breaks,
        healed=(*tool_heals, *_healed(base, found.kept, transcript)) if rules.replay and base is not None else (),
        reports=reports,
        state={"tools_form": form, "policy": dict(shaped.state)} if shaped.state else {"tools_form": form},
        epoch=(base.epoch if base is not None else 0) + (shaped.broken is not None),
        tail=shaped.tail,
        summary=shaped.summary,
    )


def _sent(transcript: Transcript, kept: Sequence[SentMessage], rules: Rules) -> list[SentMessage]:
    """What is sent again, and what is sent for the first time."""
    if not rules.replay:
        return [SentMessage(message.wire, at) for at, message in enumerate(transcript.messages)]
    done = {one.source for one in kept}
    fresh = [_laid_out(message, at, rules) for at, message in enumerate(transcript.messages) if at not in done]
    return in_order(kept, fresh) if kept else fresh


def _breaks(found: Replay, shaped: Shaped) -> tuple[tuple[PrefixBreak, ...], tuple[PrefixBreak, ...]]:
    """The one that counts, which is the first, and the others."""
    all_of_them = list(found.breaks)
    if shaped.broken is not None:
        at = sum(one.message <= shaped.broken.message for one in all_of_them)
        all_of_them.insert(at, shaped.broken)
    return tuple(all_of_them[:1]), (*all_of_them[1:], *found.deferred)


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
