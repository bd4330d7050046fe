"""A gateway over the shipped fake engine, called in this process or through a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pybase64
import uvicorn
from prometheus_client.parser import text_string_to_metric_families
from pydantic_core import from_json, to_json

from app import settings as settings_module
from app.protocol import http_config
from app.server import GatewayApp, bind
from app.settings import Settings
from context.errors import EngineProtocolError
from engine import asgi
from engine.base import EngineReply
from engine.fake import FakeConfig, FakeEngine
from tests.unit.images.corpus import read

ADMIN = {"authorization": "Bearer admin-token-of-the-tests"}
JSON = {"content-type": "application/json"}
CHAT = "/v1/chat/completions"


class WatchedEngine(FakeEngine):
    """The fake engine; keeps what it was sent, byte for byte. With `answer`, that app answers chats instead."""

    def __init__(self, config: FakeConfig | None = None, answer: asgi.ASGIApp | None = None) -> None:
        super().__init__(config)
        self.started = asyncio.Event()
        self.wire: list[bytes] = []
        self.answer = answer

    @property
    def sent(self) -> list[Any]:
        """The chat bodies that arrived."""
        return [from_json(body) for body in self.wire]

    async def start(self) -> None:
        await super().start()
        self.started.set()

    @asynccontextmanager
    async def forward(
        self, method: str, path: str, *, headers: Mapping[str, str], body: Sequence[bytes] = ()
    ) -> AsyncGenerator[EngineReply]:
        if path == CHAT:
            self.wire.append(b"".join(body))
        if path == CHAT and self.answer is not None:
            async with asgi.call(self.answer, method, path, headers=headers, body=body) as reply:
                yield reply
            return
        async with super().forward(method, path, headers=headers, body=body) as reply:
            yield reply


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer. `broken` when the server gave up in the middle of it."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    broken: bool = False

    @property
    def json(self) -> Any:
        return from_json(self.body)

    @property
    def error(self) -> Any:
        """The error of OpenAI's error body, which has exactly four keys."""
        assert set(self.json) == {"error"}, self.body
        assert set(self.json["error"]) == {"message", "type", "param", "code"}
        return self.json["error"]

    @property
    def events(self) -> list[Any]:
        """The data of each server-sent event; the end mark as text."""
        assert self.headers["content-type"] == "text/event-stream; charset=utf-8"
        return events(self.body)


def events(body: bytes) -> list[Any]:
    """Data of server-sent events, read as strictly as we write them."""
    assert body.endswith(b"\n\n"), body[-80:]
    found: list[Any] = []
    for event in body.removesuffix(b"\n\n").split(b"\n\n"):
        assert event.startswith(b"data: "), event
        data = event.removeprefix(b"data: ")
        found.append("[DONE]" if data == b"[DONE]" else from_json(data))
    return found


