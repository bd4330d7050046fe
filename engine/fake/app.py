"""vLLM's HTTP surface over a fake core, as a plain ASGI app.

It is the other process of latency measurements, so it has no framework between the socket and the core.

Source: vLLM 0.32, entrypoints/openai/chat_completion/api_router.py, entrypoints/serve/tokenize/serving.py,
entrypoints/serve/dev/cache/api_router.py, entrypoints/serve/instrumentator/health.py, v1/metrics/loggers.py.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from typing import Any, cast

from pydantic_core import from_json, to_json

from engine.asgi import Receive, SendMessage
from engine.fake.config import FakeConfig
from engine.fake.core import FakeCore
from engine.fake.driver import Driver, Ticket
from engine.fake.errors import Refused, invalid
from engine.fake.faults import Broken, Fault, parse_fault
from engine.fake.wire import DONE, ChatWire, sse

_MAX_BODY_BYTES = 256 * 1024 * 1024
_JSON = [(b"content-type", b"application/json")]
_EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8")]
_TEXT = [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")]

Scope = MutableMapping[str, Any]


class FakeApp:
    """The app of one fake engine. `faults` are used up one a chat request, in their order."""

    def __init__(self, config: FakeConfig | None = None) -> None:
        self.core = FakeCore(config)
        self.driver = Driver(self.core)
        self.faults: deque[Fault] = deque()
        self.open_requests = 0
        self._routes: dict[tuple[str, str], Callable[[Receive, SendMessage], Awaitable[None]]] = {
            ("GET", "/v1/models"): self._models,
            ("GET", "/health"): self._health,
            ("GET", "/metrics"): self._metrics,
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/reset_prefix_cache"): self._reset_prefix_cache,
            ("POST", "/reset_mm_cache"): self._reset_mm_cache,
            ("POST", "/reset_encoder_cache"): self._reset_encoder_cache,
            ("GET", "/fake/requests"): self._requests,
            ("POST", "/fake/faults"): self._add_fault,
        }
        self._paths = {path for _, path in self._routes} | {"/v1/chat/completions"}

    async def __call__(self, scope: Scope, receive: Receive, send: SendMessage) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        self.driver.start()
        route = (scope["method"], scope["path"])
        try:
            if route == ("POST", "/v1/chat/completions"):
                await self._chat(scope, receive, send)
            elif handler := self._routes.get(route):
                await handler(receive, send)
            elif scope["path"] in self._paths:
                raise Refused("Method Not Allowed", status=405)
            else:
                raise Refused("Not Found", status=404, type="Not Found")
        except Refused as refused:
            await _reply(send, refused.status, to_json(refused.body()))

    async def _lifespan(self, receive: Receive, send: SendMessage) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self.driver.start()
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.driver.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _chat(self, scope: Scope, receive: Receive, send: SendMessage) -> None:
        body = await _json_body(receive)
        # From here on the client may leave at any time: whatever runs for it ends with it.
        work = asyncio.current_task()
        left = asyncio.create_task(_hung_up(receive))
        gone = False

        def leave(_: asyncio.Task[None]) -> None:
            nonlocal gone
            if not left.cancelled() and work is not None:
                gone = True
                work.cancel()

        left.add_done_callback(leave)
        self.open_requests += 1
        try:
            await self._answer(scope, body, send)
        except asyncio.CancelledError:
            if not gone or work is None or work.uncancel():
                raise
        finally:
            self.open_requests -= 1
            left.remove_done_callback(leave)
            left.cancel()

    async def _answer(self, scope: Scope, body: dict[str, Any], send: SendMessage) -> None:
        fault = self.faults.popleft() if self.faults else None
        await self._break_before(fault)
        self.driver.check_alive()
        chat = self.core.accept(body, _request_id(scope, body))
        wire = ChatWire(chat, body, self.core.config.model, reports_cache=self.core.config.reports_cache)
        ticket = self.driver.submit(chat)
        try:
            breaks_after = fault.after_chunks if fault and fault.kind == "break" else None
            if body.get("stream"):
                await _start(send, 200, _EVENTS)
                await _stream(send, _chunks(wire, ticket), breaks_after)
                return
            end = await ticket.ended()
            if end != "done":
                self.driver.check_alive()
                raise Refused("Internal server error", status=500)
            reply = wire.whole()
            if breaks_after is not None:
                await _start(send, 200, _JSON)
                await send({"type": "http.response.body", "body": reply[: len(reply) // 2], "more_body": True})
                raise Broken
            await _reply(send, 200, reply)
        finally:
            self.driver.abort(ticket)

    async def _break_before(self, fault: Fault | None) -> None:
        if fault is None:
            return
        if fault.kind == "error":
            raise Refused("The fake engine was told to fail.", status=fault.status)
        if fault.kind == "fail":
            raise Broken
        if fault.kind == "crash":
            self.driver.crash()
        elif fault.kind == "slow":
            await asyncio.sleep(fault.seconds)
        elif fault.kind == "hang":
            await asyncio.Event().wait()

    async def _models(self, receive: Receive, send: SendMessage) -> None:
        card: dict[str, Any] = {
            "id": self.core.config.model,
            "object": "model",
            "created": 0,
            "owned_by": "stillframe",
            "root": self.core.config.model,
            "parent": None,
            "max_model_len": self.core.config.max_model_tokens,
            "permission": [],
        }
        await _reply(send, 200, to_json({"object": "list", "data": [card]}))

    async def _health(self, receive: Receive, send: SendMessage) -> None:
        await _reply(send, 503 if self.driver.crashed else 200, b"")

    async def _tokenize(self, receive: Receive, send: SendMessage) -> None:
        body = await _json_body(receive)
        if "prompt" in body:
            tokens = self.core.tokenizer.encode(str(body["prompt"]))
        else:
            # vLLM answers with the placeholders expanded: images count as the prompt will.
            tokens = self.core.render(body, for_tokenize=True).tokens
        shown = {"count": len(tokens), "max_model_len": self.core.config.max_model_tokens, "tokens": tokens}
        await _reply(send, 200, to_json(shown | {"token_strs": None}))

    async def _reset_prefix_cache(self, receive: Receive, send: SendMessage) -> None:
        success = self.core.reset_prefix_cache()
        self.driver.publish()
        await _reply(send, 200, to_json({"success": success}))

    async def _reset_mm_cache(self, receive: Receive, send: SendMessage) -> None:
        self.core.reset_processor_cache()
        await _reply(send, 200, b"")

    async def _reset_encoder_cache(self, receive: Receive, send: SendMessage) -> None:
        self.core.reset_encoder_cache()
        self.driver.publish()
        await _reply(send, 200, b"")

    async def _requests(self, receive: Receive, send: SendMessage) -> None:
        shown = {"open_requests": self.open_requests, "running_sequences": self.driver.running}
        await _reply(send, 200, to_json(shown))

    async def _add_fault(self, receive: Receive, send: SendMessage) -> None:
        self.faults.append(parse_fault(await _json_body(receive)))
        await _reply(send, 200, b"{}")

    async def _metrics(self, receive: Receive, send: SendMessage) -> None:
        core = self.core
        counters = {
            "prompt_tokens": core.counters["prompt_tokens"],
            "generation_tokens": core.counters["generation_tokens"],
            "prefix_cache_queries": core.scheduler.queries,
            "prefix_cache_hits": core.scheduler.hits,
            "mm_cache_queries": core.processor.queries,
            "mm_cache_hits": core.processor.hits,
        }
        label = f'{{engine="0",model_name="{core.config.model}"}}'
        lines = [f"# TYPE vllm:{name} counter\nvllm:{name}_total{label} {value}\n" for name, value in counters.items()]
        gauges = {"num_requests_running": core.scheduler.running, "num_requests_waiting": core.scheduler.waiting}
        lines += [f"# TYPE vllm:{name} gauge\nvllm:{name}{label} {len(value)}\n" for name, value in gauges.items()]
        lines.append(f'vllm:cache_config_info{{block_size="{core.config.block_tokens}",engine="0"}} 1.0\n')
        await _reply(send, 200, "".join(lines).encode(), _TEXT)


def create_app(config: FakeConfig | None = None) -> FakeApp:
    """The app of a new fake engine.

    Raises:
        ConfigError: the configuration cannot work.
    """
    return FakeApp(config)


async def _chunks(wire: ChatWire, ticket: Ticket) -> AsyncIterator[bytes]:
    first = True
    while tokens := await ticket.take():
        if first:
            first = False
            for chunk in wire.opening():
                yield chunk
        for token in tokens:
            yield wire.token(token)
    if ticket.end == "done":
        for chunk in wire.closing():
            yield chunk
    else:
        # The status is out: what is left is an error event (create_streaming_error_response).
        yield sse(Refused("EngineCore encountered an issue.", status=500).body())
        yield DONE


async def _stream(send: SendMessage, chunks: AsyncIterator[bytes], breaks_after: int | None) -> None:
    sent = 0
    async for chunk in chunks:
        if sent == breaks_after:
            raise Broken
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
        sent += 1
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _json_body(receive: Receive) -> dict[str, Any]:
    segments: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused("Client disconnected")
        segments.append(message.get("body", b""))
        size += len(segments[-1])
        more = message.get("more_body", False)
        if size > _MAX_BODY_BYTES:
            raise Refused(f"The request body is over {_MAX_BODY_BYTES} bytes.", status=413)
    try:
        body = from_json(b"".join(segments) if len(segments) > 1 else segments[0])
    except ValueError as error:
        raise invalid("JSON decode error", "body") from error
    if not isinstance(body, dict):
        raise invalid("Input should be a valid dictionary", "body")
    return cast("dict[str, Any]", body)


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _request_id(scope: Scope, body: Mapping[str, Any]) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            return value.decode("latin-1")
    return str(body.get("request_id") or uuid.uuid4().hex)


async def _start(send: SendMessage, status: int, headers: list[tuple[bytes, bytes]]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _reply(send: SendMessage, status: int, body: bytes, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    await _start(send, status, [*(headers or _JSON), (b"content-length", str(len(body)).encode())])
    await send({"type": "http.response.body", "body": body, "more_body": False})
