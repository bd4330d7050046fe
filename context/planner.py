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
from dataclasses import replace
from typing import Any

from blake3 import blake3
from pydantic_core import to_json

from context.alignment import heals
from context.frozen import frozen
from context.layout.control import neutralize_value
from context.layout.messages import lay_out
from context.layout.tools import canonical_tools, compare_tools
from context.plan import Healed, PrefixBreak, PromptPlan, Turn
from context.policies.base import Policy, Request, Rules, Shaped, View
from context.policies.limits import fit
from context.replay import Replay, common, replay_changed, replay_prefix
from context.separation import REUSE, salt_break, separated
from context.switch import LIBERTIES, liberties
from context.transcript import Transcript, message_of

Tools = tuple[Mapping[str, Any], ...]

_NO_TOOLS_FORM = blake3(b"null").hexdigest()
_DEFAULT = Request()
# In a turn's state: its request chose the policy.
OWN_CHOICE = "own_choice"


@frozen
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
    is_sure: bool = True,
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
        is_sure: `latest` is of this conversation; else nothing is sent of it that the client does not hold now.
        number: the turn's number in its branch.
        summary: the text that an earlier plan of the same asked for.

    Raises:
        RequestError: the tools cannot be used.
    """
    rules = _rules(policy, request)
    base, found = _replay(transcript, known, latest, rules, is_sure=is_sure)
    laid_out = lay_out(transcript, found, rules)
    the_tools = _tools(tools, base, rules)
    before = base.sent if base is not None else ()
    # Tools stand before every message: nothing behind them can be read.
    same = common(before, laid_out.sent) if the_tools.broken is None else 0
    state = _policy_state(base, policy)
    broken_at = same if same < len(before) else None
    asked = (number, request, summary, the_tools.spelled, laid_out.waiting)
    view = View(transcript.messages, laid_out.sent, before, state, broken_at, *asked)
    shaped = policy.shape(view)
    if rules.replay:
        shaped = fit(shaped, view)
    breaks, reports = _breaks(found, shaped, view, same, the_tools.broken, _switched_from(base, found, policy))
    replayed = common(before, shaped.sent)
    epoch = (base.epoch if base is not None else 0) + any(one.actor == "policy" for one in (*breaks, *reports))
    separation = separated(base, request.allowance, shaped.sent, 0 if the_tools.broken else replayed)
    if (salt := salt_break(separation, shaped.sent, before, transcript.messages, request.estimate)) is not None:
        # It stands in what is repeated: in front of every other one.
        breaks, reports = (salt,), (*breaks, *reports)
    return PromptPlan(
        sent=shaped.sent,
        tools=the_tools.sent,
        replayed=replayed,
        breaks=breaks,
        healed=(*the_tools.healed, *_healed(base, found, transcript), *laid_out.healed) if rules.replay else (),
        reports=reports,
        state=_state(the_tools.form, shaped, rules, request, separation.state),
        epoch=epoch,
        tail=(*shaped.tail, *laid_out.tail_of(shaped.sent, transcript, rules)),
        summary=None if shaped.summary is None else replace(shaped.summary, tools=the_tools.sent),
        unread_from=separation.place,
    )


def _rules(policy: Policy, request: Request) -> Rules:
    """What may be done, with what the request alone knows."""
    rules = policy.rules
    if rules.slot_match is None and request.slot_match is not None:
        return replace(rules, slot_match=request.slot_match)
    return rules


def _switched_from(base: Turn | None, found: Replay, policy: Policy) -> str | None:
    """The policy that was in force before, where it is another one."""
    return base.policy if base is not None and (found.is_switched or base.policy != policy.name) else None


def _replay(
    transcript: Transcript, known: Known | None, latest: Turn | None, rules: Rules, *, is_sure: bool
) -> tuple[Turn | None, Replay]:
    """The turn that this one goes on from, and what of it is sent again."""
    if known is not None and (latest is None or continues(known, transcript)):
        return known.turn, replay_prefix(known.turn, known.length, transcript, rules)
    if latest is not None:
        return latest, replay_changed(latest, transcript, rules, is_sure=is_sure)
    return None, Replay([])


def _state(
    tools_form: str, shaped: Shaped, rules: Rules, request: Request, reuse: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What the next turn has to know of this one."""
    made: dict[str, Any] = {"tools_form": tools_form}
    if shaped.state:
        made["policy"] = dict(shaped.state)
    if taken := liberties(rules):
        made[LIBERTIES] = sorted(taken)
    if request.is_own_choice:
        made[OWN_CHOICE] = True
    if reuse is not None:
        made[REUSE] = reuse
    return made


def _policy_state(base: Turn | None, policy: Policy) -> Mapping[str, Any]:
    """What the policy left behind; what another one did is nothing to it."""
    return base.state.get("policy", {}) if base is not None and base.policy == policy.name else {}


