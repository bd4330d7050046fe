"""How answers come through a socket."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from engine import asgi
from tests.api.rig import WatchedEngine, ask, serving, user

_BODY = to_json(ask(user({"type": "text", "text": "hello"})))


def request(method: str, path: str, body: bytes = b"") -> bytes:
    head = (
        f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def whole(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """An answer's head, and its body by its length."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length: "))
    return head, await reader.readexactly(int(length.removeprefix(b"content-length: ")))


async def test_a_whole_answer_comes_in_one_piece(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, host, port):
        reader, writer = await asyncio.open_connection(host, port)
        for _ in range(5):
            writer.write(request("POST", "/v1/chat/completions", _BODY))
            # What one write made is what one read gives.
            piece = await reader.read(65_536)
            head, _, body = piece.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            assert f"content-length: {len(body)}".encode() in head
            assert body
        writer.close()


async def test_a_head_without_a_body_is_not_kept_back(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, host, port):
        reader, writer = await asyncio.open_connection(host, port)
        for _ in range(2):
            writer.write(request("HEAD", "/health/live"))
            async with asyncio.timeout(5):
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 ")
        writer.write(request("GET", "/health/live"))
        assert (await whole(reader))[0].startswith(b"HTTP/1.1 200")
        writer.close()


async def test_a_connection_that_is_closed_after_the_answer_gives_all_of_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, host, port):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(request("GET", "/metrics").replace(b"host: x", b"host: x\r\nconnection: close"))
        head, body = await whole(reader)
        assert head.startswith(b"HTTP/1.1 200")
        assert b"stillframe_" in body
        assert await reader.read() == b""
        writer.close()


async def test_the_head_of_a_stream_does_not_wait_for_its_first_event(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def answer(scope: Any, receive: asgi.Receive, send: asgi.SendMessage) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        await go_on.wait()
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    async with serving(tmp_path, WatchedEngine(answer=answer)) as (_, host, port):
        reader, writer = await asyncio.open_connection(host, port)
        body = to_json(ask(user({"type": "text", "text": "hello"}), stream=True))
        writer.write(request("POST", "/v1/chat/completions", body))
        async with asyncio.timeout(5):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        go_on.set()
        assert b"data: [DONE]" in await reader.readuntil(b"0\r\n\r\n")
        writer.close()
