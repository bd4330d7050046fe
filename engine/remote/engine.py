"""Any OpenAI-compatible upstream behind the engine seam.

When a request is tried again, always before the first byte of its answer reached the caller, `retries` times at most:

    no connection          nothing was sent: the next upstream, or the same one after a pause
    no free connection     nothing was sent: the next upstream, if there is one
    stale connection       a kept-alive connection ended under the request: once more on the same upstream and never on
                           another, because a request that kills its upstream looks the same
    answer 429 or 503      it was refused before work: the next upstream, if there is one; the last one's answer goes on
    anything else          never: a time-out, a reset or a 500, 502, 504 may come from a request that still runs
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

from context.errors import EngineError, EngineUnavailable, RequestError
from engine.base import ChatRequest, EngineHealth, EngineInfo, EngineReply, EventBatch
from engine.images import open_chat
from engine.remote.exchange import Exchange
from engine.remote.pool import Upstream, in_order
from engine.remote.probe import Findings
from engine.remote.settings import RemoteSettings
from engine.remote.transport import AttemptFailed

# What describes the client's connection to us, is set by us, or is not the upstream's business.
_OWN_HEADERS = frozenset(
    (
        "accept-encoding",
        "connection",
        "content-length",
        "cookie",
        "expect",
        "host",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_RESETS = ("reset_prefix_cache", "reset_mm_cache", "reset_encoder_cache")


class RemoteEngine:
    """Implements `engine.base.Engine`. Ready as soon as one upstream is; starts without, and then keeps asking."""

    def __init__(self, settings: RemoteSettings) -> None:
        self._settings = settings
        self._upstreams = tuple(Upstream(number, url, settings) for number, url in enumerate(settings.urls, 1))
        self._stopped = False
        self._told_of: tuple[Findings | None, ...] = ()
        self._told = EngineInfo("remote")

    @property
    def settings(self) -> RemoteSettings:
        """What it was made with."""
        return self._settings

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped

    async def start(self) -> None:
        """See `Engine.start`. After EngineUnavailable it goes on asking in the background and may become ready."""
        if self._stopped:
            raise EngineUnavailable("The engine was stopped.")
        waiting = [upstream for upstream in self._upstreams if not upstream.ready]
        probes = [upstream.probe(self._headers()) for upstream in waiting]
        outcomes = await asyncio.gather(*probes, return_exceptions=True)
        for upstream, outcome in zip(waiting, outcomes, strict=True):
            if isinstance(outcome, EngineError):
                upstream.watch(self._headers())
            elif outcome is not None:
                raise outcome
        if not self.health().ready:
            raise EngineUnavailable(self.health().reason)

    async def stop(self) -> None:
        """See `Engine.stop`. Chats in progress get EngineUnavailable."""
        self._stopped = True
        await asyncio.gather(*(upstream.close() for upstream in self._upstreams))

    def health(self) -> EngineHealth:
        """See `Engine.health`."""
        if self._stopped:
            return EngineHealth("stopped")
        down = [upstream for upstream in self._upstreams if not upstream.ready]
        many = len(self._upstreams) > 1
        reasons = [f"Upstream {upstream.number}: {upstream.reason}" if many else upstream.reason for upstream in down]
        if len(down) < len(self._upstreams):
            return EngineHealth("ready", " ".join(reasons))
        seen = any(upstream.findings is not None for upstream in self._upstreams)
        return EngineHealth("crashed" if seen else "starting", " ".join(reasons))

    def info(self) -> EngineInfo:
        """See `Engine.info`. What differs between upstreams is told as what holds for all of them."""
        known = tuple(upstream.findings for upstream in self._upstreams)
        if known != self._told_of:
            self._told_of, self._told = known, self._tell(known)
        return self._told

    def _tell(self, known: Sequence[Findings | None]) -> EngineInfo:
        found = [findings for findings in known if findings is not None]
        blocks = {findings.block_tokens for findings in found}
        caching = {findings.caches_prefix for findings in found}
        lengths = [findings.max_model_tokens for findings in found if findings.max_model_tokens is not None]
        return EngineInfo(
            kind="remote",
            models=tuple(dict.fromkeys(model for findings in found for model in findings.models)),
            accepts_uuid=bool(found) and all(findings.accepts_uuid for findings in found),
            block_tokens=blocks.pop() if len(blocks) == 1 else None,
            max_model_tokens=min(lengths, default=None),
            caches_prefix=False if False in caching else True if caching == {True} else None,
            asked_answers=tuple(findings.answer for findings in found if findings.answer is not None),
            extra={"upstreams": str(len(self._upstreams))},
        )

    def chat(self, request: ChatRequest) -> AbstractAsyncContextManager[EngineReply]:
        """See `Engine.chat`."""
        headers = {"content-type": "application/json", "x-request-id": request.request_id}
        headers = self._headers(headers, request.authorization)
        order = in_order(self._upstreams, request.affinity, request.body.get("model"))
        return Exchange(self, order, partial(_open, request, headers))

    def forward(
        self, method: str, path: str, *, headers: Mapping[str, str], body: Sequence[bytes] = ()
    ) -> AbstractAsyncContextManager[EngineReply]:
        """See `Engine.forward`. `path` is relative to the upstream's server root, whatever its base URL is.

        Raises:
            RequestError: the path leads out of the server root, or a header cannot be sent.
        """
        if ".." in path.partition("?")[0].replace("%2e", ".").replace("%2E", ".").split("/"):
            raise RequestError("The path must not contain '..'.", code="invalid_path", status=404)
        plain = {name.lower(): value for name, value in headers.items()}
        passed = {name: value for name, value in plain.items() if name not in _OWN_HEADERS}
        sent = self._headers(passed, passed.pop("authorization", None))

        def send(upstream: Upstream) -> AbstractAsyncContextManager[EngineReply]:
            return upstream.transport.send(method, upstream.url(path), headers=sent, body=body)

        return Exchange(self, in_order(self._upstreams, "", None), send)

    async def reset_caches(self) -> None:
        """See `Engine.reset_caches`. Resets every upstream."""
        for upstream in self._upstreams:
            for route in _RESETS:
                await self._reset(upstream, route)
            upstream.holdings.clear()

    async def _reset(self, upstream: Upstream, route: str) -> None:
        def send(_: Upstream) -> AbstractAsyncContextManager[EngineReply]:
            return upstream.transport.send("POST", upstream.url(route), headers=self._headers())

        async with Exchange(self, [upstream], send) as reply:
            answer = await reply.read()
        if reply.status != 200 or b'"success":false' in answer.replace(b" ", b""):
            raise EngineUnavailable(
                "The upstream engine does not reset its caches. vLLM does when it was started with "
                "VLLM_SERVER_DEV_MODE=1, and while no request is running."
            )

    @asynccontextmanager
    async def events(self) -> AsyncGenerator[AsyncIterator[EventBatch]]:
        """See `Engine.events`. An upstream reports none over HTTP."""
        yield _no_events()

    def unavailable(self) -> str:
        """See `Owner.unavailable`."""
        return self.health().reason or "The engine is stopped."

    def failed(self, upstream: Upstream, failure: AttemptFailed) -> None:
        """See `Owner.failed`."""
        if self._stopped or failure.kind == "busy":
            return
        if failure.kind == "unreachable":
            upstream.down(failure.error)
        if failure.kind == "unreachable" or isinstance(failure.error, EngineUnavailable):
            upstream.watch(self._headers())

    def broke_off(self, upstream: Upstream) -> None:
        """See `Owner.broke_off`."""
        upstream.watch(self._headers())

    def _headers(self, headers: Mapping[str, str] | None = None, authorization: str | None = None) -> dict[str, str]:
        """With the upstream's key, or the client's own where none is set.

        Raises:
            RequestError: a value cannot stand in a header.
        """
        sent = dict(headers or {})
        if self._settings.api_key:
            sent["authorization"] = f"Bearer {self._settings.api_key}"
        elif authorization is not None:
            sent["authorization"] = authorization
        for name, value in sent.items():
            if _CONTROL.search(value):
                raise RequestError(f"The header {name} holds a control character.", code="invalid_header")
        return sent


def _open(
    request: ChatRequest, headers: Mapping[str, str], upstream: Upstream
) -> AbstractAsyncContextManager[EngineReply]:
    """A chat to one upstream, by what is known of it."""
    assert upstream.findings is not None

    def send(segments: Sequence[bytes]) -> AbstractAsyncContextManager[EngineReply]:
        return upstream.transport.send("POST", upstream.chat_url, headers=headers, body=segments)

    return open_chat(
        request,
        accepts_uuid=upstream.findings.accepts_uuid,
        holdings=upstream.holdings,
        send=send,
        accepts_salt=upstream.findings.accepts_cache_salt,
    )


async def _no_events() -> AsyncIterator[EventBatch]:
    for batch in ():
        yield batch
