"""A turn's way through the context: found in the ledger, planned, kept.

begin    what to send for a transcript, and which turn of which conversation it is
draft    while the engine works: what keeping the turn takes, so far as it can be done without the reply
accept   the engine has taken it: from now on the turn is found
answer   the reply is whole: it belongs to the history from now on
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from blake3 import blake3

from context.frozen import frozen
from context.identity import is_surely, resembles
from context.layout.control import ControlTokens, neutralize_message
from context.ledger import Draft, Found, Ledger, NewReply, NewTurn
from context.plan import PromptPlan, SentMessage, SummaryRequest, Turn
from context.planner import OWN_CHOICE, Known, continues, plan
from context.policies.base import Policy, Request
from context.separation import EXACT, Allowance, allowed_before
from context.transcript import Transcript, chain_after, message_of, transcript

# Keys of a reply that come back in a history; what else an engine says of it (reasoning, annotations) mostly does not.
_KEPT_OF_REPLY = ("content", "tool_calls", "refusal")
_NAME_CHARS = 32
# Given what to sum up and the conversation's name, the text; None where it could not be made.
Summarize = Callable[[SummaryRequest, str], Awaitable[str | None]]
# Given a conversation's name and the policy of its turn before, None for a new one.
Assign = Callable[[str, str | None], tuple[Policy, Request]]
_DEFAULT = Request()


@frozen
class Begun:
    """A turn that was planned.

    `number` counts the turns of its branch of the conversation, from 1. `turn` is there once it was accepted. `before`
    is what the turn that it goes on from had sent, until this one is accepted; `allowed_before` is what that one
    allowed of approximate KV of images. `control_tokens` are those that no text may hold.
    """

    tenant: str
    conversation: str
    number: int
    transcript: Transcript
    plan: PromptPlan
    parent: int | None
    policy: str
    turn: Turn | None = None
    before: tuple[SentMessage, ...] = ()
    allowed_before: Allowance = EXACT
    control_tokens: ControlTokens | None = None


class Conversations:
    """The conversations of one gateway, in one ledger. Called from one event loop."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def begin(
        self,
        wires: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None,
        *,
        tenant: str,
        key: bytes,
        policy: Policy,
        request: Request = _DEFAULT,
        conversation: str | None = None,
        is_shared: bool = False,
        summarize: Summarize | None = None,
        assign: Assign | None = None,
    ) -> Begun:
        """Plan a turn.

        Args:
            wires: the request's messages, checked, each image part an `ImagePart`.
            tools: as they came.
            tenant, key: whose it is; the key keeps the digests of tenants apart.
            policy: what may be done, and how the context shrinks.
            request: what else a plan needs to know.
            conversation: the client's own name for it; by content where there is none.
            is_shared: others may have the same name: it says where to look, and proves nothing.
            summarize: makes a summary that the policy asks for; the plan does without where it gives none.
            assign: which policy and request it is for this conversation, instead of the two above.

        Raises:
            RequestError: the tools cannot be used.
        """
        came = transcript(wires, key)
        found = await self._ledger.find(tenant, came.chain, came.messages)
        known = Known(found.turn, found.length, found.at_reply) if found else None
        latest, is_sure = None, True
        if known is None or not continues(known, came):
            latest, is_sure = await self._compared(tenant, came, found, conversation, is_shared=is_shared)
        base = latest if latest is not None else known.turn if known else None
        if conversation is None:
            conversation = base.conversation if base is not None else _name(came, key)
        if assign is not None:
            policy, request = assign(
                _name(came, key) if is_shared else conversation, _policy_of(base, conversation, is_shared=is_shared)
            )
        number = _number(known, latest, came)
        made = plan(came, tools, known, latest, policy, request, is_sure=is_sure, number=number)
        if made.summary is not None and summarize is not None:
            text = await summarize(made.summary, conversation)
            if text is not None:
                made = plan(came, tools, known, latest, policy, request, is_sure=is_sure, number=number, summary=text)
        if base is None:
            return Begun(
                tenant, conversation, number, came, made, None, policy.name, control_tokens=policy.rules.control_tokens
            )
        return Begun(
            tenant,
            conversation,
            number,
            came,
            made,
            base.id,
            policy.name,
            before=base.sent,
            allowed_before=allowed_before(base),
            control_tokens=policy.rules.control_tokens,
        )

    def draft(self, begun: Begun) -> Draft | None:
        """A turn made ready for `accept`, which may never come. None where that has to be done there."""
        return self._ledger.draft(begun.tenant, _new_turn(begun))

    async def accept(self, begun: Begun, message: Mapping[str, Any] | None = None, draft: Draft | None = None) -> Begun:
        """Keep a turn that the engine has taken; with the engine's reply, whole, where that is there already. `draft`
        is of the same turn."""
        reply = None if message is None else _reply(begun, message)
        turn = await self._ledger.commit(begun.tenant, _new_turn(begun), reply, draft)
        # What was sent before is needed no more, and a turn that streams lives long.
        return Begun(
            begun.tenant,
            begun.conversation,
            begun.number,
            begun.transcript,
            begun.plan,
            begun.parent,
            begun.policy,
            turn,
            allowed_before=begun.allowed_before,
            control_tokens=begun.control_tokens,
        )

    async def answer(self, begun: Begun, message: Mapping[str, Any]) -> None:
        """Keep the reply to a turn that was accepted. `message` is the engine's, whole."""
        assert begun.turn is not None, "only what was accepted is answered"
        await self._ledger.reply(begun.tenant, begun.turn, _reply(begun, message))

    async def _compared(
        self, tenant: str, came: Transcript, found: Found | None, conversation: str | None, *, is_shared: bool
    ) -> tuple[Turn | None, bool]:
        """The turn that a changed history is compared with, and whether it surely is of the same conversation."""
        answered = None
        named = conversation is not None and not is_shared
        if not named:
            # A client that cut or edited the beginning still has the last reply.
            last = next((one for one in reversed(came.messages) if one.role == "assistant"), None)
            answered = None if last is None else await self._ledger.answered(tenant, last.digest)
            if answered is not None and is_surely(answered, came.messages, named=False):
                return answered, True
        name = conversation if conversation is not None else found.turn.conversation if found else None
        latest = None if name is None else await self._ledger.latest(tenant, name)
        if latest is not None and not is_shared:
            return latest, is_surely(latest, came.messages, named=named)
        if latest is not None and is_surely(latest, came.messages, named=False):
            return latest, True
        alike = (one for one in (answered, latest) if one is not None and resembles(one, came.messages))
        return next(alike, None), False


