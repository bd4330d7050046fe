"""A remote engine on scripted upstreams, one request, and what to wait for."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import psutil

from engine.base import ChatRequest
from engine.remote import RemoteEngine, RemoteSettings
from tests.contract.cases import user
from tests.contract.remote_fixtures import (
    Scripted,
)


@asynccontextmanager
async def started(*upstreams: Scripted, **settings: Any) -> AsyncGenerator[RemoteEngine]:
    options: dict[str, Any] = {
        "backoff_seconds": 0.001,
        "cooling_seconds": 0.01,
        "max_cooling_seconds": 0.01,
    } | settings
    engine = RemoteEngine(RemoteSettings(tuple(upstream.url for upstream in upstreams), **options))
    try:
        await engine.start()
        yield engine
    finally:
        await engine.stop()


def new_request(content: Any = "hi", **fields: Any) -> ChatRequest:
    body = {"model": "m", "messages": [user(content)]}
    return ChatRequest(fields.pop("request_id", "r-1"), body, fields.pop("salt", "salt"), **fields)


async def ask(engine: RemoteEngine, **fields: Any) -> tuple[int, bytes]:
    async with engine.chat(new_request(**fields)) as reply:
        return reply.status, await reply.read()


def connections(url: str) -> int:
    port = int(url.split(":")[2].split("/")[0])
    ours = psutil.Process().net_connections("tcp")
    return sum(1 for one in ours if one.raddr and one.raddr.port == port and one.status != psutil.CONN_TIME_WAIT)


def is_ready(engine: RemoteEngine) -> Any:
    async def check() -> bool:
        return engine.health().ready

    return check


def no_connection(url: str) -> Any:
    async def check() -> bool:
        return connections(url) == 0

    return check
