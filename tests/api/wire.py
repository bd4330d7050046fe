"""Bytes on a socket: requests as they are written, answers as they come."""

from __future__ import annotations

import asyncio
import socket
import struct

from tests.api.rig import CHAT


def head(method: str, path: str, *lines: str) -> bytes:
    """A request's head."""
    return "\r\n".join((f"{method} {path} HTTP/1.1", "host: gateway", *lines, "", "")).encode()


def post(body: bytes, *lines: str) -> bytes:
    """A chat request."""
    return head("POST", CHAT, "content-type: application/json", f"content-length: {len(body)}", *lines) + body


class Wire:
    """One raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> Wire:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        fields = dict(line.split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split()[1]), fields

    async def whole(self) -> tuple[int, dict[str, str], bytes]:
        status, fields = await self.head()
        if fields.get("transfer-encoding") == "chunked":
            return status, fields, await self._chunked()
        return status, fields, await self.reader.readexactly(int(fields["content-length"]))

    async def _chunked(self) -> bytes:
        body = b""
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            body += await self.reader.readexactly(size)
            assert await self.reader.readexactly(2) == b"\r\n"
        assert await self.reader.readexactly(2) == b"\r\n"
        return body

    async def closed(self) -> bool:
        return await self.reader.read() == b""

    async def hang_up(self) -> None:
        self.writer.close()
        await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)

    async def reset(self) -> None:
        """Vanish: the other side gets a reset, not an end."""
        raw: socket.socket = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()
