"""The HTTP surface: which path does what. Plain ASGI; the chat path has nothing before it."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from app import asgi, bodies
from app.chat import chat
from app.dashboard.routes import PREFIX, dashboard
from app.gateway import Gateway
from app.public import public_error_bytes
from context.errors import EngineError, RequestError, StillframeError, place_of
from engine.base import ImageReuse

_log = logging.getLogger("stillframe")
Handler = Callable[[Gateway, asgi.Scope, asgi.Receive, asgi.Send], Awaitable[None]]

_METRICS_TYPE = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
_ENGINE = "/engine/"
_REQUESTS = "/admin/requests/"
_MODELS = "/v1/models/"
_STARTED = int(time.time())
# Headers of an engine's answer that go on to an administrator.
_FORWARDED = frozenset({"content-type", "retry-after", "x-request-id"})


async def live(gateway: Gateway, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
    """The process answers."""
    await asgi.respond_json(send, 200, {"status": "alive"})


async def ready(gateway: Gateway, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
    """The engine answers; 503 with the reason while it does not."""
    health = gateway.engine.health()
    body: dict[str, object] = {"status": health.state, "reason": health.reason}
    if gateway.background.failing:
        # Chats are answered without it.
        body["failing"] = sorted(gateway.background.failing)
    await asgi.respond_json(send, 200 if health.ready else 503, body)


async def metrics(gateway: Gateway, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
    """Prometheus' text format."""
    gateway.metrics.count_images(gateway.images.stats())
    gateway.recorder.count()
    gateway.metrics.count_checks(gateway.engine_checks())
    body = gateway.metrics.exposition(engine_ready=gateway.engine.health().ready)
    await asgi.respond(send, 200, body, [_METRICS_TYPE])


