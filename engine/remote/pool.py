"""The upstreams: what is known of each, which one a conversation goes to, and bringing one back that was down."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from hashlib import blake2b

from yarl import URL

from context.errors import EngineError
from engine.images import Holdings
from engine.remote.probe import Findings, find_out
from engine.remote.settings import RemoteSettings, base_url, server_url
from engine.remote.transport import Transport

_log = logging.getLogger(__name__)


class Upstream:
    """One upstream. `findings` is None until it was first reached; `reason` says why it is down, else empty."""

    def __init__(self, number: int, url: str, settings: RemoteSettings) -> None:
        self.number = number
        self.base = base_url(url)
        self.chat_url = self.url("v1/chat/completions")
        self.holdings = Holdings()
        self.findings: Findings | None = None
        self.reason = "not asked yet"
        self.in_flight = 0
        self._settings = settings
        self._transport: Transport | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def ready(self) -> bool:
        """Whether requests may go to it."""
        return self.findings is not None and not self.reason

    @property
    def transport(self) -> Transport:
        """Its connections; opened at first use, in the event loop that uses them."""
        if self._transport is None:
            self._transport = Transport(self._settings, self.base)
        return self._transport

    def url(self, path: str) -> URL:
        """See `server_url`."""
        return server_url(self.base, path)

    def serves(self, model: object) -> bool:
        """Whether it lists the model."""
        return self.findings is not None and model in self.findings.models

    async def probe(self, headers: Mapping[str, str]) -> None:
        """Ask it what it is; afterwards it is ready.

        Raises:
            EngineError: it is not; `reason` says why.
        """
        try:
            findings = await find_out(self.transport, self.base, self._settings, headers)
        except EngineError as error:
            self.down(error)
            raise
        if self.reason:
            # It may be another process by now, with empty caches.
            self.holdings.clear()
            _log.info("Upstream %d at %s:%s is ready.", self.number, self.base.host, self.base.port)
        self.findings, self.reason = findings, ""

    def down(self, error: EngineError) -> None:
        """No more requests until a probe succeeds."""
        if not self.reason:
            _log.warning("Upstream %d at %s:%s is down: %s", self.number, self.base.host, self.base.port, error.message)
        self.reason = error.message

    def watch(self, headers: Mapping[str, str]) -> None:
        """Probe it in the background until it is ready. One watch at a time."""
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._bring_back(headers), name=f"upstream {self.number} watch")

    async def _bring_back(self, headers: Mapping[str, str]) -> None:
        wait = self._settings.cooling_seconds
        while True:
            await asyncio.sleep(wait)
            with contextlib.suppress(EngineError):
                await self.probe(headers)
                return
            wait = min(wait * 2, self._settings.max_cooling_seconds)

    async def close(self) -> None:
        """Stop watching and close every connection."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        if self._transport is not None:
            await self._transport.close()


def in_order(upstreams: Sequence[Upstream], affinity: str, model: object) -> list[Upstream]:
    """The ready upstreams, the one to try first in front.

    Those that list `model` come alone when there are any. The same `affinity` gives the same order in every process,
    and an upstream that leaves or joins moves only the conversations that it had or gets (rendezvous hashing). Without
    affinity the least loaded comes first.
    """
    ready = [upstream for upstream in upstreams if upstream.ready]
    ready = [upstream for upstream in ready if upstream.serves(model)] or ready
    if len(ready) < 2:
        return ready
    if affinity:
        return sorted(ready, key=lambda upstream: _score(affinity, upstream), reverse=True)
    return sorted(ready, key=lambda upstream: upstream.in_flight)


def _score(affinity: str, upstream: Upstream) -> bytes:
    key = f"{affinity}\0{upstream.base}".encode("utf-8", "surrogatepass")
    return blake2b(key, digest_size=8).digest()
