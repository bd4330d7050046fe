"""Sessions of a client that resends its history, over a real ledger in memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import to_json

from context.conversations import Begun, Conversations, Summarize
from context.images.base import ImageRef
from context.layout.names import marker
from context.ledger import Ledger
from context.plan import SentMessage
from context.policies.base import Policy, Request
from context.policies.keep import STABLE
from context.transcript import ImagePart, Message

Wire = dict[str, Any]
SYSTEM: Wire = {"role": "system", "content": "You use a computer."}
_DEFAULT = Request()


def shot(number: int) -> ImagePart:
    """A screenshot; equal numbers are equal pixels."""
    return ImagePart(ImageRef(f"{number:064x}", 1280, 800, "image/png", 9000))


def text(words: str) -> Wire:
    return {"type": "text", "text": words}


def named(number: int) -> Wire:
    """The text part that stands for a screenshot that was evicted."""
    return text(marker(shot(number).ref))


def user(words: str, *shots: int) -> Wire:
    return {"role": "user", "content": [*map(shot, shots), text(words)] if shots else words}


def calls(*ids: str) -> Wire:
    function = {"name": "click", "arguments": "{}"}
    return {"role": "assistant", "tool_calls": [{"id": one, "type": "function", "function": function} for one in ids]}


def result(call: str, *shots: int) -> Wire:
    return {"role": "tool", "tool_call_id": call, "content": [text("done"), *map(shot, shots)]}


def old_call(name: str) -> Wire:
    """A call in the API's older form, which has no id."""
    return {"role": "assistant", "content": None, "function_call": {"name": name, "arguments": "{}"}}


def old_result(name: str, *shots: int) -> Wire:
    return {"role": "function", "name": name, "content": [text("done"), *map(shot, shots)]}


def called(wire: Mapping[str, Any]) -> set[str]:
    """What a message calls: ids, and in the older form the name."""
    ids = {call["id"] for call in wire.get("tool_calls") or ()}
    return ids | ({wire["function_call"]["name"]} if wire.get("function_call") else set())


def answered(wire: Mapping[str, Any]) -> set[str]:
    """The call that a message is the result of."""
    if wire["role"] not in ("tool", "function"):
        return set()
    return {wire["tool_call_id"] if wire["role"] == "tool" else wire["name"]}


def asked_now(messages: Sequence[Message]) -> list[int]:
    """What no policy may touch: the last user message with those that lead up to it, what stands behind the last reply,
    and the calls and results that go with it."""
    wires = [message.wire for message in messages]
    users = [at for at, wire in enumerate(wires) if wire["role"] == "user"]
    apart = [at for at, wire in enumerate(wires) if wire["role"] in ("assistant", "tool", "function")]
    first = max((at for at in apart if at < users[-1]), default=-1) if users else -1
    question = [at for at in users if at > first]
    end = len(wires)
    while end and wires[end - 1]["role"] == "assistant" and not called(wires[end - 1]):
        end -= 1
    reply = max((at for at in range(end) if wires[at]["role"] == "assistant"), default=-1)
    ids = called(wires[reply]) if reply >= 0 else set[str]()
    ids = ids.union(*(answered(wire) for wire in wires[reply + 1 :]))
    callers = [at for at in range(reply + 1) if not ids.isdisjoint(called(wires[at]))]
    grouped = {
        at
        for caller in callers
        for at in range(caller, len(wires))
        if at == caller or not called(wires[caller]).isdisjoint(answered(wires[at]))
    }
    return sorted({*question, *grouped, *range(reply + 1, len(wires))})


@dataclass
class Session:
    """A client and the gateway's context for it. `history` is what the client resends, and may be changed."""

    conversations: Conversations
    policy: Policy = STABLE
    request: Request = _DEFAULT
    history: list[Wire] = field(default_factory=list[Wire])
    last: Begun | None = None
    summarize: Summarize | None = None

    async def ask(self, *new: Wire, reply: str | Wire | None = "ok") -> Begun:
        """One turn: what was planned for it. With no reply the turn was aborted."""
        self.history += new
        begun = await self.conversations.begin(
            list(self.history),
            None,
            tenant="one",
            key=b"one",
            policy=self.policy,
            request=self.request,
            conversation="c",
            summarize=self.summarize,
        )
        await self.answer(begun, reply)
        return begun

    async def answer(self, begun: Begun, reply: str | Wire | None) -> None:
        accepted = await self.conversations.accept(begun)
        if reply is not None:
            message: Wire = {"role": "assistant", **({"content": reply} if isinstance(reply, str) else reply)}
            await self.conversations.answer(accepted, message)
            self.history.append(message)
        self.last = begun

    async def steps(self, first: int, last: int) -> list[Begun]:
        """Steps of a GUI agent, each with its own screenshot."""
        return [await self.ask(user(f"step {number}", number), reply=f"did {number}") for number in range(first, last)]


@asynccontextmanager
async def session(policy: Policy, request: Request = _DEFAULT, *history: Wire) -> AsyncGenerator[Session]:
    """A session with its own ledger."""
    ledger = await Ledger.open(None)
    yield Session(Conversations(ledger), policy, request, list(history))
    await ledger.close()


def spelled(sent: Sequence[SentMessage]) -> list[bytes]:
    """Each message as bytes, images by id."""

    def plain(value: Any) -> Any:
        return ["image", value.ref.image_id, value.detail] if isinstance(value, ImagePart) else str(value)

    return [to_json(one.wire, fallback=plain) for one in sent]


def shots(begun: Begun) -> list[int]:
    """The screenshots that are sent, in order."""
    return [int(image.ref.image_id, 16) for one in begun.plan.sent for image in one.images]


def brief(begun: Begun) -> list[tuple[str, str, int]]:
    """The break, if any: cause, actor and message."""
    return [(one.cause, one.actor, one.message) for one in begun.plan.breaks]


def same_start(begun: Begun) -> int:
    """How many messages are sent byte for byte as in the turn that this one goes on from."""
    before, now = spelled(begun.before), spelled(begun.plan.sent)
    differs = (at for at, (one, two) in enumerate(zip(before, now, strict=False)) if one != two)
    return next(differs, min(len(before), len(now)))