def _breaks(
    found: Replay,
    shaped: Shaped,
    view: View,
    same: int,
    tool_break: PrefixBreak | None,
    switched_from: str | None,
) -> tuple[tuple[PrefixBreak, ...], tuple[PrefixBreak, ...]]:
    """The one that counts, at the place where what is sent first differs from what was sent, and the others.

    Args:
        found, shaped, view: what was replayed, and what the policy made of it.
        same: how many messages were as before when the policy saw them.
        tool_break: how the tools differ.
        switched_from: the name of the policy that was in force before, where it is another one.
    """
    others = [*found.breaks, *([shaped.broken] if shaped.broken is not None else []), *found.deferred]
    before, replayed = view.before, common(view.before, shaped.sent)
    if tool_break is not None:
        first, place, replayed = tool_break, -1, 0
    elif replayed in (len(before), len(shaped.sent)):
        # It extends what was sent, or repeats its beginning: all of it can be read.
        return (), tuple(others)
    else:
        is_policy = replayed < same
        rest = (view if is_policy else shaped).sent[replayed:]
        place = next((one.source for one in rest if one.source is not None), len(view.client) - 1)
        # What was taken out may have stood where another message with the same words stands now.
        place = max([place, *(one.source + 1 for one in shaped.sent[:replayed] if one.source is not None)])
        if is_policy:
            words = "the policy rewrote what was sent"
            first = shaped.broken or PrefixBreak("policy_eviction", "policy", place, detail=words)
        else:
            first = _responsible(found, view, place, replayed, switched_from)
    if first is None:
        return (), tuple(others)
    reports = tuple(one for one in others if one is not first)
    lost = sum(view.request.estimate(one.wire) for one in before[replayed:])
    if first.message != place:
        first = replace(first, message=place, part=None, character=None)
    return (replace(first, lost_tokens=lost),), reports


def _responsible(found: Replay, view: View, place: int, replayed: int, switched_from: str | None) -> PrefixBreak | None:
    """The difference that brought about the first one in what is sent; None where the client has branched."""
    if message_of(view.before[replayed].wire).digest == view.client[place].digest:
        return PrefixBreak("client_edit", "client", place, detail="the message is spelled in another way")
    if switched_from is not None and place < found.unchanged:
        words = f"the policy in force before, {switched_from}, had sent it in another way"
        return PrefixBreak("policy_eviction", "policy", place, detail=words)
    in_front = [one for one in found.breaks if one.message <= place]
    # The nearest message, and in it the first place.
    last = max((one.message for one in in_front), default=None)
    if found.breaks or all(message.role != "assistant" for message in view.client[place:]):
        return next((one for one in found.breaks if last is None or one.message == last), None)
    words = "the client went back to what had been taken out, which is sent again"
    return PrefixBreak("client_edit", "client", place, detail=words)


@frozen
class _Tools:
    """The tools to send, as JSON, too; the digest of their spelling as they came, and how they differ from those that
    were sent before."""

    sent: Tools | None
    spelled: bytes
    form: str
    broken: PrefixBreak | None = None
    healed: tuple[Healed, ...] = ()


def _tools(tools: Sequence[Any] | None, base: Turn | None, rules: Rules) -> _Tools:
    if tools is None:
        laid_out, spelled, form = None, b"", _NO_TOOLS_FORM
        if base is None or base.tools is None:
            respelled = rules.replay and base is not None and base.state.get("tools_form", form) != form
            return _Tools(None, spelled, form, healed=(Healed("tools", -1),) if respelled else ())
    else:
        form = blake3(to_json(tools)).hexdigest()
        clean = [neutralize_value(tool, rules.control_tokens) for tool in tools] if rules.control_tokens else tools
        laid_out = canonical_tools(clean) if rules.canonical_tools and rules.replay else tuple(clean)
        spelled = to_json(laid_out)
        if base is None:
            return _Tools(laid_out, spelled, form)
    if laid_out is not None and spelled == to_json(base.tools):
        respelled = rules.replay and base.state.get("tools_form", form) != form
        return _Tools(base.tools, spelled, form, healed=(Healed("tools", -1),) if respelled else ())
    change = compare_tools(base.tools, laid_out)
    words = change.words if change is not None else "the tools differ"
    return _Tools(laid_out, spelled, form, PrefixBreak("tools_changed", "client", -1, detail=words))


def _healed(base: Turn | None, found: Replay, transcript: Transcript) -> tuple[Healed, ...]:
    """What the client now spells in another way than when it was first sent, and what else was undone."""
    by_digest = {message.digest: message for message in base.client} if base else {}
    made: list[Healed] = []
    for one in found.kept:
        now = transcript.messages[one.source] if one.source is not None else None
        before = by_digest.get(now.digest) if now else None
        if now is not None and before is not None and before.form != now.form:
            made += [Healed(word, one.source or 0) for word in heals(before, now)]
    return (*made, *found.healed)
