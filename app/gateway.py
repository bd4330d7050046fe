"""Everything that lives as long as the gateway's process: made once, started, handed to the routes, stopped."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from app.asgi import BodyBudget
from app.settings import Settings
from context.errors import ConfigError, EngineError, RequestError
from context.images.service import ImageService
from context.store.blobs import BlobStore
from context.tenancy import Tenancy, Tenant, load_secret, load_token
from engine.base import Engine
from metrics.encoder_log import EncoderLog
from metrics.prometheus import GatewayMetrics

_log = logging.getLogger(__name__)
_LAG_EVERY_SECONDS = 0.05


class Gateway:
    """One gateway process.

    The engine starts in the background, so that the gateway can say from the first moment that it is starting.
    """

    def __init__(self, settings: Settings, engine: Engine) -> None:
        self.settings = settings
        self.engine = engine
        self.metrics = GatewayMetrics()
        self.encoder_log = EncoderLog(self.metrics)
        self.budget = BodyBudget(settings.server.inflight_body_bytes)
        data = settings.data_path
        self._tenancy = Tenancy(load_secret(data))
        self._tenants = {key: self._tenancy.named(name) for name, key in settings.auth.keys.items()}
        self._admin_token = settings.admin_token or load_token(data / "admin-token")
        self._store = BlobStore(settings.images.store_url or str(data / "images"), settings.images.store_max_bytes)
        self.images = ImageService(settings.images.limits(), settings.fetch.limits(), self._store)
        self.engine_failure: BaseException | None = None

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Start in the background on entering; on leaving stop everything."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._store.close)
            stack.push_async_callback(self.images.close)
            stack.push_async_callback(self._stop_engine)
            tasks = [
                asyncio.create_task(work, name=f"stillframe-{name}")
                for name, work in (
                    ("start", self._start_engine()),
                    ("encoder-log", self.encoder_log.follow(self.engine)),
                    ("lag", self._watch_loop()),
                )
            ]

            async def cancel() -> None:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

            stack.push_async_callback(cancel)
            yield

    def tenant(self, authorization: str | None) -> Tenant:
        """The tenant of a request by its Authorization header.

        Raises:
            RequestError: (401) keys are configured and this is none of them.
        """
        scheme, _, token = (authorization or "").partition(" ")
        token = token.strip() if scheme.lower() == "bearer" else ""
        if not self._tenants:
            return self._tenancy.of_token(token)
        for key, tenant in self._tenants.items():
            if hmac.compare_digest(key.encode(), token.encode()):
                return tenant
        raise RequestError(
            "The API key is missing or not known. Send it as 'Authorization: Bearer KEY'.",
            code="invalid_api_key",
            status=401,
        )

    def is_admin(self, authorization: str | None) -> bool:
        """Whether an Authorization header carries the admin token."""
        return hmac.compare_digest((authorization or "").encode(), f"Bearer {self._admin_token}".encode())

    def admit(self) -> None:
        """Refuse a chat when too many are running.

        Raises:
            RequestError: (429) too many.
        """
        limit = self.settings.server.max_concurrent_requests
        # The gauge is the one count of running chats there is; the event loop makes the check and its rise one step.
        if self.metrics.running_now >= limit:
            raise RequestError(
                f"{limit} requests are running, which is the limit. Try again soon, or raise "
                "server.max_concurrent_requests.",
                code="too_many_requests",
                status=429,
            )

    async def _start_engine(self) -> None:
        started = time.monotonic()
        try:
            await self.engine.start()
        except (EngineError, ConfigError) as error:
            self.engine_failure = error
            _log.error("engine: %s", error)
        else:
            _log.info("engine ready after %.0f s", time.monotonic() - started)

    async def _stop_engine(self) -> None:
        with suppress(EngineError):
            await self.engine.stop()

    async def _watch_loop(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _LAG_EVERY_SECONDS
            await asyncio.sleep(_LAG_EVERY_SECONDS)
            self.metrics.loop_lag.observe(max(0.0, loop.time() - due))
