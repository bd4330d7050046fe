"""What an upstream is, asked once: its models, and of a vLLM whether it knows uuids and salts, and its blocks; where
the settings ask for it also whether it reports what it reads from its prefix cache."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from pydantic_core import from_json, to_json
from yarl import URL

from context.errors import EngineError, EngineProtocolError, EngineUnavailable
from engine.base import EngineReply
from engine.images import is_cache_miss
from engine.remote.settings import RemoteSettings, server_url
from engine.remote.transport import AttemptFailed, Transport

# What an upstream may answer that has no list of models, or does not show it without the client's key.
_NO_LIST = frozenset((401, 403, 404, 405))
# Who says that it owns its models, and then is worth a chat that asks what it knows.
_VLLM_OWNERS = frozenset(("vllm", "stillframe"))
_MAX_ANSWER_BYTES = 4 * 1024 * 1024
# vLLM 0.32, vllm/v1/metrics/loggers.py::PrometheusStatLogger.log_metrics_info: one line an engine core, all of its
# cache configuration as labels.
_BLOCK_SIZE = re.compile(rb'^vllm:cache_config_info\{(?:[^\n]*,)?block_size="(\d{1,9})"', re.M)
_CACHES_PREFIX = re.compile(rb'^vllm:cache_config_info\{(?:[^\n]*,)?enable_prefix_caching="(True|False)"', re.M)
# Longer than a few blocks of any engine, so that the second time there is something to be read.
_WORDS_ASKED = 300


@dataclass(frozen=True, slots=True)
class Findings:
    """What was found out about one upstream. Empty `models` and None mean that it does not say."""

    models: tuple[str, ...] = ()
    max_model_tokens: int | None = None
    accepts_uuid: bool = False
    accepts_cache_salt: bool = False
    block_tokens: int | None = None
    caches_prefix: bool | None = None
    answer: Mapping[str, Any] | None = None


async def find_out(transport: Transport, base: URL, settings: RemoteSettings, headers: Mapping[str, str]) -> Findings:
    """Ask an upstream what it is. Costs it no generated token unless it claims to be a vLLM and is none, or
    `probe_usage` asks for two.

    Raises:
        EngineError: it cannot be reached or is not ready.
    """
    status, answer = await _ask(transport, "GET", base / "models", settings, headers)
    if status in _NO_LIST:
        models: list[Mapping[str, Any]] = []
    elif status != 200:
        raise EngineUnavailable("The upstream engine is not ready to answer.")
    else:
        models = _models(answer)
    names = tuple(name for model in models if isinstance(name := model.get("id"), str))
    lengths = [length for model in models if isinstance(length := model.get("max_model_len"), int)]
    speaks_vllm = bool(names) and models[0].get("owned_by") in _VLLM_OWNERS
    knows_uuid, knows_salt = settings.accepts_uuid, settings.accepts_cache_salt
    if speaks_vllm and "auto" in (knows_uuid, knows_salt):
        found = await _probe_chat(transport, base, settings, headers, names[0])
    else:
        found = (False, False)
    takes_salt = found[1] if knows_salt == "auto" else knows_salt
    block_tokens, caches_prefix = await _cache(transport, base, settings, headers) if speaks_vllm else (None, None)
    answered = None
    if settings.probe_usage and names:
        answered = await _answer(transport, base, settings, headers, names[0], takes_salt=takes_salt)
    return Findings(
        models=names,
        max_model_tokens=min(lengths, default=None),
        accepts_uuid=found[0] if knows_uuid == "auto" else knows_uuid,
        accepts_cache_salt=takes_salt,
        block_tokens=block_tokens,
        caches_prefix=caches_prefix,
        answer=answered,
    )


async def _probe_chat(
    transport: Transport, base: URL, settings: RemoteSettings, headers: Mapping[str, str], model: str
) -> tuple[bool, bool]:
    """Whether the upstream knows uuids and salts. Names an image that nobody ever sent: who knows uuids misses it."""
    part = {"type": "image_url", "image_url": None, "uuid": secrets.token_hex(32)}
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": [part]}], "max_tokens": 1}
    url = base / "chat" / "completions"
    salted = to_json(body | {"cache_salt": secrets.token_hex(16)})
    status, answer = await _ask(transport, "POST", url, settings, headers, salted)
    knows_salt = not (status == 400 and b"cache_salt" in answer)
    if not knows_salt:
        status, answer = await _ask(transport, "POST", url, settings, headers, to_json(body))
    return status == 400 and is_cache_miss(answer), knows_salt


async def _answer(
    transport: Transport,
    base: URL,
    settings: RemoteSettings,
    headers: Mapping[str, str],
    model: str,
    *,
    takes_salt: bool,
) -> Mapping[str, Any] | None:
    """The second answer to one prompt, which could be read from the cache. Nobody needs it to chat, so that an upstream
    that gives none is used without."""
    prompt = f"{secrets.token_hex(8)}{' one' * _WORDS_ASKED}"
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": 1}
    if takes_salt:
        body["cache_salt"] = secrets.token_hex(16)
    value: Any = None
    for _ in range(2):
        try:
            status, answer = await _ask(
                transport, "POST", base / "chat" / "completions", settings, headers, to_json(body)
            )
            value = from_json(answer) if status == 200 else None
        except (EngineError, ValueError):
            return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


async def _cache(
    transport: Transport, base: URL, settings: RemoteSettings, headers: Mapping[str, str]
) -> tuple[int | None, bool | None]:
    """Tokens of a KV block, the same in all engine cores behind the upstream, and whether these keep a prefix cache.
    Nobody needs it to chat, so that an upstream that hides its metrics, or fails to show them, is used without."""
    try:
        status, answer = await _ask(transport, "GET", server_url(base, "metrics"), settings, headers)
    except EngineError:
        return None, None
    if status != 200:
        return None, None
    sizes = {int(size) for size in _BLOCK_SIZE.findall(answer)}
    caching = set(_CACHES_PREFIX.findall(answer))
    return (sizes.pop() or None) if len(sizes) == 1 else None, b"False" not in caching if caching else None


async def _ask(
    transport: Transport, method: str, url: URL, settings: RemoteSettings, headers: Mapping[str, str], body: bytes = b""
) -> tuple[int, bytes]:
    content = {"content-type": "application/json"} if body else {}
    seconds = min(settings.probe_timeout_seconds, settings.read_timeout_seconds)
    tries = 0
    while True:
        tries += 1
        try:
            async with transport.send(
                method, url, headers={**headers, **content}, body=(body,) if body else (), read_timeout_seconds=seconds
            ) as reply:
                return reply.status, await _bounded(reply)
        except AttemptFailed as failure:
            # An upstream that was started anew has closed all connections that were at rest.
            if failure.kind != "stale" or tries > 1:
                raise failure.error from failure.__cause__


async def _bounded(reply: EngineReply) -> bytes:
    chunks: list[bytes] = []
    async for chunk in reply.chunks:
        chunks.append(chunk)
        if sum(map(len, chunks)) > _MAX_ANSWER_BYTES:
            raise EngineProtocolError("The upstream engine's answer about itself has no end.")
    return b"".join(chunks)


def _models(answer: bytes) -> list[Mapping[str, Any]]:
    try:
        body: Any = from_json(answer)
    except ValueError as error:
        raise EngineProtocolError("The upstream engine's list of models is not JSON.") from error
    data: Any = cast("dict[str, Any]", body).get("data") if isinstance(body, dict) else None
    if not isinstance(data, list):
        raise EngineProtocolError("The upstream engine's list of models is not OpenAI's.")
    return [cast("dict[str, Any]", model) for model in cast("list[Any]", data) if isinstance(model, dict)]
