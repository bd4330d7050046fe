"""Which HTTP client should forward chats? Measures each inside a plain ASGI relay; docs/adr/0006 keeps the figures.

    python -m tests.bench.http_client [--rounds 7] [--json FILE]

A relay process for each client and one upstream process that answers the same few bytes at once. All are measured in
turn within each round, so that the ratios hold although the machine's speed does not. `httpx` is not a dependency of
Stillframe: it comes with the development extras.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import uvicorn
import uvloop
from aiohttp.abc import AbstractStreamWriter
from rich.console import Console
from rich.table import Table
from yarl import URL

from engine.remote.settings import RemoteSettings
from engine.remote.transport import Transport
from metrics.bench import bodies
from metrics.bench.load import at_a_time
from metrics.bench.processes import Server, serving
from metrics.bench.relay import Receive, Scope, Send
from metrics.bench.result import Spread
from metrics.bench.stages import latency

_ANSWER = json.dumps({"choices": [{"message": {"content": "word " * 100}}], "usage": {"prompt_tokens": 9}}).encode()
_JSON = [(b"content-type", b"application/json")]
_HEADERS = {"content-type": "application/json", "x-request-id": "r"}

Answer = tuple[int, AsyncIterator[bytes]]
Forward = Callable[[str, Sequence[bytes]], AbstractAsyncContextManager[Answer]]


async def upstream(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers everything with the same bytes as soon as the body is there."""
    if scope["type"] != "http":
        return
    await _body_of(receive)
    length = (b"content-length", str(len(_ANSWER)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [*_JSON, length]})
    await send({"type": "http.response.body", "body": _ANSWER})


async def _body_of(receive: Receive) -> bytes:
    chunks: list[bytes] = []
    more = True
    while more:
        message = await receive()
        chunks.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(chunks)


def _pieces(body: bytes) -> tuple[bytes, ...]:
    """A body as the gateway has it: what stands before an image, the image, what stands behind it."""
    return (body[:200], body[200:-100], body[-100:]) if len(body) > 100_000 else (body,)


class Relay:
    """A plain relay around one client."""

    def __init__(self, client: str, url: str) -> None:
        self._client, self._url = client, url
        self._lifetime = AsyncExitStack()
        self._forward: Forward | None = None
        self._known: dict[int, tuple[bytes, ...]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            self._forward = await self._lifetime.enter_async_context(CLIENTS[self._client](self._url))
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await self._lifetime.aclose()
            await send({"type": "lifespan.shutdown.complete"})
            return
        assert self._forward is not None
        body = await _body_of(receive)
        # The pieces are made once: every client starts from the same ones, and the cutting is not measured.
        pieces = self._known.setdefault(len(body), _pieces(body))
        async with self._forward(scope["path"], pieces) as (status, chunks):
            await send({"type": "http.response.start", "status": status, "headers": _JSON})
            async for chunk in chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=4),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        timeout=aiohttp.ClientTimeout(total=None),
    )


@asynccontextmanager
async def aiohttp_joined(url: str) -> AsyncGenerator[Forward]:
    """aiohttp, the body joined to one piece."""
    async with _session() as session:

        @asynccontextmanager
        async def forward(path: str, pieces: Sequence[bytes]) -> AsyncGenerator[Answer]:
            async with session.post(url + path, data=b"".join(pieces), headers=_HEADERS) as response:
                yield response.status, response.content.iter_any()

        yield forward


@asynccontextmanager
async def aiohttp_file(url: str) -> AsyncGenerator[Forward]:
    """aiohttp, the body joined and given as a file, as its own warning about large bodies asks."""
    async with _session() as session:

        @asynccontextmanager
        async def forward(path: str, pieces: Sequence[bytes]) -> AsyncGenerator[Answer]:
            async with session.post(url + path, data=io.BytesIO(b"".join(pieces)), headers=_HEADERS) as response:
                yield response.status, response.content.iter_any()

        yield forward


class _Pieces(aiohttp.Payload):
    """A body of known length that is written piece by piece."""

    _autoclose = True

    def __init__(self, pieces: Sequence[bytes]) -> None:
        super().__init__(pieces, content_type="application/json")
        self._pieces = pieces
        self._size = sum(map(len, pieces))

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return b"".join(self._pieces).decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        for piece in self._pieces:
            await writer.write(piece)


@asynccontextmanager
async def aiohttp_pieces(url: str) -> AsyncGenerator[Forward]:
    """aiohttp, one write for each piece of a large body."""
    async with _session() as session:

        @asynccontextmanager
        async def forward(path: str, pieces: Sequence[bytes]) -> AsyncGenerator[Answer]:
            data = pieces[0] if len(pieces) == 1 else _Pieces(pieces)
            async with session.post(url + path, data=data, headers=_HEADERS) as response:
                yield response.status, response.content.iter_any()

        yield forward


@asynccontextmanager
async def ours(url: str) -> AsyncGenerator[Forward]:
    """What the gateway uses: its own client, with its time-outs, its bound on connections and its header filter."""
    transport = Transport(RemoteSettings((url,)), URL(url))

    @asynccontextmanager
    async def forward(path: str, pieces: Sequence[bytes]) -> AsyncGenerator[Answer]:
        async with transport.send("POST", URL(url + path), headers=_HEADERS, body=pieces) as reply:
            yield reply.status, reply.chunks

    yield forward
    await transport.close()


@asynccontextmanager
async def httpx_plain(url: str) -> AsyncGenerator[Forward]:
    """httpx as its documentation shows it."""
    async with httpx.AsyncClient(timeout=None) as client:  # noqa: S113  nothing waits for ever here

        @asynccontextmanager
        async def forward(path: str, pieces: Sequence[bytes]) -> AsyncGenerator[Answer]:
            async with client.stream("POST", url + path, content=b"".join(pieces), headers=_HEADERS) as response:
                yield response.status_code, response.aiter_raw()

        yield forward


