"""POST /v1/chat/completions: a request's life, top to bottom.

tenant -> body within its budget -> checked call -> images by content -> what is sent -> engine -> the reply streams
through
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic_core import from_json

from app import asgi, pictures
from app.explain import (
    EXPLAIN_HEADER,
    PIN_HEADER,
    client_conversation,
    explained_answer,
    explained_event,
    explanation,
    pinned_images,
    plan_headers,
    wants_explanation,
)
from app.gateway import Gateway
from app.outgoing import engine_messages
from app.public import public_error_bytes
from app.reply import ReplyCollector, reply_of
from app.sse import EventRelay
from app.summaries import Summarizer
from app.wire import ChatCall, parse_chat
from context.alignment.base import SlotMatch
from context.conversations import Begun
from context.errors import EngineError, EngineProtocolError, RequestError, StillframeError
from context.estimates import message_tokens
from context.layout.tail import with_tail
from context.policies.base import Estimate, Limits, Request
from context.policies.choice import POLICY_HEADER, LoadedPolicy
from context.policies.quotas import check_quotas
from context.tenancy import Tenant
from engine.base import ChatRequest, EngineReply
from metrics.prometheus import Outcome
from metrics.usage import Usage, read_usage

_ERROR_BYTES = 1024 * 1024
# A shorter token is a word that may stand in any text.
_SECRET_CHARS = 8
_HASHING_SECONDS = 0.25


@dataclass(slots=True)
class Turn:
    """One chat request while it is served, and what will be said of it."""

    gateway: Gateway
    send: asgi.Send
    request_id: str = field(default_factory=lambda: secrets.token_hex(12))
    began: float = field(default_factory=time.perf_counter)
    stream: bool = False
    include_usage: bool = False
    started: bool = False
    outcome: Outcome | None = None
    usage: Usage = field(default_factory=Usage)
    secrets: tuple[str, ...] = ()
    first_byte: float | None = None
    begun: Begun | None = None
    not_available: tuple[str, ...] = ()
    policy: LoadedPolicy | None = None
    model: str = ""
    explain: bool = False
    pins: frozenset[str] = frozenset()
    estimate: Estimate = message_tokens

    def heed(self, call: ChatCall, tenant: Tenant, scope: asgi.Scope) -> None:
        """Take in what the request says about how it wants to be served.

        Raises:
            RequestError: a header of ours holds what it cannot.
        """
        self.stream, self.include_usage, self.model = call.stream, call.include_usage, call.model
        self.explain = wants_explanation(asgi.header(scope, EXPLAIN_HEADER))
        self.pins = pinned_images(asgi.header(scope, PIN_HEADER))
        self.policy = self.gateway.policies.choose(
            model=self.model, tenant=tenant.name, header=asgi.header(scope, POLICY_HEADER.encode())
        )

    async def start(self, status: int, content_type: bytes, length: int | None = None) -> None:
        """Send the answer's head. From here on an error can only be an event of the stream."""
        self.started = True
        headers = [(b"content-type", content_type), *self.headers()]
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
        if self.not_available:
            found.append((b"x-stillframe-not-available", ", ".join(self.not_available[:8]).encode()))
        return found if self.begun is None else found + plan_headers(self.begun)

    def explanation(self) -> dict[str, Any]:
        """The plan of a turn that was begun, for its client."""
        assert self.begun is not None
        assert self.policy is not None
        return explanation(self.begun, self.policy, self.estimate)

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

    def close(self) -> None:
        """Record the turn, once."""
        metrics, outcome = self.gateway.metrics, self.outcome or "failed"
        metrics.count_request(outcome, stream=self.stream)
        metrics.total_seconds.observe(time.perf_counter() - self.began)
        if self.first_byte is not None:
            metrics.first_byte_seconds.observe(self.first_byte - self.began)
        if outcome == "completed":
            metrics.count_usage(self.usage)
            self.gateway.note_usage(self.usage)
            self._calibrate()

    def _calibrate(self) -> None:
        """What the engine counted corrects what is estimated from now on."""
        if self.begun is not None and self.usage.prompt_tokens is not None:
            plan = self.begun.plan
            self.gateway.estimators.of(self.model).observe(
                with_tail(plan.sent, plan.tail), plan.tools, self.usage.prompt_tokens, self.usage.visual_tokens
            )


