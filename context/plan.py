"""What is sent: the types that the ledger keeps, policies make and the engine is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from context.frozen import frozen
from context.transcript import ImagePart, Message, parts_of

Actor = Literal["client", "policy", "engine", "template", "gateway"]
# DESIGN.md's list; those that need the engine's figures are attributed after the turn.
Cause = Literal[
    "cold",
    "client_edit",
    "client_window",
    "volatile_text",
    "tools_changed",
    "policy_eviction",
    "summary",
    "engine_eviction",
    "template",
    "salt",
    "below_block",
    "engine_unreported",
]


# Who put a message there: the client, or the gateway, for the reason it says. `stale` is a message that the client has
# cut from its history and that is sent until the policy shrinks it. `tail` is in no ledger.
Origin = Literal["client", "hoisted", "marker", "stale", "summary", "tail"]


@frozen
class SentMessage:
    """One message as it goes to the engine, byte for byte the same in every later turn that replays it.

    `source` is the index, in the transcript of the turn that sent it, of the client's message that it stands for;
    None for what the gateway itself put in, and `origin` then says why.
    """

    wire: Mapping[str, Any]
    source: int | None
    origin: Origin = "client"

    @property
    def images(self) -> tuple[ImagePart, ...]:
        """Its images in order."""
        return tuple(part for part in parts_of(self.wire) if isinstance(part, ImagePart))


@dataclass(frozen=True, slots=True)
class PrefixBreak:
    """Where and why this prompt stops matching what was sent before.

    Attributes:
        cause, actor: why, and who did it.
        message: index in the client's messages of this turn; -1 for the tools.
        part: index of the content part, None where the message as a whole is meant.
        character: offset in the part's text, None where it is not about text.
        lost_tokens: estimate of the tokens that stood behind this place in what was sent before.
        detail: what differs, in words for people; holds no text of the client.
    """

    cause: Cause
    actor: Actor
    message: int
    part: int | None = None
    character: int | None = None
    lost_tokens: int = 0
    detail: str = ""

    @property
    def place(self) -> str:
        """The place as OpenAI's errors name it."""
        if self.message < 0:
            return "tools"
        at = f"messages[{self.message}]"
        return at if self.part is None else f"{at}.content[{self.part}]"


@dataclass(frozen=True, slots=True)
class Healed:
    """A lossless difference that was undone by sending what was sent before. `what` is a word such as `encoding`,
    `key_order`, `content_form`, `arguments`, `tools`, `frozen`, `tail`, `slot_match`; or `control_tokens`, which were
    broken up."""

    what: str
    message: int


@dataclass(frozen=True, slots=True)
class SummaryRequest:
    """A summary that a policy asks the engine for.

    Attributes:
        messages: what is to be summed up, as it was sent, with the instruction as the last one.
        max_tokens: how long it may be.
        tools: as they are sent, for they stand in front of the messages.
    """

    messages: tuple[Mapping[str, Any], ...]
    max_tokens: int
    tools: tuple[Mapping[str, Any], ...] | None = None


@frozen
class PromptPlan:
    """What goes to the engine for one turn.

    Attributes:
        sent: extends the parent turn's sent form unless `breaks` says where it does not.
        tools: as they are sent.
        replayed: how many messages at the start of `sent` are replayed as they were.
        breaks: where it stops extending it, at most one.
        healed: lossless differences that were undone.
        reports: other differences, behind the break.
        state, epoch: see `Turn`.
        tail: content parts that stand behind everything in this turn alone; no later turn replays them.
        summary: a summary that would make the next plan shorter.
        unread_from: message as sent, and part of it, from which on the engine reads nothing of what is repeated, for
            this turn allows other KV of images than the one before; None where it reads all. `breaks` says so, too,
            where nothing else comes first.
    """

    sent: tuple[SentMessage, ...]
    tools: tuple[Mapping[str, Any], ...] | None
    replayed: int
    breaks: tuple[PrefixBreak, ...] = ()
    healed: tuple[Healed, ...] = ()
    reports: tuple[PrefixBreak, ...] = ()
    state: Mapping[str, Any] = field(default_factory=dict[str, Any])
    epoch: int = 0
    tail: tuple[Any, ...] = ()
    summary: SummaryRequest | None = None
    unread_from: tuple[int, int] | None = None


@frozen
class Turn:
    """A turn as the ledger gives it back.

    Attributes:
        id: its row; unique in a ledger.
        conversation, number: which conversation, and the turn's number in its branch, from 1.
        client: the client's messages of the request as they were first seen, and the reply as its last one when
            `replied`.
        sent: what was sent for them, and the reply as the engine made it when `replied`.
        tools: as they were sent.
        state, epoch: the policy's memory, and how often it has rewritten what was sent.
    """

    id: int
    conversation: str
    number: int
    client: tuple[Message, ...]
    sent: tuple[SentMessage, ...]
    tools: tuple[Mapping[str, Any], ...] | None
    replied: bool
    state: Mapping[str, Any] = field(default_factory=dict[str, Any])
    epoch: int = 0
    policy: str = ""