def _new_turn(begun: Begun) -> NewTurn:
    return NewTurn(
        conversation=begun.conversation,
        parent=begun.parent,
        client=begun.transcript.messages,
        chain=begun.transcript.chain[-1],
        sent=begun.plan.sent,
        tools=begun.plan.tools,
        state=begun.plan.state,
        epoch=begun.plan.epoch,
        policy=begun.policy,
        number=begun.number,
    )


def _reply(begun: Begun, message: Mapping[str, Any]) -> NewReply:
    kept = {key: message[key] for key in _KEPT_OF_REPLY if message.get(key) is not None}
    reply = message_of({"role": "assistant", "content": None, **kept})
    chain = chain_after(begun.transcript.chain[-1], reply.digest)
    # A model can be brought to spell a control token, which would be one when it is read again.
    sent = reply.wire if begun.control_tokens is None else neutralize_message(reply.wire, begun.control_tokens)[0]
    return NewReply(reply, SentMessage(sent, len(begun.transcript)), chain)


def _policy_of(base: Turn | None, conversation: str, *, is_shared: bool) -> str | None:
    """The policy that a conversation stays with; None where it has none yet."""
    # The same beginning may stand in another conversation; and a name that many have says nothing of one.
    if base is None or not (is_shared or base.conversation == conversation) or base.state.get(OWN_CHOICE):
        return None
    return base.policy


def _number(known: Known | None, latest: Turn | None, came: Transcript) -> int:
    if latest is not None:
        return latest.number + 1
    if known is None:
        return 1
    # The same request again is the same turn.
    again = not known.at_reply and known.length == len(came)
    return known.turn.number if again else known.turn.number + 1


def content_name(wires: Sequence[Mapping[str, Any]], key: bytes) -> str:
    """The name that a conversation of these messages has where its client gives it none."""
    return _name(transcript(wires, key), key)


def _name(came: Transcript, key: bytes) -> str:
    """A conversation's name by its beginning: everything up to and with the first user message."""
    head = next((at for at, message in enumerate(came.messages) if message.role == "user"), len(came) - 1)
    return blake3(b"stillframe-conversation\0" + key + came.chain[head]).hexdigest()[:_NAME_CHARS]
