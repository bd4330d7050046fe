"""vLLM's own OpenAI server, embedded in this process and called without a socket.

`AsyncLLM` and vLLM's FastAPI application live on the gateway's event loop; the engine core is their child process.

    start      build the engine in a thread (it blocks for a minute), then vLLM's application on the loop
    chat       engine.images.open_chat over engine.asgi.call: the uuid alone for images that are held
    crash      the supervisor sees that the core died, says so in `health()`, and starts it again where allowed
    stop       abort, shut the core down, kill what is left
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

from context.errors import ConfigError, EngineUnavailable, place_of
from context.visual_tokens import MAX_ASPECT_RATIO
from engine import torchvision_ops
from engine.asgi import call
from engine.base import ChatRequest, EngineHealth, EngineInfo, EngineReply, EventBatch, ImagePoolState
from engine.events import EventHub
from engine.images import Holdings, open_chat
from engine.vllm.block_tiers.settings import SETTING as BLOCK_TIERS
from engine.vllm.block_tiers.settings import BlockTierSettings
from engine.vllm.blocking import in_daemon_thread, kill_children
from engine.vllm.core_calls import answered
from engine.vllm.environment import set_environment
from engine.vllm.features import (
    ATTACH,
    CLEAR_IMAGES,
    IMAGE_POOL,
    block_tiers_of,
    feature_options,
    image_kv_of,
    prepare,
    reuse_parameters,
    set_feature_environment,
)
from engine.vllm.image_kv.settings import SETTING as IMAGE_KV
from engine.vllm.options import VllmSettings, arguments, by_long_name, parse
from engine.vllm.resetting import reset_prefixes, reset_tiers, unfinished
from engine.vllm.telemetry import Telemetry

_log = logging.getLogger(__name__)
_WATCH_SECONDS = 0.25
_HELD_IMAGES = 65_536
_RESTART_SECONDS = 2.0
_QWEN_VL = re.compile(r"qwen[\d_]*vl")


class VllmEngine:
    """`engine.base.Engine` on an embedded vLLM 0.32."""

    def __init__(self, settings: VllmSettings) -> None:
        self._settings = settings
        self._health = EngineHealth("stopped")
        self._info = EngineInfo("vllm")
        self._hub = EventHub()
        self._holdings = Holdings(_HELD_IMAGES)
        self._running: AsyncExitStack | None = None
        self._app: Any = None
        self._client: Any = None
        self._supervisor: asyncio.Task[None] | None = None
        self._others: frozenset[Any] = frozenset()
        self._restarts = 0
        self._tiers: BlockTierSettings | None = None

    async def start(self) -> None:
        if self._running is not None:
            return
        self._others = frozenset(multiprocessing.active_children())
        self._health = EngineHealth("starting", "the engine is loading the model")
        try:
            async with asyncio.timeout(self._settings.start_timeout_seconds):
                await self._launch()
        except ConfigError:
            await self._tear_down()
            self._health = EngineHealth("stopped", "the engine's settings are wrong")
            raise
        except Exception as error:
            _log.error("the engine could not be started: %s", place_of(error))
            await self._tear_down()
            self._health = EngineHealth("crashed", "the engine could not be started; its log says why")
            raise EngineUnavailable("The engine could not be started; its log says why.") from error
        self._supervisor = asyncio.create_task(self._supervise(), name="stillframe-engine-supervisor")

    async def stop(self) -> None:
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
            self._supervisor = None
        await self._tear_down()
        self._health = EngineHealth("stopped")
        self._hub.close()

    def health(self) -> EngineHealth:
        if self._health.ready and self._client is not None and self._client.errored:
            return EngineHealth("crashed", "the engine core died")
        return self._health

    def info(self) -> EngineInfo:
        return self._info

    @asynccontextmanager
    async def chat(self, request: ChatRequest) -> AsyncGenerator[EngineReply]:
        self._require_ready()
        headers = {"content-type": "application/json", "x-request-id": request.request_id}

        def send(body: Sequence[bytes]) -> AbstractAsyncContextManager[EngineReply]:
            return call(self._app, "POST", "/v1/chat/completions", headers=headers, body=body)

        holdings = self._holdings
        if request.reuse is not None and self._info.reuses_images:
            request = replace(request, body={**request.body, **reuse_parameters(request.reuse)})
        async with open_chat(request, accepts_uuid=True, holdings=holdings, send=send, names_request=True) as reply:
            if reply.status >= 500:
                self._require_ready()
            yield reply

    @asynccontextmanager
    async def forward(
        self, method: str, path: str, *, headers: Mapping[str, str], body: Sequence[bytes] = ()
    ) -> AsyncGenerator[EngineReply]:
        self._require_ready()
        async with call(self._app, method, path, headers=headers, body=body) as reply:
            yield reply

    async def reset_prefix_cache(self) -> None:
        """Empty the prefix cache alone: images stay, and what is kept of their KV.

        Raises:
            EngineUnavailable: the engine is not ready, or works on a request.
        """
        self._require_ready()
        await reset_prefixes(self._client)

    async def reset_caches(self) -> None:
        self._require_ready()
        client = self._client
        await reset_prefixes(client)
        left: list[str] = []
        # vLLM has it emptied also where it refuses to empty its blocks, so not before these are gone.
        if self._tiers is not None and not await reset_tiers(client, has_folder=bool(self._tiers.folder)):
            left.append(f"{BLOCK_TIERS}.folder")
        if self._info.reuses_images:
            # Every worker has a pool of its own, and answers when it is empty.
            if not all(await answered(client, client.collective_rpc(CLEAR_IMAGES))):
                left.append(f"{IMAGE_KV}.folder")
            await self._tell_pool(client)
        await answered(client, client.reset_mm_cache())
        # Not before: a chat in between would be believed, and its images dropped after it.
        self._holdings.clear()
        await answered(client, client.reset_encoder_cache())
        if self._info.reuses_images:
            # A chat that came before the pool was empty may have left blocks of what was in it.
            await reset_prefixes(client)
        if left:
            folders = " and ".join(left)
            raise EngineUnavailable(f"All is empty, but files in {folders} could not be removed; the log says why.")

    async def _tell_pool(self, client: Any) -> None:
        # The core tells of it after a step, which comes with a request; until then what it told last would stand.
        found = await answered(client, client.collective_rpc(IMAGE_POOL))
        self._hub.publish(EventBatch("images", 0, time.time(), (ImagePoolState(*found[0]),)))

    def events(self) -> AbstractAsyncContextManager[AsyncIterator[EventBatch]]:
        return self._hub.listen()

    def running(self) -> int:
        """Requests that the engine works on."""
        return 0 if self._client is None else unfinished(self._client)

    def _require_ready(self) -> None:
        health = self.health()
        if not health.ready:
            raise EngineUnavailable(f"The engine is not ready: {health.reason or health.state}.", retry_after_seconds=5)

    async def _launch(self) -> None:
        stack = AsyncExitStack()
        self._running = stack
        # The import alone takes seconds; the loop must go on answering.
        await in_daemon_thread(lambda: _import_vllm(self._settings))
        from engine.vllm import v0_32

        telemetry = Telemetry(self._hub)
        stack.push_async_callback(telemetry.stop)
        telemetry.start()
        options = by_long_name(self._settings.options)
        image_kv, self._tiers = image_kv_of(options), block_tiers_of(options)
        args = parse(
            arguments(
                self._settings,
                cpu=v0_32.is_cpu(),
                required={
                    "kv-events-config": {
                        "enable_kv_cache_events": True,
                        "publisher": "zmq",
                        "endpoint": telemetry.kv_endpoint,
                        "replay_endpoint": telemetry.replay_endpoint,
                    },
                    "ec-manager-config": {
                        "encoder_cache_manager_cls": "engine.vllm.encoder_cache.ReportingEncoderCacheManager",
                        "manager_config": {"endpoint": telemetry.encoder_endpoint},
                    },
                    **feature_options(options, telemetry.image_endpoint),
                },
            )
        )
        client, config = await in_daemon_thread(lambda: _build_engine(args))
        stack.push_async_callback(asyncio.to_thread, self._shut_down, client)
        has_profile = image_kv is not None and image_kv.profile != ""
        if has_profile:
            await client.collective_rpc(ATTACH)
        if image_kv is not None:
            await self._tell_pool(client)
        await client.reset_mm_cache()
        tasks = await client.get_supported_tasks()
        app = v0_32.build_app(args, tasks, client.model_config)
        await v0_32.init_app_state(client, app.state, args, tasks)
        # vLLM's handler of a dead core asks its HTTP server to exit; here the supervisor decides.
        app.state.server = _NoServer()
        await stack.enter_async_context(app.router.lifespan_context(app))
        self._client, self._app = client, app
        self._info = EngineInfo(
            "vllm",
            models=(self._settings.served_name,),
            accepts_uuid=True,
            block_tokens=int(config.cache_config.block_size),
            max_model_tokens=int(config.model_config.max_model_len),
            max_images_per_prompt=_image_limit(config),
            max_aspect_ratio=_aspect_limit(config),
            caches_prefix=bool(config.cache_config.enable_prefix_caching),
            reuses_images=image_kv is not None,
            has_layer_profile=has_profile,
            # `options.arguments` asks for it always.
            reports_read=True,
        )
        self._health = EngineHealth("ready")

    def _shut_down(self, client: Any) -> None:
        with contextlib.suppress(Exception):
            client.shutdown(timeout=self._settings.stop_timeout_seconds)

    async def _tear_down(self) -> None:
        # A core that still loads hears no request to end.
        patience = self._settings.stop_timeout_seconds if self._client is not None else 0.0
        stack, self._running = self._running, None
        self._app = self._client = None
        self._holdings.clear()
        if stack is not None:
            with contextlib.suppress(Exception):
                await stack.aclose()
        await asyncio.to_thread(kill_children, patience, spared=self._others)

    async def _supervise(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            if self._client is None or not self._client.errored:
                continue
            self._health = EngineHealth("crashed", "the engine core died")
            _log.error("the engine core died")
            await self._tear_down()
            if not self._settings.restart_on_crash or self._restarts >= self._settings.max_restarts:
                _log.error("the engine is not started again (%d restarts so far)", self._restarts)
                return
            if not await self._start_again():
                return

    async def _start_again(self) -> bool:
        """Start the engine after a crash, as often as is allowed; whether it is ready again."""
        while self._restarts < self._settings.max_restarts:
            self._restarts += 1
            self._health = EngineHealth("starting", "the engine core died and is being started again")
            try:
                async with asyncio.timeout(self._settings.start_timeout_seconds):
                    await self._launch()
            except Exception as error:
                _log.error("the engine could not be started again: %s", place_of(error))
                await self._tear_down()
                await asyncio.sleep(_RESTART_SECONDS * self._restarts)
            else:
                return True
        self._health = EngineHealth("crashed", "the engine core died and could not be started again")
        return False


class _NoServer:
    should_exit = False


def _import_vllm(settings: VllmSettings) -> None:
    set_environment(offline=settings.offline, kv_cache_gib=settings.kv_cache_gib, log_level=settings.log_level)
    set_feature_environment(by_long_name(settings.options))
    torchvision_ops.declare_missing()
    from engine.vllm import v0_32

    v0_32.check()


def _build_engine(args: Any) -> tuple[Any, Any]:
    from engine.vllm import v0_32

    engine_args = v0_32.AsyncEngineArgs.from_cli_args(args)
    config = engine_args.create_engine_config(usage_context=v0_32.UsageContext.OPENAI_API_SERVER)
    prepare(config, args)
    client = v0_32.AsyncLLM.from_vllm_config(
        vllm_config=config,
        usage_context=v0_32.UsageContext.OPENAI_API_SERVER,
        disable_log_stats=engine_args.disable_log_stats,
    )
    return client, config


def _image_limit(config: Any) -> int | None:
    multimodal = config.model_config.multimodal_config
    return None if multimodal is None else int(multimodal.get_limit_per_prompt("image"))


def _aspect_limit(config: Any) -> float | None:
    return MAX_ASPECT_RATIO if _QWEN_VL.match(str(config.model_config.hf_config.model_type)) else None
