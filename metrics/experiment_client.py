"""How experiment and demonstration talk to a gateway: as a client, straight to its engine, and as its administrator."""

from __future__ import annotations

import io
import secrets
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import aiohttp
from pydantic_core import from_json, to_json

from context.errors import EngineUnavailable
from metrics.usage import Usage, read_usage

Route = Literal["direct", "gateway"]
_TIMEOUT_SECONDS = 300
_JSON = {"content-type": "application/json"}


@dataclass(frozen=True, slots=True)
class Answer:
    """One request's figures, what was said, and the response headers."""

    request_id: str
    usage: Usage
    ttft_seconds: float
    total_seconds: float
    text: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


class GatewayClient:
    """Talks to a running gateway as a client and as its administrator."""

    def __init__(self, url: str, admin_token: str, api_key: str = "") -> None:
        self._url = url.rstrip("/")
        self._admin = {"authorization": f"Bearer {admin_token}"}
        self._client = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[GatewayClient]:
        """Hold the connections while inside."""
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as session:
            self._session = session
            yield self

    async def state(self) -> dict[str, Any]:
        """The gateway's `/admin/state`.

        Raises:
            EngineUnavailable: there is no gateway, or it refuses the token.
        """
        return await self._json("GET", "/admin/state")

    async def reset(self) -> None:
        """Empty the engine's caches."""
        await self._json("POST", "/admin/reset")

    async def encoder(self, request_id: str) -> tuple[int | None, int | None]:
        """Encoder runs and hits of a finished request."""
        record = await self._json("GET", f"/admin/requests/{request_id}")
        return record["encoder_runs"], record["encoder_hits"]

    async def tokens(self, body: Mapping[str, Any]) -> list[int]:
        """The prompt's token ids, images expanded, by the engine's own tokenizer. An answer begins behind them, unless
        `add_generation_prompt` is false."""
        begins = body.get("add_generation_prompt", True)
        asked = {"model": body["model"], "messages": body["messages"], "add_generation_prompt": begins}
        if "tools" in body:
            asked["tools"] = body["tools"]
        return (await self._json("POST", "/engine/tokenize", asked))["tokens"]

    async def chat(self, path: Route, body: Mapping[str, Any], extra: Mapping[str, str] | None = None) -> Answer:
        """Send a streamed chat and take its figures. `extra` are request headers.

        Raises:
            EngineUnavailable: it was refused, or the gateway broke off.
        """
        assert self._session is not None
        address = "/v1/chat/completions" if path == "gateway" else "/engine/v1/chat/completions"
        request_id = secrets.token_hex(12)
        headers = self._client if path == "gateway" else {**self._admin, "x-request-id": request_id}
        headers = {**headers, **(extra or {}), **_JSON}
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        content = _content(asked)
        began = time.perf_counter()
        try:
            async with self._session.post(self._url + address, data=content, headers=headers) as response:
                if response.status != 200:
                    raise EngineUnavailable(f"A chat request was refused: {await _reason(response)}")
                if path == "gateway":
                    request_id = response.headers["x-request-id"]
                told = {name.lower(): value for name, value in response.headers.items()}
                first, usage, text = await _read(response)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise EngineUnavailable("The gateway broke off in the middle of an answer.") from error
        ended = time.perf_counter()
        return Answer(request_id, read_usage(usage), (first or ended) - began, ended - began, text, told)

    async def _json(self, method: str, path: str, body: Any = None) -> Any:
        assert self._session is not None
        content, headers = (None, self._admin) if body is None else (_content(body), {**self._admin, **_JSON})
        try:
            async with self._session.request(method, self._url + path, data=content, headers=headers) as response:
                if response.status != 200:
                    raise EngineUnavailable(f"The gateway refused {path}: {await _reason(response)}")
                answer = await response.json()
        except (aiohttp.ClientConnectionError, TimeoutError) as error:
            raise EngineUnavailable(
                f"There is no gateway at {self._url}. Start one with 'stillframe serve'."
            ) from error
        except (aiohttp.ClientError, ValueError) as error:
            raise EngineUnavailable(f"What answers at {self._url} is no Stillframe gateway.") from error
        if not isinstance(answer, dict):
            raise EngineUnavailable(f"What answers at {self._url} is no Stillframe gateway.")
        return cast("dict[str, Any]", answer)


def _content(body: Any) -> io.BytesIO:
    """A body that is sent in pieces: aiohttp warns of large ones."""
    return io.BytesIO(to_json(body))


async def _read(response: aiohttp.ClientResponse) -> tuple[float, Mapping[str, Any] | None, str]:
    """When the first content came, 0 if none did, the stream's usage, and the text of its first choice.

    Raises:
        EngineUnavailable: the stream says that it failed.
    """
    first, usage = 0.0, None
    said: list[str] = []
    async for line in response.content:
        if not line.startswith(b"data: {"):
            continue
        event: dict[str, Any] = from_json(line[6:])
        if "error" in event:
            raise EngineUnavailable("The engine failed in the middle of an answer.")
        if content := _said(event):
            first = first or time.perf_counter()
            said.append(content)
        usage = event.get("usage") or usage
    return first, usage, "".join(said)


def _said(event: Mapping[str, Any]) -> str:
    """What an event adds to the first choice."""
    choices: Sequence[Mapping[str, Any]] = event.get("choices") or ()
    deltas: list[Any] = [choice.get("delta") for choice in choices if not choice.get("index")]
    return "".join(delta.get("content") or "" for delta in deltas if delta)


async def _reason(response: aiohttp.ClientResponse) -> str:
    try:
        return str((await response.json())["error"]["message"])
    except (ValueError, KeyError, TypeError, aiohttp.ContentTypeError):
        return f"HTTP {response.status}"
