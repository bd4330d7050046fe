"""Real upstreams for the remote engine: the fake engine behind a socket, and a server that does as it is told."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import uvicorn
from pydantic_core import to_json

from engine.fake import FakeConfig
from engine.fake.app import FakeApp, create_app

VLLM_MODELS = {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 4096}]}
PLAIN_MODELS = {"data": [{"id": "m", "owned_by": "somebody"}]}


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, started: threading.Event) -> None:
        super().__init__(config)
        self._listening = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._listening.set()


class ServedFake:
    """A fake engine on a port of its own, in a thread of its own: its tasks are not among the test's."""

    def __init__(self, config: FakeConfig | None = None) -> None:
        self.app: FakeApp = create_app(config)
        # asyncio turns Nagle's algorithm off only where a socket names its protocol. With it a stream is held up.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        started = threading.Event()
        options = uvicorn.Config(self.app, log_level="critical", access_log=False, timeout_graceful_shutdown=1)
        self._server = _Server(options, started)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, args=(listener,))
        self._thread.start()
        assert started.wait(20)

    def _run(self, listener: socket.socket) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            await self._server.serve(sockets=[listener])

        asyncio.run(serve())
        listener.close()

    @property
    def running(self) -> int:
        """What the engine works on."""
        return self.app.open_requests + self.app.driver.running

    def die(self) -> None:
        """Vanish as a killed process does: nothing listens, every connection is reset."""

        async def vanish() -> None:
            for server in self._server.servers:
                server.close()
            for connection in list(self._server.server_state.connections):
                cast(Any, connection).transport.abort()

        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(vanish(), self._loop).result(20)

    def close(self) -> None:
        """End the server."""
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive()


@contextmanager
def served_fake(config: FakeConfig | None = None) -> Generator[ServedFake]:
    """A fake engine behind a socket."""
    fake = ServedFake(config)
    try:
        yield fake
    finally:
        fake.close()


@dataclass(slots=True)
class Received:
    """One request as a scripted server got it. `connection` counts its connections from 0."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    connection: int


@dataclass(slots=True)
class Exchange:
    """What a script answers with. Returning without having answered closes the connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """A whole answer; the connection stays open."""
        await self.head(status, {"content-length": str(len(body)), **(headers or {})})
        await self.raw(body)

    async def head(self, status: int, headers: Mapping[str, str]) -> None:
        """The answer's head alone."""
        fields = {"content-type": "application/json", **headers}
        lines = [f"HTTP/1.1 {status} Word", *(f"{name}: {value}" for name, value in fields.items())]
        await self.raw("\r\n".join([*lines, "", ""]).encode())

    async def raw(self, data: bytes) -> None:
        """Bytes as they are."""
        self.writer.write(data)
        await self.writer.drain()

    async def left(self) -> None:
        """Return when the other side has closed its connection."""
        try:
            while await self.reader.read(65536):
                pass
        except ConnectionError:
            pass

    def abort(self) -> None:
        """Reset the connection."""
        self.writer.transport.abort()


Script = Callable[[Received, Exchange], Awaitable[bool]]


@dataclass(slots=True)
class Scripted:
    """A server whose answers a test writes. `GET /v1/models` answers `models`; a script gets all the rest.

    A script returns whether the connection stays open.
    """

    script: Script
    models: Mapping[str, Any] = field(default_factory=lambda: dict(PLAIN_MODELS))
    models_status: int = 200
    received: list[Received] = field(default_factory=list[Received])
    url: str = ""
    connections: int = 0
    reads_body: bool = True

    @property
    def chats(self) -> list[Received]:
        """The requests that were no question for models."""
        return [request for request in self.received if request.path != "/v1/models"]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        number, self.connections = self.connections, self.connections + 1
        try:
            while await self._exchange(number, reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _exchange(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:-2])}
        size = int(headers.get("content-length", 0)) if self.reads_body else 0
        request = Received(method, path, headers, await reader.readexactly(size), number)
        self.received.append(request)
        exchange = Exchange(reader, writer)
        if path == "/v1/models":
            await exchange.answer(self.models_status, to_json(self.models))
            return True
        return await self.script(request, exchange)


@asynccontextmanager
async def scripted(script: Script, port: int = 0, **options: Any) -> AsyncGenerator[Scripted]:
    """A scripted server on a port; it ends with all its connections."""
    upstream = Scripted(script, **options)
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.create_task(upstream.serve(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", port)
    upstream.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield upstream
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def fine(request: Received, exchange: Exchange) -> bool:
    """A script: every request succeeds."""
    await exchange.answer(200, b'{"choices":[]}')
    return True


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
