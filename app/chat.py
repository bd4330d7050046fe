"""POST /v1/chat/completions: a request's life, top to bottom.

tenant -> body within its budget -> checked call -> images by content -> what is sent -> engine -> the reply streams
through
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from app import asgi, bodies, pictures
from app.collector import COLLECTOR
from app.explain import CONVERSATION_HEADER, client_conversation
from app.gateway import Gateway
from app.lost import engine_reply
from app.outgoing import engine_messages
from app.relay import relay
from app.summaries import Summarizer
from app.turn import ServedTurn
from app.wire import ChatCall, parse_chat
from context.alignment.base import SlotMatch
from context.conversations import Assign, Begun
from context.errors import RequestError, StillframeError
from context.layout.tail import with_tail
from context.policies.base import Limits, Request
from context.policies.choice import LoadedPolicy
from context.policies.quotas import check_quotas
from context.tenancy import Tenant
from engine.base import ChatRequest

# A shorter token is a word that may stand in any text.
_SECRET_CHARS = 8
_HASHING_SECONDS = 0.25


async def chat(gateway: Gateway, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
    """Serve one chat request."""
    turn = ServedTurn(gateway, send)
    task = asyncio.current_task()
    assert task is not None
    gateway.chats.add(task)
    try:
        authorization = asgi.header(scope, b"authorization")
        token = (authorization or "").rpartition(" ")[2]
        turn.secrets = (gateway.settings.upstreams.api_key, token if len(token) >= _SECRET_CHARS else "")
        _require_json(scope)
        turn.tenant = tenant = gateway.tenant(authorization)
        turn.record_id = gateway.recorder.next_id()
        gateway.admit()
        gateway.metrics.running_now += 1
        try:
            request = await _receive(turn, tenant, scope, receive, authorization)
            gateway.recorder.begin(turn.request_id, tenant, request.affinity, turn.model)
            # When the loop goes round for the second time: the request is written by then, and an engine in this
            # process has it.
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, turn.draft_ahead)
            async with asgi.cancelled_when_client_leaves(receive), engine_reply(turn, tenant, request) as reply:
                await relay(turn, reply)
        finally:
            gateway.metrics.running_now -= 1
    except (asgi.ClientLeft, asyncio.CancelledError) as left:
        # What is settled stays: a client may leave as soon as it has the last byte.
        is_open, turn.outcome = turn.outcome is None, turn.outcome or "aborted"
        if isinstance(left, asyncio.CancelledError):
            # The server stops and has waited long enough.
            if is_open:
                await turn.cut_off()
            raise
    except StillframeError as error:
        turn.outcome = turn.outcome or ("refused" if isinstance(error, RequestError) else "failed")
        await turn.fail(error, receive)
    finally:
        # The answer is out by now.
        turn.close()
        gateway.chats.discard(task)
        COLLECTOR.look()


async def _receive(
    turn: ServedTurn, tenant: Tenant, scope: asgi.Scope, receive: asgi.Receive, authorization: str | None
) -> ChatRequest:
    """Read, check and resolve a request. The client's bytes are let go before the engine is asked."""
    gateway, limits = turn.gateway, turn.gateway.settings.server
    length = bodies.declared_length(scope, limits.max_body_bytes)
    first = await bodies.first_piece(receive, timeout_seconds=limits.body_timeout_seconds)
    async with gateway.budget.hold(length, limits.body_timeout_seconds):
        call = await _read_call(gateway, receive, first)
        turn.heed(call, tenant, scope)
        name = client_conversation(asgi.one_header(scope, CONVERSATION_HEADER), call.body)
        images: pictures.Pictures = {}
        if call.images:
            async with asgi.cancelled_when_client_leaves(receive):
                images = await pictures.resolve(gateway, tenant, call, name[0])
        wires, turn.not_available = call.with_images(images), pictures.not_available(images)
    authorization = None if gateway.has_own_key else authorization
    summarize = _summarizer(turn, tenant, call, receive, authorization)
    begun = await _begin(turn, tenant, call, wires, name, summarize)
    sent = with_tail(begun.plan.sent, begun.plan.tail)
    messages = engine_messages(gateway.images, tenant, sent, begun.transcript.messages)
    return ChatRequest(
        request_id=turn.request_id,
        body=call.with_sent(messages, begun.plan.tools, begun.control_tokens),
        cache_salt=tenant.cache_salt,
        affinity=begun.conversation,
        authorization=authorization,
        max_image_bytes=gateway.settings.images.max_sent_bytes,
        reuse=turn.reuse_of(sent),
    )


