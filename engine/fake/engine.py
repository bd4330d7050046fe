"""The fake engine behind the engine seam, called in this process without a socket."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from pydantic_core import from_json

from context.errors import EngineUnavailable
from context.visual_tokens import MAX_ASPECT_RATIO
from engine import asgi
from engine.base import ChatRequest, EngineHealth, EngineInfo, EngineReply, EventBatch
from engine.fake.app import FakeApp, create_app
from engine.fake.config import FakeConfig
from engine.fake.faults import Fault
from engine.images import Holdings, open_chat


class FakeEngine:
    """Implements `engine.base.Engine`. It may be started again after it was stopped, with empty caches.

    Args:
        config: sizes, behaviour and speed.
        accept_uuid: whether the gateway uses uuids; default: as the engine does. Set to False it sends bytes always.
    """

    def __init__(self, config: FakeConfig | None = None, *, accept_uuid: bool | None = None) -> None:
        self.config = config or FakeConfig()
        self._accepts_uuid = self.config.accepts_uuid if accept_uuid is None else accept_uuid
        self._holdings = Holdings()
        self._app: FakeApp | None = None
        self._lifetime = AsyncExitStack()
        self._state = EngineHealth("starting")

    @property
    def app(self) -> FakeApp:
        """The running app, to look into from tests.

        Raises:
            EngineUnavailable: the engine is not started.
        """
        if self._app is None:
            raise EngineUnavailable("The engine is not running.")
        return self._app

    def inject(self, fault: Fault) -> None:
        """Let a coming chat fail; faults are used up in their order."""
        self.app.faults.append(fault)

    async def start(self) -> None:
        """See `Engine.start`."""
        if self._app is not None:
            return
        app = create_app(self.config)
        await self._lifetime.enter_async_context(asgi.lifespan(app))
        self._app = app
        self._state = EngineHealth("ready")

    async def stop(self) -> None:
        """See `Engine.stop`."""
        self._state = EngineHealth("stopped")
        self._app = None
        self._holdings.clear()
        lifetime, self._lifetime = self._lifetime, AsyncExitStack()
        await lifetime.aclose()

    def health(self) -> EngineHealth:
        """See `Engine.health`."""
        if self._app is not None and self._app.driver.crashed:
            return EngineHealth("crashed", "The engine core ended.")
        return self._state

    def info(self) -> EngineInfo:
        """See `Engine.info`."""
        return EngineInfo(
            kind="fake",
            models=(self.config.model,),
            accepts_uuid=self._accepts_uuid,
            block_tokens=self.config.block_tokens,
            max_model_tokens=self.config.max_model_tokens,
            max_images_per_prompt=self.config.max_images_per_prompt,
            max_aspect_ratio=MAX_ASPECT_RATIO,
            caches_prefix=True,
            reports_read=self.config.reports_cache,
        )

    @asynccontextmanager
    async def chat(self, request: ChatRequest) -> AsyncGenerator[EngineReply]:
        """See `Engine.chat`."""
        headers = {"content-type": "application/json", "x-request-id": request.request_id}

        def send(body: Sequence[bytes]) -> AbstractAsyncContextManager[EngineReply]:
            return self.forward("POST", "/v1/chat/completions", headers=headers, body=body)

        opened = open_chat(
            request,
            accepts_uuid=self._accepts_uuid,
            accepts_salt=not self.config.refuses_cache_salt,
            names_request=True,
            holdings=self._holdings,
            send=send,
        )
        async with opened as reply:
            if reply.status >= 500 and not self.health().ready:
                raise EngineUnavailable("The engine crashed.")
            yield reply

    @asynccontextmanager
    async def forward(
        self, method: str, path: str, *, headers: Mapping[str, str], body: Sequence[bytes] = ()
    ) -> AsyncGenerator[EngineReply]:
        """See `Engine.forward`."""
        health = self.health()
        if self._app is None or not health.ready:
            raise EngineUnavailable(health.reason or f"The engine is not ready: {health.state}.")
        async with asgi.call(self._app, method, path, headers=headers, body=body) as reply:
            yield reply

    async def reset_caches(self) -> None:
        """See `Engine.reset_caches`."""
        for path in ("/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache"):
            async with self.forward("POST", path, headers={}) as reply:
                answer = await reply.read()
            if reply.status != 200 or (answer and not from_json(answer).get("success", True)):
                raise EngineUnavailable("The engine does not empty its caches while requests run.")
        self._holdings.clear()

    @asynccontextmanager
    async def events(self) -> AsyncGenerator[AsyncIterator[EventBatch]]:
        """See `Engine.events`."""
        async with self.app.driver.events() as batches:
            yield batches
