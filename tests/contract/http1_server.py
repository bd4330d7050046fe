"""A server whose bytes a test writes, and the remote engine's transport in front of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvloop
from yarl import URL

from context.errors import EngineProtocolError
from engine.remote.settings import RemoteSettings
from engine.remote.transport import AttemptFailed, Transport

OK = b"HTTP/1.1 200 OK\r\n"
FINE = OK + b"content-length: 2\r\n\r\nok"
MEGABYTE = 1024 * 1024
_NONE: Mapping[str, str] = {}

# What is to replace the fixture below works for whole folders alone, and not in every version that we take.
BOTH_LOOPS = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy. fixture")

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    """Runs a module's tests on asyncio's event loop and on the gateway's."""
    return asyncio.DefaultEventLoopPolicy() if request.param == "asyncio" else uvloop.EventLoopPolicy()


@dataclass(slots=True)
class Server:
    """A server that does as its handler says with each connection. `answering` answers request by request."""

    url: URL = field(default_factory=URL)
    heads: list[bytes] = field(default_factory=list[bytes])
    readers: list[asyncio.StreamReader] = field(default_factory=list[asyncio.StreamReader])
    connections: int = 0
    open: int = 0

    async def all_closed(self) -> bool:
        """Whether no connection is left."""
        return self.open == 0

    async def request(self, reader: asyncio.StreamReader) -> bytes:
        """The head of the next request; its body is read and dropped."""
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        self.readers.append(reader)
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length or 0))
        return head


async def slowly(writer: asyncio.StreamWriter, *pieces: bytes) -> None:
    """Write what the other side, on the same event loop, has read before the next piece is written."""
    for piece in pieces:
        writer.write(piece)
        for _ in range(4):
            await asyncio.sleep(0)


@asynccontextmanager
async def serving(
    *answers: Sequence[bytes], handler: Handler | None = None, host: str = "127.0.0.1", **tls: Any
) -> AsyncGenerator[Server]:
    """A server; without a handler each request, on any connection, gets the next of the answers, in its pieces, and an
    answer that ends with an empty piece ends its connection."""
    served = Server()
    waiting = list(answers)
    tasks: list[Any] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await served.request(reader)
            pieces = waiting.pop(0)
            await slowly(writer, *pieces)
            if not pieces[-1]:
                return

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.connections += 1
        served.open += 1
        tasks.append(asyncio.current_task())
        try:
            await (handler or answer)(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        except RuntimeError:
            # What uvloop raises where asyncio says nothing: the client is gone.
            pass
        finally:
            served.open -= 1
            writer.close()

    server = await asyncio.start_server(connected, host, 0, **tls)
    port = server.sockets[0].getsockname()[1]
    served.url = URL.build(scheme="https" if tls else "http", host=host, port=port, path="/v1")
    try:
        yield served
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def client(url: URL, **settings: Any) -> AsyncGenerator[Transport]:
    """A transport; it leaves no connection."""
    transport = Transport(RemoteSettings((str(url),), **settings), url)
    try:
        yield transport
    finally:
        await transport.close()


async def ask(
    transport: Transport,
    url: URL,
    method: str = "POST",
    *,
    body: Sequence[bytes] = (b"{}",),
    headers: Mapping[str, str] = _NONE,
) -> tuple[int, dict[str, str], bytes]:
    """One request and its whole answer."""
    async with transport.send(method, url, headers=headers, body=body if method == "POST" else ()) as reply:
        return reply.status, dict(reply.headers), await reply.read()


async def answered(*answers: Sequence[bytes], method: str = "POST") -> tuple[list[bytes], int]:
    """The bodies that these answers give, one after another, and the connections it took."""
    async with serving(*answers) as server, client(server.url) as transport:
        bodies = [(await ask(transport, server.url, method))[2] for _ in answers]
        return bodies, server.connections


async def failure(*answers: Sequence[bytes]) -> AttemptFailed:
    """How the last of these answers fails before its body."""
    async with serving(*answers) as server, client(server.url) as transport:
        for _ in answers[:-1]:
            await ask(transport, server.url)
        with pytest.raises(AttemptFailed) as failed:
            await ask(transport, server.url)
        return failed.value


async def breaks_off(answer: Sequence[bytes], begin: bytes) -> None:
    """An answer that is given as far as it goes, and then fails."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(answer))
        transport = await stack.enter_async_context(client(server.url))
        reply = await stack.enter_async_context(transport.send("GET", server.url, headers={}))
        assert await anext(reply.chunks) == begin
        with pytest.raises(EngineProtocolError):
            await anext(reply.chunks)


@asynccontextmanager
async def client_of_many(**settings: Any) -> AsyncGenerator[tuple[Server, Transport]]:
    """A transport with several connections at rest."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await server.request(reader)
            writer.write(FINE)

    async with serving(handler=answer) as server, client(server.url, **settings) as transport:
        await asyncio.gather(*(ask(transport, server.url) for _ in range(4)))
        yield server, transport