async def models(gateway: Gateway, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
    """The engine's models: the list, or one by its name."""
    gateway.tenant(asgi.header(scope, b"authorization"))
    info = gateway.engine.info()
    cards = [
        {"id": name, "object": "model", "created": _STARTED, "owned_by": "stillframe"}
        | ({"max_model_len": info.max_model_tokens} if info.max_model_tokens else {})
        for name in info.models
    ]
    name = asgi.path(scope).rstrip("/").removeprefix("/v1/models").removeprefix("/")
    if not name:
        await asgi.respond_json(send, 200, {"object": "list", "data": cards})
        return
    for card in cards:
        if card["id"] == name:
            await asgi.respond_json(send, 200, card)
            return
    known = ", ".join(info.models) or "none"
    raise RequestError(f"There is no such model; known: {known}.", code="model_not_found", param="model", status=404)


async def engine(gateway: Gateway, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
    """Straight to the engine's own HTTP surface, for the administrator: nothing is canonicalized or recorded."""
    _require_admin(gateway, scope)
    limits = gateway.settings.server
    length = bodies.declared_length(scope, limits.max_body_bytes)
    async with gateway.budget.hold(length, limits.body_timeout_seconds):
        body = await bodies.read_body(
            receive, limit_bytes=limits.max_body_bytes, timeout_seconds=limits.body_timeout_seconds
        )
    headers = {
        name: value
        for name in ("content-type", "x-request-id")
        if (value := asgi.header(scope, name.encode())) is not None
    }
    query = scope["query_string"].decode("latin-1")
    # As it came: a decoded %0d%0a or %3f would be read differently by whoever writes the request line anew.
    path = "/" + asgi.raw_path(scope).removeprefix(_ENGINE) + (f"?{query}" if query else "")
    async with (
        asgi.cancelled_when_client_leaves(receive),
        gateway.engine.forward(scope["method"], path, headers=headers, body=[bytes(body)] if body else []) as reply,
    ):
        if reply.status >= 400:
            status, error = public_error_bytes(await reply.read(), reply.status)
            allow = reply.headers.get("allow")
            await asgi.respond_json(send, status, error, [(b"allow", allow.encode("latin-1"))] if allow else [])
            return
        kept = [(n.encode(), v.encode("latin-1")) for n, v in reply.headers.items() if n in _FORWARDED]
        await send({"type": "http.response.start", "status": reply.status, "headers": kept})
        async for chunk in reply.chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def reset(gateway: Gateway, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
    """Empty the engine's caches."""
    _require_admin(gateway, scope)
    await gateway.engine.reset_caches()
    await asgi.respond_json(send, 200, {"reset": True})


async def request_record(gateway: Gateway, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
    """What the encoder cache did for one finished request; nulls when the engine did not report it. What it got of the
    pool of images' KV, where it was allowed and the engine has said so."""
    _require_admin(gateway, scope)
    request_id = asgi.path(scope).removeprefix(_REQUESTS)
    counts = await gateway.engine_log.final(request_id, timeout_seconds=2.0)
    reuse = gateway.engine_log.reuse(request_id)
    await asgi.respond_json(
        send,
        200,
        {
            "request_id": request_id,
            "encoder_runs": counts.runs if counts else None,
            "encoder_hits": counts.hits if counts else None,
            "encoder_evictions": counts.evictions if counts else None,
            **({} if reuse is None else {"image_reuse": _reuse_figures(reuse)}),
        },
    )


def _reuse_figures(reuse: ImageReuse) -> dict[str, Any]:
    figures = dataclasses.asdict(reuse)
    del figures["request_id"]
    return figures


async def state(gateway: Gateway, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
    """What is known of the engine and the gateway's caches."""
    _require_admin(gateway, scope)
    info = gateway.engine.info()
    await asgi.respond_json(
        send,
        200,
        {
            "engine": {
                "kind": info.kind,
                "state": gateway.engine.health().state,
                "models": list(info.models),
                "accepts_uuid": info.accepts_uuid,
                "block_tokens": info.block_tokens,
                "max_model_tokens": info.max_model_tokens,
                "max_images_per_prompt": info.max_images_per_prompt,
            },
            "template": dataclasses.asdict(gateway.template),
            "checks": gateway.engine_checks(),
            "policy": gateway.policies.default.name,
        },
    )


def _require_admin(gateway: Gateway, scope: asgi.Scope) -> None:
    if not gateway.is_admin(asgi.header(scope, b"authorization")):
        raise RequestError(
            "This route is for the administrator. Send 'Authorization: Bearer TOKEN' with the token of "
            "data_dir/admin-token.",
            code="admin_token_required",
            status=401,
        )


_EXACT: dict[str, tuple[str, Handler]] = {
    "/v1/chat/completions": ("POST", chat),
    "/v1/models": ("GET", models),
    "/health/live": ("GET", live),
    "/health/ready": ("GET", ready),
    "/metrics": ("GET", metrics),
    "/admin/reset": ("POST", reset),
    "/admin/state": ("GET", state),
    PREFIX: ("*", dashboard),
}
_PREFIXES: dict[str, tuple[str, Handler]] = {
    _MODELS: ("GET", models),
    _REQUESTS: ("GET", request_record),
    _ENGINE: ("*", engine),
    PREFIX + "/": ("*", dashboard),
}


def find(path: str) -> tuple[str, Handler]:
    """The method and the handler of a path; a slash at its end does not matter.

    Raises:
        RequestError: (404) there is none.
    """
    exact = _EXACT.get(path) or _EXACT.get(path.rstrip("/"))
    found = exact or next((entry for prefix, entry in _PREFIXES.items() if path.startswith(prefix)), None)
    if found is None:
        served = "/v1/chat/completions, /v1/models, /health/live, /health/ready, /metrics"
        raise RequestError(f"There is nothing at this path. Served are {served}.", code="unknown_path", status=404)
    return found


async def dispatch(gateway: Gateway, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
    """Serve one HTTP request. What goes wrong becomes an answer, or an unfinished one where it has begun.

    There is no CORS: no preflight is ever granted. A gateway on the loopback address needs no key, and any page that
    its owner looks at could use it otherwise. Web apps call it from their own server.
    """
    started = False

    async def noting(message: asgi.Message) -> None:
        nonlocal started
        started = True
        await send(message)

    try:
        method, handler = find(asgi.path(scope))
        if method not in (scope["method"], "*") and not (scope["method"] == "HEAD" and method == "GET"):
            raise asgi.MethodNotAllowed([method], scope["method"])
        await handler(gateway, scope, receive, noting)
    except asgi.ClientLeft:
        return
    except asyncio.CancelledError:
        # The server stops and has waited long enough.
        if not started:
            await asgi.last_words(lambda error: asgi.respond_error(send, error))
        raise
    except Exception as error:
        if not isinstance(error, StillframeError):
            # Its text may hold what a client sent or a path; its kind and place are enough to find it.
            _log.error("unexpected %s", place_of(error))
        if started:
            # The server closes a connection whose answer was not finished: its client must not take it for whole.
            return
        if not isinstance(error, (RequestError, EngineError)):
            error = EngineError("The gateway failed to serve this request.")
        await asgi.respond_error(send, error, receive=receive)