async def _read_call(gateway: Gateway, receive: asgi.Receive, first: asgi.Message) -> ChatCall:
    limits, models = gateway.settings.server, gateway.engine.info().models
    raw = await bodies.read_body(
        receive,
        limit_bytes=limits.max_body_bytes,
        timeout_seconds=limits.body_timeout_seconds,
        first=first,
        min_bytes_per_second=limits.min_upload_bytes_per_second,
    )
    return parse_chat(raw, default_model=models[0] if models else None, limits=gateway.call_limits)


async def _begin(
    turn: ServedTurn,
    tenant: Tenant,
    call: ChatCall,
    wires: Sequence[Mapping[str, Any]],
    name: tuple[str | None, bool],
    summarize: Summarizer,
) -> Begun:
    """Plan what is sent, under the policy in force and within its quotas."""
    gateway, policy, info = turn.gateway, turn.policy, turn.gateway.engine.info()
    assert policy is not None, "chosen before"
    # The same figures for the whole request, whatever others report meanwhile.
    turn.estimate = estimate = gateway.estimators.of(turn.model).frozen()
    arms = [arm.policy for arm in turn.choices.arms] if turn.choices else []
    slots = await _slot_matches(gateway, tenant, [policy, *arms] if call.images else [])
    request = Request(
        limits=Limits(info.max_images_per_prompt, info.max_model_tokens),
        pins=turn.pins,
        estimate=estimate,
        slot_match=slots.get(policy.name),
        is_own_choice=turn.is_own_choice,
        allowance=turn.allowance,
    )
    turn.begun = begun = await gateway.conversations.begin(
        wires,
        call.tools,
        tenant=tenant.name,
        key=tenant.key,
        policy=policy,
        request=request,
        conversation=name[0],
        is_shared=name[1],
        summarize=summarize,
        assign=_assign(turn, tenant, request, slots) if arms else None,
    )
    turn.before = begun.before
    check_quotas((turn.policy or policy).quotas, begun.plan, begun.transcript, begun.before, estimate)
    return begun


def _assign(turn: ServedTurn, tenant: Tenant, request: Request, slots: Mapping[str, SlotMatch]) -> Assign:
    """Gives a conversation its policy, where conversations share several."""
    choices = turn.choices
    assert choices is not None, "chosen before"

    def assign(conversation: str, before: str | None) -> tuple[LoadedPolicy, Request]:
        turn.policy = chosen = choices.of(tenant.name, conversation, before)
        return chosen, replace(request, slot_match=slots.get(chosen.name), allowance=turn.allowance)

    return assign


def _summarizer(
    turn: ServedTurn, tenant: Tenant, call: ChatCall, receive: asgi.Receive, authorization: str | None
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
        count=turn.gateway.metrics.count_summary,
    )


async def _slot_matches(gateway: Gateway, tenant: Tenant, policies: Sequence[LoadedPolicy]) -> Mapping[str, SlotMatch]:
    """Which images may stand for others, by the names of the policies that have that."""
    distances = {one.name: one.slot_distance for one in policies if one.slot_distance is not None}
    if not distances:
        return {}
    # Hashes are made beside the requests; those of this one's images are worth a moment, one for all policies.
    await gateway.images.hashed(_HASHING_SECONDS)
    return {name: gateway.images.slot_match(tenant.name, distance) for name, distance in distances.items()}


def _require_json(scope: asgi.Scope) -> None:
    """A browser sends JSON to another site only after that site's consent (CORS), which is never given; every other
    type it sends unasked, from any page, also to a gateway on the loopback address.

    Raises:
        RequestError: (415) the body is not said to be JSON.
    """
    kind = (asgi.header(scope, b"content-type") or "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestError("Send the header 'Content-Type: application/json'.", code="unsupported_type", status=415)
