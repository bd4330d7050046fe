"""A chat request while it is served: what it asks for, its answer's head, and its record."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from app import asgi
from app.explain import (
    EXPLAIN_HEADER,
    PIN_HEADER,
    explanation,
    pinned_images,
    plan_headers,
    wants_explanation,
)
from app.gateway import Gateway
from app.image_reuse import REUSE_HEADER, asked_reuse, honoured, told_reuse
from app.sse import error_events
from app.wire import ChatCall
from context.conversations import Begun
from context.errors import EngineError, RequestError, StillframeError, place_of
from context.estimates import message_tokens
from context.layout.tail import with_tail
from context.ledger import Draft
from context.plan import SentMessage
from context.policies.base import Estimate
from context.policies.choice import POLICY_HEADER, Choices, LoadedPolicy
from context.reuse import Reuse
from context.separation import Allowance
from context.tenancy import Tenant
from metrics.records.made import Ended
from metrics.records.record import Outcome
from metrics.usage import Usage

_log = logging.getLogger(__name__)


def _request_id() -> str:
    # A name, and no secret: those that the system makes take ten times as long.
    return f"{random.getrandbits(96):024x}"


@dataclass(slots=True)
class ServedTurn:
    """One chat request while it is served, and what will be said of it."""

    gateway: Gateway
    send: asgi.Send
    request_id: str = field(default_factory=_request_id)
    began: float = field(default_factory=time.perf_counter)
    stream: bool = False
    include_usage: bool = False
    started: bool = False
    sends_events: bool = False
    outcome: Outcome | None = None
    usage: Usage = field(default_factory=Usage)
    secrets: tuple[str, ...] = ()
    first_byte: float | None = None
    begun: Begun | None = None
    draft: Draft | None = None
    not_available: tuple[str, ...] = ()
    policy: LoadedPolicy | None = None
    choices: Choices | None = None
    is_own_choice: bool = False
    model: str = ""
    explain: bool = False
    pins: frozenset[str] = frozenset()
    asked_reuse: Reuse | None = None
    allowed: Allowance | None = None
    estimate: Estimate = message_tokens
    tenant: Tenant | None = None
    record_id: int = 0
    before: tuple[SentMessage, ...] = ()
    answered: bool = False
    traceparent: str | None = None

    def heed(self, call: ChatCall, tenant: Tenant, scope: asgi.Scope) -> None:
        """Take in what the request says about how it wants to be served.

        Raises:
            RequestError: a header of ours holds what it cannot.
        """
        self.stream, self.include_usage, self.model = call.stream, call.include_usage, call.model
        self.explain = wants_explanation(asgi.one_header(scope, EXPLAIN_HEADER))
        self.pins = pinned_images(asgi.list_header(scope, PIN_HEADER))
        said = asgi.one_header(scope, REUSE_HEADER.encode())
        if said is not None:
            engine, allowed = self.gateway.engine, self.gateway.settings.reuse_header
            self.asked_reuse = asked_reuse(said, engine.info() if engine.health().ready else None, allowed=allowed)
        self.traceparent = asgi.header(scope, b"traceparent")
        asked = asgi.one_header(scope, POLICY_HEADER.encode())
        self.choices = self.gateway.policies.choose(model=self.model, tenant=tenant.name, header=asked)
        self.is_own_choice = asked is not None
        # Of several the conversation's is known when the conversation is.
        self.policy = self.choices.rest

    @property
    def reuse(self) -> Reuse | None:
        """What is allowed of approximate KV of images; None for exact KV alone. What the client says goes before its
        policy."""
        if self.asked_reuse is not None:
            return self.asked_reuse if self.asked_reuse.approximate else None
        return None if self.policy is None else self.policy.reuse

    @property
    def allowance(self) -> Allowance:
        """The same for its plan, which compares it with what the turn before allowed."""
        reuse = self.reuse
        known = None if reuse is None else honoured(reuse, self.gateway.engine.info())
        return Allowance(known, self.asked_reuse is not None, self.gateway.recorder.was_apart)

    def reuse_of(self, sent: Sequence[SentMessage]) -> Reuse | None:
        """What the engine is allowed for these messages; without an image there is nothing to be used again. Where it
        can do it, the turn's record waits for what it says came of it."""
        reuse = self.reuse
        if reuse is None or not any(one.images for one in sent):
            return None
        allowance = self.allowance
        self.allowed = None if allowance.reuse is None else allowance
        return reuse

    def draft_ahead(self) -> None:
        """Make the turn ready to be kept while the engine works on it, so far as that can be done. Never raises."""
        if self.begun is None or self.begun.turn is not None or self.outcome is not None:
            return
        try:
            self.draft = self.gateway.conversations.draft(self.begun)
        except Exception as error:
            # It is tried again where the turn is kept, with a client to be told.
            _log.warning("a turn could not be drafted, because of a fault at %s", place_of(error))

    async def start(self, status: int, content_type: bytes, length: int | None = None) -> None:
        """Send the answer's head. From here on an error can only be an event of the stream."""
        self.started = True
        headers = [(b"content-type", content_type), *self.headers()]
        self.sends_events = length is None
        if length is None:
            # Proxies must hand events on as they come.
            headers += [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
        else:
            headers.append((b"content-length", str(length).encode()))
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    def note_byte(self) -> None:
        """The engine has answered something: the first time counts. The head of a stream comes before any token."""
        if self.first_byte is None:
            self.first_byte = time.perf_counter()

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Response headers that every answer of a chat has."""
        found = [
            (b"x-request-id", self.request_id.encode()),
            (b"x-stillframe-policy", (self.policy or self.gateway.policies.default).name.encode()),
        ]
        if (reuse := self.allowance.reuse) is not None:
            found.append((REUSE_HEADER.encode(), told_reuse(reuse).encode()))
        if self.not_available:
            found.append((b"x-stillframe-not-available", ", ".join(self.not_available[:8]).encode()))
        return found if self.begun is None else found + plan_headers(self.begun)

    def explanation(self) -> dict[str, Any]:
        """The plan of a turn that was begun, for its client."""
        assert self.begun is not None
        assert self.policy is not None
        return explanation(self.begun, self.policy, self.estimate, self.allowed)

    async def fail(self, error: StillframeError, receive: asgi.Receive) -> None:
        """Answer with an error of ours, unless an answer has begun.

        Raises:
            StillframeError: the same one, where the answer has begun: it is left unfinished.
        """
        if self.started:
            raise error
        if not isinstance(error, (RequestError, EngineError)):
            error = EngineError("The gateway failed to serve this request.")
        self.started = True
        await asgi.respond_error(self.send, error, self.headers(), receive)

    async def cut_off(self) -> None:
        """Tell the client that the gateway stops before its answer was whole: by an error, or by an event where a
        stream has begun. An answer that is neither is left unfinished."""
        if not self.started:
            self.started = True
            await asgi.last_words(lambda error: asgi.respond_error(self.send, error, self.headers()))
        elif self.sends_events:
            await asgi.last_words(self._end_stream)

    async def _end_stream(self, error: EngineError) -> None:
        await self.send({"type": "http.response.body", "body": error_events(error)})

    def close(self) -> None:
        """Record the turn, once."""
        outcome, policy = self.outcome or "failed", self.policy or self.gateway.policies.default
        if self.tenant is None:
            # Nobody's: it was refused before it was known whose it is.
            self.gateway.metrics.count_request(outcome, stream=self.stream)
            self.gateway.metrics.total_seconds.observe(time.perf_counter() - self.began)
            return
        self.gateway.recorder.ended(
            Ended(
                id=self.record_id,
                request_id=self.request_id,
                tenant=self.tenant,
                model=self.model,
                policy=policy.name,
                policy_version=policy.version,
                stream=self.stream,
                outcome=outcome,
                usage=self.usage,
                begun=self.begun,
                before=self.before,
                answered=self.answered,
                first_token_seconds=None if self.first_byte is None else self.first_byte - self.began,
                total_seconds=time.perf_counter() - self.began,
                estimate=self.estimate,
                traceparent=self.traceparent,
                allowed=self.allowed,
            )
        )
        if outcome == "completed":
            self.gateway.note_usage(self.usage)
            self._calibrate()

    def _calibrate(self) -> None:
        """What the engine counted corrects what is estimated from now on."""
        if self.begun is not None and self.usage.prompt_tokens is not None:
            plan = self.begun.plan
            self.gateway.estimators.of(self.model).observe(
                with_tail(plan.sent, plan.tail), plan.tools, self.usage.prompt_tokens, self.usage.visual_tokens
            )