@dataclass
class Rig:
    """One running gateway."""

    app: GatewayApp
    engine: WatchedEngine
    settings: Settings
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def call(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
        async with asgi.call(self.app, method, path, headers=headers or {}, body=[body] if body else []) as reply:
            chunks: list[bytes] = []
            broken = False
            try:
                async for chunk in reply.chunks:
                    chunks.append(chunk)  # noqa: PERF401 - what came before it broke is kept
            except EngineProtocolError:
                broken = True
            return Answer(reply.status, reply.headers, b"".join(chunks), broken)

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        return await self.call("GET", path, headers=headers)

    async def chat(self, body: Any, headers: Mapping[str, str] | None = None) -> Answer:
        raw = body if isinstance(body, bytes) else to_json(body)
        return await self.call("POST", CHAT, raw, {**JSON, **(headers or {})})

    async def encoder(self, request_id: str) -> tuple[int, int]:
        """Encoder runs and hits of a finished request."""
        answer = (await self.get(f"/admin/requests/{request_id}", ADMIN)).json
        return answer["encoder_runs"], answer["encoder_hits"]

    async def metric(self, name: str, **labels: str) -> float:
        """A sample of /metrics; 0 where it is not there."""
        text = (await self.get("/metrics")).body.decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return sample.value
        return 0.0

    async def outcomes(self) -> dict[str, float]:
        """How many requests had each outcome; only those that are there."""
        names = ("completed", "aborted", "failed", "refused")
        counts = dict.fromkeys(names, 0.0)
        for name in names:
            for stream in ("true", "false"):
                counts[name] += await self.metric("stillframe_requests_total", outcome=name, stream=stream)
        return {name: count for name, count in counts.items() if count}

    async def idle(self) -> None:
        """Wait, at most a second, until nothing runs for anybody, in the gateway or its engine."""
        await until(self.is_idle)

    async def has_running(self, count: int) -> None:
        """Wait, at most a second, until the gateway says that so many chats run."""
        async with asyncio.timeout(1.0):
            while await self.metric("stillframe_running_requests") != count:  # noqa: ASYNC110 - as in `until`
                await asyncio.sleep(0)

    def is_idle(self) -> bool:
        names = [task.get_name() for task in asyncio.all_tasks()]
        watched = any(name == "stillframe-disconnect" for name in names)
        return not (watched or self.engine.app.open_requests or self.engine.app.driver.running)


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop work, at most a second, until something holds."""
    async with asyncio.timeout(1.0):
        while not condition():  # noqa: ASYNC110 - nothing tells when it does
            await asyncio.sleep(0)


@asynccontextmanager
async def running(
    folder: Path,
    engine: WatchedEngine | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    wait: bool = True,
) -> AsyncGenerator[Rig]:
    """A started gateway. `environment` are settings without their prefix."""
    given = {"DATA_DIR": str(folder), "ADMIN_TOKEN": ADMIN["authorization"].removeprefix("Bearer ")}
    given |= dict(environment or {})
    settings = settings_module.load(environment={f"STILLFRAME_{key}": value for key, value in given.items()})
    engine = engine or WatchedEngine()
    app = GatewayApp(settings, engine)
    async with asgi.lifespan(app):
        if wait:
            await engine.started.wait()
        yield Rig(app, engine, settings)


@asynccontextmanager
async def serving(
    folder: Path, engine: WatchedEngine | None = None, environment: Mapping[str, str] | None = None
) -> AsyncGenerator[tuple[Rig, str, int]]:
    """The same behind uvicorn, as `serve` runs it: the rig, host and port."""
    given = {"DATA_DIR": str(folder), "ADMIN_TOKEN": ADMIN["authorization"].removeprefix("Bearer ")}
    given |= {"SERVER__SHUTDOWN_GRACE_SECONDS": "1"} | dict(environment or {})
    settings = settings_module.load(environment={f"STILLFRAME_{key}": value for key, value in given.items()})
    engine = engine or WatchedEngine()
    app = GatewayApp(settings, engine)
    listener = bind("127.0.0.1", 0)
    grace = settings.server.shutdown_grace_seconds
    config = http_config(app, loop="none", log_level="warning", timeout_graceful_shutdown=grace)
    server = uvicorn.Server(config)
    serve = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await engine.started.wait()
        yield Rig(app, engine, settings), "127.0.0.1", listener.getsockname()[1]
    finally:
        server.should_exit = True
        await serve
        listener.close()


def blobs(folder: Path) -> list[Path]:
    """The pinned images in a gateway's data folder."""
    return list(folder.glob("images/**/images/*"))


def data_url(data: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{pybase64.b64encode_as_string(data)}"


def image(name: str = "base.png", **extra: Any) -> dict[str, Any]:
    """An image part with a file of the corpus."""
    return {"type": "image_url", "image_url": {"url": data_url(read(name))}, **extra}


def url_image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": parts[0] if len(parts) == 1 and isinstance(parts[0], str) else list(parts)}


def ask(*messages: Any, **parameters: Any) -> dict[str, Any]:
    """A chat body; plain words are a user's message."""
    found = [user(message) if isinstance(message, str) else message for message in messages]
    return {"messages": found, "max_tokens": 4, **parameters}


def answers_with(
    status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]] = ((b"content-type", b"application/json"),)
) -> asgi.ASGIApp:
    """An engine's HTTP surface that gives one fixed answer."""

    async def app(scope: Any, receive: asgi.Receive, send: asgi.SendMessage) -> None:
        await send({"type": "http.response.start", "status": status, "headers": list(headers)})
        await send({"type": "http.response.body", "body": body})

    return app


def streams(*chunks: bytes, breaks: bool = False) -> asgi.ASGIApp:
    """An engine's HTTP surface that streams these chunks, and breaks off after them if so told."""

    async def app(scope: Any, receive: asgi.Receive, send: asgi.SendMessage) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        if breaks:
            raise ConnectionError
        await send({"type": "http.response.body", "body": b""})

    return app
