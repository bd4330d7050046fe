"""What a policy is: which liberties the planner may take, and how the context shrinks.

The planner (`context/planner.py`) replays what was sent and lays out what is new. A policy then sees the whole and may
rewrite it, at one place at most. Policies are pure: what they have to remember stands in what they made, or in `state`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from context.alignment.base import SlotMatch
from context.estimates import message_tokens
from context.frozen import frozen
from context.layout.control import DEFAULT_TOKENS, ControlTokens
from context.layout.hoist import ToolImages
from context.layout.patterns import BUILTIN, Patterns
from context.plan import PrefixBreak, SentMessage, SummaryRequest
from context.separation import EXACT, Allowance
from context.transcript import SYSTEM_ROLES, ImagePart, Message

Estimate = Callable[[Mapping[str, Any]], int]
VolatileText = Literal["report", "freeze", "tail"]


@dataclass(frozen=True, slots=True)
class Rules:
    """What the planner may do.

    Attributes:
        replay: send again what was sent; without it messages go as they come, and differences are only reported.
        canonical_tools: send tools in one order and spelling.
        control_tokens: tokens that no text may hold; None leaves texts as they are.
        patterns: what counts as volatile text.
        volatile: what to do with it: only say where it broke the prefix (`report`), keep the values that were sent
            (`freeze`), or give today's values at the tail, with a stable phrase in their place (`tail`).
        volatile_roles: of which messages `tail` takes the values out. In others, those that were sent stay.
        tool_images: where images of tool results go.
        slot_match: whether an image may stand for another one that was sent in the same slot; None leaves
            it to the request.
        defer_client_window: go on sending what the client has cut from its history, until the policy shrinks it.
        images_at_tail: the policy shows the images of a turn at its tail, and their names where they stood.
    """

    replay: bool = True
    canonical_tools: bool = True
    control_tokens: ControlTokens | None = DEFAULT_TOKENS
    patterns: Patterns = BUILTIN
    volatile: VolatileText = "report"
    volatile_roles: frozenset[str] = SYSTEM_ROLES
    tool_images: ToolImages = "pass"
    slot_match: SlotMatch | None = None
    defer_client_window: bool = False
    images_at_tail: bool = False


@frozen
class Limits:
    """What the engine takes in one prompt; None where it does not say."""

    max_images: int | None = None
    max_prompt_tokens: int | None = None


@frozen
class Request:
    """What a plan needs to know besides the messages.

    Attributes:
        limits: the engine's.
        pins: ids of images that stay, by the client's wish.
        estimate: prompt tokens of a message as it is sent.
        slot_match: stands in for the rules' own, for what may match depends on whose images they are.
        is_own_choice: the request itself chose its policy, which says nothing of the conversation's later turns.
        allowance: what may be approximate of the KV of its images.
    """

    limits: Limits = field(default_factory=Limits)
    pins: frozenset[str] = frozenset()
    estimate: Estimate = message_tokens
    slot_match: SlotMatch | None = None
    is_own_choice: bool = False
    allowance: Allowance = EXACT


@frozen
class View:
    """What a policy sees.

    Attributes:
        client: all messages of the request.
        sent: what would be sent for them: replayed first, then new. `sent[i].source` is an index in `client`.
        before: what was sent in the turn that this one goes on from; empty when there is none.
        state: what the policy left there.
        broken_at: index in `sent` from which nothing can be read, for the client has changed it; None where it extends
            what was sent. A policy that shrinks behind it pays nothing.
        number: the turn's number in its branch of the conversation, from 1.
        request: what else is known.
        summary: the text that was asked for with `Shaped.summary`; None before it was made, and when that failed.
        tools: what is sent of them, as JSON; empty without any.
        waiting: images that stand behind the tail in any case, for their tool group is still open.
    """

    client: tuple[Message, ...]
    sent: tuple[SentMessage, ...]
    before: tuple[SentMessage, ...] = ()
    state: Mapping[str, Any] = field(default_factory=dict[str, Any])
    broken_at: int | None = None
    number: int = 1
    request: Request = field(default_factory=Request)
    summary: str | None = None
    tools: bytes = b""
    waiting: tuple[ImagePart, ...] = ()


@frozen
class Shaped:
    """What a policy makes of it.

    Attributes:
        sent: what is sent and belongs to the history from now on.
        tail: content parts that stand last in this turn's prompt, and in no later one.
        broken: where the policy rewrote what was sent before, None where it did not. Its place is the message that
            the first rewritten one stands for.
        state: what the next turn's view gets; JSON.
        summary: a summary that the policy wants. Everything else holds for the case that there will be none.
    """

    sent: tuple[SentMessage, ...]
    tail: tuple[Any, ...] = ()
    broken: PrefixBreak | None = None
    state: Mapping[str, Any] = field(default_factory=dict[str, Any])
    summary: SummaryRequest | None = None


def part_tokens(part: Any, estimate: Estimate) -> int:
    """Prompt tokens that a content part adds to a message, by estimate."""
    bare: dict[str, Any] = {"role": "user", "content": []}
    return estimate({**bare, "content": [part]}) - estimate(bare)


class Policy(Protocol):
    """Decides what is sent. `name` and `version` say in records which one was in force."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def rules(self) -> Rules: ...

    def shape(self, view: View) -> Shaped:
        """What to send.

        Never touched is the current turn (`context/policies/current.py`): the last user message with those that lead up
        to it, and the last step, which is everything behind the model's last reply and the tool group that it belongs
        to. The steps before it that an agent has finished are history like any other. `reference` alone shows the
        images of the current turn in the tail. Nor are system messages, open tool groups and pinned images touched; no
        tool group is split, and nothing changes its place. Equal views give equal results.
        """
        ...


def break_at(view: View, index: int, cause: Literal["policy_eviction", "summary"], detail: str) -> PrefixBreak | None:
    """The break of a policy that rewrites `view.sent` from `index` on; None where nothing was sent before that it could
    break."""
    if index >= len(view.before):
        return None
    source = next((one.source for one in view.sent[index:] if one.source is not None), len(view.client) - 1)
    lost = sum(view.request.estimate(one.wire) for one in view.before[index:])
    return PrefixBreak(cause, "policy", source, lost_tokens=lost, detail=detail)
