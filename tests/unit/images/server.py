"""A real web server on the loopback address, and a resolver whose answers a test chooses."""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from context.images.png import write_png
from tests.unit.images.corpus import read


@dataclass
class Site:
    """What the server was asked, and what `/changing` shows."""

    port: int = 0
    requests: list[web.Request] = field(default_factory=list[web.Request])
    changing: bytes = b""
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    release: asyncio.Event = field(default_factory=asyncio.Event)

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"


class Resolver(AbstractResolver):
    """Answers with the next address lists in turn; the last one stays."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers, self.asked = list(answers), 0

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        self.asked += 1
        addresses = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if not addresses:
            raise OSError(None, "no such host")
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in addresses
        ]

    async def close(self) -> None:
        return


@asynccontextmanager
async def running_site() -> AsyncGenerator[Site]:
    site = Site()

    async def handle(request: web.Request) -> web.StreamResponse:
        site.requests.append(request)
        match request.path:
            case "/image.png":
                return web.Response(body=read("base.png"), content_type="image/png")
            case "/changing":
                return web.Response(body=site.changing)
            case "/picture":
                # As many different pictures as there are numbers.
                rows = int(request.query_string)
                return web.Response(body=write_png(4, rows, [bytes(12 * rows)]))
            case "/empty":
                return web.Response(body=b"")
            case "/html":
                return web.Response(text="<html>" + "x" * 100, content_type="text/html")
            case "/forbidden":
                return web.Response(status=403)
            case "/gzip":
                return web.Response(body=gzip.compress(read("base.png")), headers={"Content-Encoding": "gzip"})
            case "/cookie":
                response = web.HTTPFound("/image.png")
                response.set_cookie("a", "b")
                raise response
            case "/slow":
                site.asked.set()
                await site.release.wait()
                return web.Response(body=read("base.png"))
            case "/large":
                return web.Response(body=read("base.png") + bytes(200_000))
            case "/endless":
                endless = web.StreamResponse()
                await endless.prepare(request)
                await endless.write(read("base.png"))
                while True:
                    await endless.write(bytes(65536))
            case _:
                return web.Response(status=302, headers={"Location": request.query_string})

    runner = web.AppRunner(_application(handle), shutdown_timeout=0.1)
    await runner.setup()
    listener = web.TCPSite(runner, "127.0.0.1", 0)
    await listener.start()
    site.port = runner.addresses[0][1]
    try:
        yield site
    finally:
        site.release.set()
        await runner.cleanup()


def _application(handle: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> web.Application:
    application = web.Application()
    application.router.add_get("/{path:.*}", handle)
    return application
