"""The in-process client: streaming, backpressure, hanging up, and apps that fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from context.errors import EngineProtocolError, EngineUnavailable
from engine.asgi import ASGIApp, call, lifespan


class PassThrough(BaseHTTPMiddleware):
    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        return await call_next(request)


def _app(*routes: Route, middleware: bool = False, **options: Any) -> ASGIApp:
    return Starlette(routes=list(routes), middleware=[Middleware(PassThrough)] if middleware else [], **options)


async def _echo(request: Request) -> Response:
    body = await request.body()
    return JSONResponse({"body": body.decode(), "query": request.url.query, "x": request.headers.get("x-name")})


async def _no_tasks(before: set[asyncio.Task[Any]]) -> None:
    assert not [task for task in asyncio.all_tasks() - before if not task.done()]


@pytest.mark.parametrize("middleware", [False, True])
async def test_request_and_answer(middleware: bool) -> None:
    app = _app(Route("/echo", _echo, methods=["POST"]), middleware=middleware)
    async with call(app, "POST", "/echo?a=1", headers={"X-Name": "n"}, body=[b"one ", b"", b"two"]) as reply:
        assert await reply.read() == b'{"body":"one two","query":"a=1","x":"n"}'
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")


@pytest.mark.parametrize("middleware", [False, True])
async def test_chunks_come_at_once_and_leaving_stops_the_app(middleware: bool) -> None:
    before, gone, go_on = asyncio.all_tasks(), asyncio.Event(), asyncio.Event()

    async def chunks() -> AsyncIterator[bytes]:
        try:
            yield b"first"
            await go_on.wait()
            yield b"second"
            await asyncio.Event().wait()
        finally:
            gone.set()

    async def stream(_: Request) -> Response:
        return StreamingResponse(chunks())

    async with call(_app(Route("/", stream), middleware=middleware), "GET", "/") as reply:
        assert await anext(reply.chunks) == b"first"
        go_on.set()
        assert await anext(reply.chunks) == b"second"
        assert not gone.is_set()
    assert gone.is_set()
    await _no_tasks(before)


async def test_leaving_before_the_answer_is_a_disconnect() -> None:
    before, arrived, left = asyncio.all_tasks(), asyncio.Event(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "http.request"
        arrived.set()
        assert (await receive())["type"] == "http.disconnect"
        left.set()

    async def ask() -> None:
        async with call(app, "GET", "/"):
            pass

    asking = asyncio.create_task(ask())
    await arrived.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert left.is_set()
    await _no_tasks(before)


async def test_an_app_that_does_not_listen_is_cancelled() -> None:
    before, cancelled = asyncio.all_tasks(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with call(app, "GET", "/", grace_seconds=0.01):
        pass
    assert cancelled.is_set()
    await _no_tasks(before)


async def test_the_app_waits_for_a_slow_reader() -> None:
    sent = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal sent
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(1000):
            await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})
            sent += 1
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async with call(app, "GET", "/") as reply:
        await anext(reply.chunks)
        for _ in range(50):
            await asyncio.sleep(0)
        assert sent < 40
        size = 65_536 + sum([len(chunk) async for chunk in reply.chunks])
    assert (size, sent) == (1000 * 65_536, 1000)


async def test_failing_before_the_answer() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("a secret path")

    with pytest.raises(EngineUnavailable) as failed:
        async with call(app, "GET", "/"):
            pass
    assert "secret" not in failed.value.message


async def test_ending_without_an_answer() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        pass

    with pytest.raises(EngineUnavailable):
        async with call(app, "GET", "/"):
            pass


@pytest.mark.parametrize("fails", [True, False])
async def test_breaking_off_in_the_middle(fails: bool) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        if fails:
            raise RuntimeError

    async with call(app, "GET", "/") as reply:
        assert await anext(reply.chunks) == b"half"
        with pytest.raises(EngineProtocolError):
            await anext(reply.chunks)


async def test_an_error_answer_of_a_framework_is_an_answer() -> None:
    async def broken(_: Request) -> Response:
        raise RuntimeError

    async with call(_app(Route("/", broken)), "GET", "/") as reply:
        assert (reply.status, await reply.read()) == (500, b"Internal Server Error")


async def test_lifespan() -> None:
    happened: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for phase in ("startup", "shutdown"):
            assert (await receive())["type"] == f"lifespan.{phase}"
            scope["state"]["ready"] = True
            happened.append(phase)
            await send({"type": f"lifespan.{phase}.complete"})

    async with lifespan(app) as state:
        assert (happened, state["ready"]) == (["startup"], True)
    assert happened == ["startup", "shutdown"]


async def test_an_app_without_lifespan_is_used_without() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"

    async with lifespan(app) as state:
        assert state == {}


async def test_a_failed_startup() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "a secret path"})

    with pytest.raises(EngineUnavailable) as failed:
        async with lifespan(app):
            pass
    assert "secret" not in failed.value.message