async def chat(gateway: Gateway, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
    """Serve one chat request."""
    turn = Turn(gateway, send)
    try:
        authorization = asgi.header(scope, b"authorization")
        token = (authorization or "").rpartition(" ")[2]
        turn.secrets = (gateway.settings.upstreams.api_key, token if len(token) >= _SECRET_CHARS else "")
        _require_json(scope)
        tenant = gateway.tenant(authorization)
        gateway.admit()
        gateway.metrics.running_now += 1
        try:
            request = await _receive(turn, tenant, scope, receive, authorization)
            async with asgi.cancelled_when_client_leaves(receive), gateway.engine.chat(request) as reply:
                await _relay(turn, reply)
        finally:
            gateway.metrics.running_now -= 1
    except (asgi.ClientLeft, asyncio.CancelledError) as left:
        # What is settled stays: a client may leave as soon as it has the last byte.
        turn.outcome = turn.outcome or "aborted"
        if isinstance(left, asyncio.CancelledError):
            raise
    except StillframeError as error:
        turn.outcome = turn.outcome or ("refused" if isinstance(error, RequestError) else "failed")
        await turn.fail(error, receive)
    finally:
        turn.close()


async def _receive(
    turn: Turn, tenant: Tenant, scope: asgi.Scope, receive: asgi.Receive, authorization: str | None
) -> ChatRequest:
    """Read, check and resolve a request. The client's bytes are let go before the engine is asked."""
    gateway, limits = turn.gateway, turn.gateway.settings.server
    length = asgi.declared_length(scope, limits.max_body_bytes)
    first = await asgi.first_piece(receive, timeout_seconds=limits.body_timeout_seconds)
    async with gateway.budget.hold(length, limits.body_timeout_seconds):
        raw = await asgi.read_body(
            receive,
            limit_bytes=limits.max_body_bytes,
            timeout_seconds=limits.body_timeout_seconds,
            first=first,
            min_bytes_per_second=limits.min_upload_bytes_per_second,
        )
        info = gateway.engine.info()
        call = parse_chat(
            raw,
            default_model=info.models[0] if info.models else None,
            max_images=gateway.settings.images.max_images_per_request,
        )
        del raw
        turn.heed(call, tenant, scope)
        images: pictures.Pictures = {}
        if call.images:
            async with asgi.cancelled_when_client_leaves(receive):
                images = await pictures.resolve(gateway, tenant, call)
        wires, turn.not_available = call.with_images(images), pictures.not_available(images)
    name = client_conversation(asgi.header(scope, b"x-stillframe-conversation"), call.body)
    authorization = None if gateway.has_own_key else authorization
    summarize = _summarizer(turn, tenant, call, receive, authorization)
    begun = await _begin(turn, tenant, call, wires, name, summarize)
    sent = with_tail(begun.plan.sent, begun.plan.tail)
    messages = engine_messages(gateway.images, tenant, sent, begun.transcript.messages)
    return ChatRequest(
        request_id=turn.request_id,
        body=call.with_sent(messages, begun.plan.tools),
        cache_salt=tenant.cache_salt,
        affinity=begun.conversation,
        authorization=authorization,
        max_image_bytes=gateway.settings.images.max_sent_bytes,
    )


async def _begin(
    turn: Turn,
    tenant: Tenant,
    call: ChatCall,
    wires: Sequence[Mapping[str, Any]],
    name: str | None,
    summarize: Summarizer,
) -> Begun:
    """Plan what is sent, under the policy in force and within its quotas."""
    gateway, policy, info = turn.gateway, turn.policy, turn.gateway.engine.info()
    assert policy is not None, "chosen before"
    # The same figures for the whole request, whatever others report meanwhile.
    turn.estimate = estimate = gateway.estimators.of(turn.model).frozen()
    turn.begun = begun = await gateway.conversations.begin(
        wires,
        call.tools,
        tenant=tenant.name,
        key=tenant.key,
        policy=policy,
        request=Request(
            limits=Limits(info.max_images_per_prompt, info.max_model_tokens),
            pins=turn.pins,
            estimate=estimate,
            slot_match=await _slot_match(gateway, tenant, policy) if call.images else None,
        ),
        conversation=name,
        summarize=summarize,
    )
    check_quotas(policy.quotas, begun.plan, begun.transcript, begun.before, estimate)
    return begun


def _summarizer(
    turn: Turn, tenant: Tenant, call: ChatCall, receive: asgi.Receive, authorization: str | None
) -> Summarizer:
    return Summarizer(
        engine=turn.gateway.engine,
        images=turn.gateway.images,
        tenant=tenant,
        body=call.body,
        authorization=authorization,
        request_id=turn.request_id,
        receive=receive,
        timeout_seconds=turn.gateway.settings.context.summary_timeout_seconds,
        max_image_bytes=turn.gateway.settings.images.max_sent_bytes,
    )


async def _slot_match(gateway: Gateway, tenant: Tenant, policy: LoadedPolicy) -> SlotMatch | None:
    """Which images may stand for others, where the policy has that."""
    distance = policy.slot_distance
    if distance is None:
        return None
    # Hashes are made beside the requests; those of this one's images are worth a moment.
    await gateway.images.hashed(_HASHING_SECONDS)
    return gateway.images.slot_match(tenant.name, distance)


async def _relay(turn: Turn, reply: EngineReply) -> None:
    """The engine's reply to the client, and its usage to the record."""
    metrics = turn.gateway.metrics
    if reply.sent_image_bytes:
        metrics.image_bytes.inc(reply.sent_image_bytes)
        metrics.image_misses.inc(reply.image_misses)
    if reply.status != 200:
        await _relay_error(turn, reply)
        return
    if reply.headers.get("content-type", "").startswith("text/event-stream"):
        await _relay_events(turn, reply)
    else:
        await _relay_whole(turn, reply)


async def _relay_whole(turn: Turn, reply: EngineReply) -> None:
    assert turn.begun is not None
    conversations, message = turn.gateway.conversations, None
    try:
        body = await reply.read(turn.gateway.settings.server.max_answer_bytes)
        answer = _answer_of(body)
        turn.usage, message = read_usage(_usage_of(answer)), reply_of(answer)
        turn.note_byte()
    finally:
        # Before the client sees the reply: it may ask on at once. A turn that failed or was left was sent all the same.
        turn.begun = await conversations.accept(turn.begun, message)
    if turn.explain:
        body = explained_answer(answer, turn.explanation())
    await turn.start(200, b"application/json", len(body))
    turn.outcome = "completed"
    await turn.send({"type": "http.response.body", "body": body})


async def _relay_error(turn: Turn, reply: EngineReply) -> None:
    # A key that the client did not choose is not the client's to mend.
    status = 500 if turn.gateway.has_own_key and reply.status in (401, 403) else reply.status
    status, body = public_error_bytes(await reply.read(_ERROR_BYTES), status, turn.secrets)
    turn.outcome = "refused" if status < 500 else "failed"
    turn.started = True
    after = reply.headers.get("retry-after", "")
    again = [(b"retry-after", after.encode())] if after.isascii() and after.isdigit() else []
    await asgi.respond_json(turn.send, status, body, [*turn.headers(), *again])


async def _relay_events(turn: Turn, reply: EngineReply) -> None:
    assert turn.begun is not None
    conversations = turn.gateway.conversations
    turn.begun = begun = await conversations.accept(turn.begun)
    collector = ReplyCollector()
    told = explained_event(turn.request_id, turn.model, turn.explanation()) if turn.explain else b""
    relay = EventRelay(include_usage=turn.include_usage, collect=collector.add, last_event=told)
    await turn.start(200, b"text/event-stream; charset=utf-8")
    async for chunk in relay.relay(reply.chunks):
        turn.note_byte()
        if relay.done or relay.failed:
            # Before the last byte is sent: with it the client has all it wants, and may be gone.
            turn.usage, turn.outcome = read_usage(relay.usage), "failed" if relay.failed else "completed"
            message = None if relay.failed else collector.message()
            if message is not None:
                await conversations.answer(begun, message)
        await turn.send({"type": "http.response.body", "body": chunk, "more_body": True})
    await turn.send({"type": "http.response.body", "body": b""})


def _require_json(scope: asgi.Scope) -> None:
    """A browser sends JSON to another site only after that site's consent (CORS), which is never given; every other
    type it sends unasked, from any page, also to a gateway on the loopback address.

    Raises:
        RequestError: (415) the body is not said to be JSON.
    """
    kind = (asgi.header(scope, b"content-type") or "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestError("Send the header 'Content-Type: application/json'.", code="unsupported_type", status=415)


def _answer_of(body: bytes) -> Mapping[str, Any]:
    try:
        data: Any = from_json(body)
    except ValueError as error:
        raise EngineProtocolError("The engine's answer is not JSON.") from error
    if not isinstance(data, dict):
        raise EngineProtocolError("The engine's answer is not a JSON object.")
    return cast("dict[str, Any]", data)


def _usage_of(answer: Mapping[str, Any]) -> Mapping[str, Any] | None:
    usage = answer.get("usage")
    return cast("dict[str, Any]", usage) if isinstance(usage, dict) else None