@asynccontextmanager
async def httpx_tuned(url: str) -> AsyncGenerator[Forward]:
    """httpx without its client: the HTTP/1.1 transport alone, its pool unbounded, nothing read from the environment."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=4)
    timeouts: dict[str, Any] = {"timeout": httpx.Timeout(None).as_dict()}
    parsed: dict[str, httpx.URL] = {}
    async with httpx.AsyncHTTPTransport(http2=False, limits=limits, trust_env=False) as transport:

        @asynccontextmanager
        async def forward(path: str, pieces: Sequence[bytes]) -> AsyncGenerator[Answer]:
            target = parsed.get(path) or parsed.setdefault(path, httpx.URL(url + path))
            content = b"".join(pieces)
            request = httpx.Request("POST", target, headers=_HEADERS, content=content, extensions=timeouts)
            response = await transport.handle_async_request(request)
            try:
                yield response.status_code, response.aiter_raw()
            finally:
                await response.aclose()

        yield forward


CLIENTS: dict[str, Callable[[str], AbstractAsyncContextManager[Forward]]] = {
    "ours": ours,
    "aiohttp, in pieces": aiohttp_pieces,
    "aiohttp, joined": aiohttp_joined,
    "aiohttp, as a file": aiohttp_file,
    "httpx, transport alone": httpx_tuned,
    "httpx": httpx_plain,
}


async def measure(rounds: int) -> dict[str, Any]:
    """All figures by body and target: `latency` at concurrency 1; `cpu_32` and `rate_32` at concurrency 32."""
    words = ("-m", "tests.bench.http_client")
    async with AsyncExitStack() as stack:

        async def start(name: str, *arguments: str) -> Server:
            command = (sys.executable, *words, *arguments, "--port", "{port}")
            return await stack.enter_async_context(serving(name, command, ready_path="/", timeout_seconds=30))

        servers = {"direct": await start("upstream", "--serve", "upstream")}
        for client in CLIENTS:
            servers[client] = await start(client, "--serve", client, "--upstream", servers["direct"].url)
        small = bodies.chat("m", "hello")
        large = bodies.chat("m", "hello", bodies.noise_png(768 * 1024, 1))
        found: dict[str, Any] = {"latency": {}, "cpu_32": {}, "rate_32": {}}
        for name, request, count, crowd in (("small", small, 150, 1000), ("1 MB", large, 30, 150)):
            targets = {client: (server, request) for client, server in servers.items()}
            found["latency"][name] = await latency(targets, count, rounds, lambda: None)
            found["cpu_32"][name], found["rate_32"][name] = await _crowd(servers, request, crowd, rounds)
    return found


async def _crowd(
    servers: dict[str, Server], request: bytes, count: int, rounds: int
) -> tuple[dict[str, float], dict[str, float]]:
    async def same(_: int) -> bytes:
        return request

    cpu: dict[str, list[float]] = {name: [] for name in servers}
    rate: dict[str, list[float]] = {name: [] for name in servers}
    for number in range(rounds):
        for name in list(servers)[:: 1 if number % 2 == 0 else -1]:
            before = servers[name].cpu_seconds()
            rate[name].append(count / await at_a_time(servers[name].port, 32, count, same))
            cpu[name].append((servers[name].cpu_seconds() - before) / count)
    middle = [{name: statistics.median(each) for name, each in taken.items()} for taken in (cpu, rate)]
    return middle[0], middle[1]


def table(found: dict[str, Any]) -> Table:
    """The figures beside each other."""
    shown = Table(title="HTTP client in a plain ASGI relay")
    headings = ("body", "client", "added p50 ms", "against aiohttp", "CPU us at 1", "CPU us at 32", "requests/s at 32")
    for heading in headings:
        shown.add_column(heading, justify="left" if heading in ("body", "client") else "right")
    for body, spreads in found["latency"].items():
        direct: Spread = spreads["direct"]
        base = spreads["aiohttp, in pieces"].p50_seconds - direct.p50_seconds
        for name, spread in spreads.items():
            added = spread.p50_seconds - direct.p50_seconds
            ratio = f"{added / base:.2f}x" if name != "direct" else f"({direct.p50_seconds * 1000:.2f} ms)"
            cpu = (spread.cpu_seconds, found["cpu_32"][body][name])
            micro = [f"{seconds * 1e6:.0f}" for seconds in cpu]
            shown.add_row(body, name, f"{added * 1000:.2f}", ratio, *micro, f"{found['rate_32'][body][name]:.0f}")
    return shown


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line of the module; gives the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.http_client", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--upstream", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        app = upstream if options.serve == "upstream" else Relay(options.serve, options.upstream)
        lifespan = "off" if options.serve == "upstream" else "on"
        uvicorn.run(
            app,
            port=options.port,
            lifespan=lifespan,
            loop="uvloop",
            http="httptools",
            log_level="warning",
            access_log=False,
        )
        return 0
    found = uvloop.run(measure(options.rounds))
    Console(width=150).print(table(found))
    if options.json:
        plain = {
            body: {name: vars_of(each) for name, each in spreads.items()} for body, spreads in found["latency"].items()
        }
        options.json.write_text(json.dumps(found | {"latency": plain}, indent=1))
    return 0


def vars_of(spread: Spread) -> dict[str, float]:
    """A spread as plain values."""
    return {"p50_seconds": spread.p50_seconds, "p99_seconds": spread.p99_seconds, "cpu_seconds": spread.cpu_seconds}


if __name__ == "__main__":
    sys.exit(main())
