"""A replay on a gateway: as a client, over HTTP. What the engine says is what the client sends back."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

from context.errors import EngineUnavailable, RequestError
from context.policies.choice import POLICY_HEADER
from metrics.experiment_client import Answer, GatewayClient
from metrics.replay.figures import EngineKind, TurnFigures
from metrics.replay.images import TraceImages
from metrics.replay.trace import Trace, TraceTurn, Wire

# A reply is as long as the trace's, in words; a client's own bound would stand here.
_MOST_REPLY_TOKENS = 512
_MARK_DIGITS = 12


class GatewayTarget:
    """A running gateway. `client` must be connected.

    Raises (from `open`):
        EngineUnavailable: there is none, or its engine is not ready.
    """

    def __init__(self, client: GatewayClient, images: TraceImages, engine: EngineKind, model: str) -> None:
        self._client, self._images, self._model = client, images, model
        self._engine: EngineKind = engine

    @property
    def engine(self) -> EngineKind:
        """See `Target.engine`."""
        return self._engine

    @classmethod
    async def open(cls, client: GatewayClient, images: TraceImages) -> GatewayTarget:
        """Ask the gateway what answers there."""
        engine = (await client.state())["engine"]
        if engine["state"] != "ready":
            raise EngineUnavailable("The engine is not ready yet; try again when /health/ready says so.")
        if not engine["models"]:
            raise EngineUnavailable("The engine does not say which model it serves.")
        return cls(client, images, "simulated" if engine["kind"] == "fake" else "vllm", engine["models"][0])

    @asynccontextmanager
    async def session(self, trace: Trace, policy: str) -> AsyncGenerator[GatewaySession]:
        """See `Target.session`."""
        yield GatewaySession(self._client, self._model, policy)

    async def floor(self, trace: Trace, messages: Sequence[Wire]) -> int | None:
        """See `Target.floor`. The engine counts, and refuses what is longer than its context."""
        try:
            written = await self._images.written(await self._images.resolved(messages))
            body: dict[str, Any] = {"model": self._model, "messages": marked(written, _mark(0))}
            if (tools := trace.turns[-1].tools) is not None:
                body["tools"] = list(tools)
            return len(await self._client.tokens(body))
        except (EngineUnavailable, RequestError):
            return None


class GatewaySession:
    """A conversation over HTTP.

    Its messages begin with a mark of its own, so that neither the gateway's ledger nor the engine's caches know them.
    """

    def __init__(self, client: GatewayClient, model: str, policy: str) -> None:
        self._client, self._model, self._policy = client, model, policy
        number = random.SystemRandom().getrandbits(64)
        self._mark, self._name = _mark(number), f"replay-{number:016x}"
        self.asked: list[list[Wire]] = []

    async def ask(self, turn: TraceTurn, messages: Sequence[Wire]) -> tuple[TurnFigures, Wire]:
        """See `Session.ask`. What the gateway refuses at the very first turn it refuses for good.

        Raises:
            EngineUnavailable: see `Session.ask`.
        """
        sent = marked(messages, self._mark)
        self.asked.append(sent)
        body: dict[str, Any] = {"model": self._model, "messages": sent, "temperature": 0, "seed": 0}
        body["max_tokens"] = _reply_tokens(turn.reply)
        if turn.tools is not None:
            body |= {"tools": list(turn.tools), "tool_choice": "none"}
        try:
            answer = await self._client.chat(
                "gateway", body, {POLICY_HEADER: self._policy, "x-stillframe-conversation": self._name}
            )
        except EngineUnavailable as error:
            if turn.number == 1:
                raise
            return TurnFigures(turn.number, refused=error.message), turn.reply
        # A model that was told to call nothing has called nothing: the client goes on as the trace says.
        reply = turn.reply if turn.reply.get("tool_calls") else {"role": "assistant", "content": answer.text}
        return _figures(turn.number, answer), reply


def marked(messages: Sequence[Wire], mark: str) -> list[Wire]:
    """The messages with a mark at the very beginning."""
    first = messages[0]
    content: Any = first.get("content")
    if isinstance(content, str):
        return [{**first, "content": mark + content}, *messages[1:]]
    parts: list[Any] = [{"type": "text", "text": mark}, *cast("list[Any]", content or [])]
    return [{**first, "content": parts}, *messages[1:]]


def _mark(number: int) -> str:
    """Digits apart: every mark has as many tokens as any other."""
    return f"Session {' '.join(f'{number % 10**_MARK_DIGITS:0{_MARK_DIGITS}}')}.\n"


def _reply_tokens(reply: Wire) -> int:
    content: Any = reply.get("content")
    return min(_MOST_REPLY_TOKENS, max(1, len(content.split()) if isinstance(content, str) else 1))


def _figures(number: int, answer: Answer) -> TurnFigures:
    broken = answer.headers.get("x-stillframe-break", "").partition(";")[0]
    if number > 1 and answer.headers.get("x-stillframe-turn") == "1":
        # Nothing of the conversation was found again.
        broken = "cold"
    usage = answer.usage
    return TurnFigures(
        turn=number,
        prompt_tokens=usage.prompt_tokens,
        read_tokens=usage.read_tokens,
        write_tokens=usage.write_tokens,
        uncached_tokens=usage.uncached_tokens,
        visual_tokens=usage.visual_tokens,
        broken=broken or None,
        ttft_seconds=answer.ttft_seconds,
    )
