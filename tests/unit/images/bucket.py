"""A small object store server on the loopback address that can be held up and made to refuse."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from context.store.blobs import BlobStore


@dataclass
class Bucket:
    """`blobs` by key. `asked` counts requests by operation (`get`, `put`, `list`, `delete`), before they are served.

    An operation waits while its name is in `held`, and is refused while it is in `refused`.
    """

    blobs: dict[str, bytes] = field(default_factory=dict[str, bytes])
    held: dict[str, asyncio.Event] = field(default_factory=dict[str, asyncio.Event])
    refused: set[str] = field(default_factory=set[str])
    asked: list[str] = field(default_factory=list[str])
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    port: int = 0

    def open(self, max_bytes: int = 0) -> BlobStore:
        options = {
            "endpoint": f"http://127.0.0.1:{self.port}",
            "region": "x",
            "access_key_id": "a",
            "secret_access_key": "b",
        }
        return BlobStore("s3://bucket", max_bytes, options=options, client_options={"allow_http": True})

    def hold(self, operation: str) -> asyncio.Event:
        """Hold an operation up until the event is set."""
        self.held[operation] = asyncio.Event()
        return self.held[operation]

    async def wait_for(self, operation: str, times: int = 1) -> None:
        """Wait until an operation was asked for so many times."""
        async with asyncio.timeout(10), self.changed:
            await self.changed.wait_for(lambda: self.asked.count(operation) >= times)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        key, body = request.path.removeprefix("/bucket").lstrip("/"), await request.read()
        operation = _operation(request)
        async with self.changed:
            self.asked.append(operation)
            self.changed.notify_all()
        refused = operation in self.refused
        if operation in self.held:
            await self.held[operation].wait()
        if refused:
            return web.Response(status=403)
        match operation:
            case "put":
                self.blobs[key] = body
                return web.Response(headers={"ETag": '"0"'})
            case "list":
                return web.Response(text=self._listing(), content_type="application/xml")
            case "delete":
                keys = re.findall(r"<Key>(.*?)</Key>", body.decode()) or [key]
                for each in keys:
                    self.blobs.pop(each, None)
                deleted = "".join(f"<Deleted><Key>{each}</Key></Deleted>" for each in keys)
                return web.Response(text=f"<DeleteResult>{deleted}</DeleteResult>", content_type="application/xml")
            case _:
                if key not in self.blobs:
                    return web.Response(status=404)
                headers = {"ETag": '"0"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
                return web.Response(body=self.blobs[key], headers=headers)

    def _listing(self) -> str:
        entries = "".join(
            f"<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:{at:02}.000Z</LastModified><ETag>0</ETag>"
            f"<Size>{len(data)}</Size></Contents>"
            for at, (key, data) in enumerate(self.blobs.items())
        )
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"


@asynccontextmanager
async def running_bucket() -> AsyncGenerator[Bucket]:
    bucket = Bucket()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", bucket.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    bucket.port = runner.addresses[0][1]
    try:
        yield bucket
    finally:
        for event in bucket.held.values():
            event.set()
        await runner.cleanup()


def _operation(request: web.Request) -> str:
    if request.method == "POST" or request.method == "DELETE":
        return "delete"
    if request.method == "PUT":
        return "put"
    if "list-type" in request.query:
        return "list"
    return request.method.lower()
