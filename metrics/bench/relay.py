"""The yardstick: the least that a proxy in Python can do. A plain ASGI app that hands every request on with aiohttp.

python -m metrics.bench.relay --port 9001 --upstream http://127.0.0.1:9000
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

import aiohttp
import uvicorn
from yarl import URL

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Relay:
    """The app. It looks at nothing and keeps nothing."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream.rstrip("/")
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._relay(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4)
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None),
        )
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._session.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _relay(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._session is not None
        segments: list[bytes] = []
        more = True
        while more:
            message = await receive()
            segments.append(message.get("body", b""))
            more = message.get("more_body", False)
        url = URL(self._upstream + scope["raw_path"].decode(), encoded=True)
        body = b"".join(segments) or None
        headers = {"content-type": "application/json"}
        async with self._session.request(scope["method"], url, data=body, headers=headers) as response:
            kind = response.headers.get("content-type", "application/json").encode()
            await send({"type": "http.response.start", "status": response.status, "headers": [(b"content-type", kind)]})
            async for chunk in response.content.iter_any():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line of the module; gives the exit status."""
    parser = argparse.ArgumentParser(prog="python -m metrics.bench.relay", description="Serve a plain relay.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--upstream", required=True, help="server root, for example http://127.0.0.1:9000")
    options = parser.parse_args(arguments)
    uvicorn.run(Relay(options.upstream.removesuffix("/v1")), port=options.port, log_level="warning", access_log=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
