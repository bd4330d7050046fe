"""Everything that lives as long as the gateway's process: made once, started, handed to the routes, stopped."""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

from app import estimates, image_reuse
from app.background import Background
from app.bodies import BodyBudget
from app.call_limits import CallLimits
from app.collector import COLLECTOR
from app.dashboard.state import Dashboard
from app.settings import Settings
from context.conversations import Conversations
from context.errors import ConfigError, EngineError, EngineUnavailable, RequestError, StillframeError, place_of
from context.images.memo import Lru
from context.images.service import ImageService
from context.ledger import Ledger
from context.store.blobs import BlobStore
from context.tenancy import Tenancy, Tenant, load_secret, load_token
from engine.base import Engine, EngineInfo
from engine.template_check import TemplateFindings, check_template
from metrics.attribution import Attributor
from metrics.engine_log import EngineLog
from metrics.exports.genai import provider_name
from metrics.exports.otel import open_exporter
from metrics.kv_mirror import KvMirror
from metrics.prometheus import GatewayMetrics
from metrics.records.recorder import Recorder
from metrics.records.writer import RecordWriter
from metrics.reporting import SILENT, CacheReporting, Told, yes_or_no
from metrics.usage import Usage

_log = logging.getLogger(__name__)
_LAG_EVERY_SECONDS = 0.05
_LOOK_EVERY_SECONDS = 0.25
_SMALL_BODY_BYTES = 64 * 1024
_REFUSED_IMAGES = 4096
# Longer than it takes to tell a client that its chat was cut off: app/asgi.py.
_LAST_CHATS_SECONDS = 2.0


class Gateway:
    """One gateway process.

    The engine starts in the background, so that the gateway can say from the first moment that it is starting.
    `ready` is called with the seconds that it took, `give_up` when it cannot start and never will.
    """

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        give_up: Callable[[StillframeError], None],
        ready: Callable[[float], None],
    ) -> None:
        self.settings = settings
        self.engine = engine
        self.metrics = GatewayMetrics()
        self.engine_log = EngineLog(self.metrics)
        self._collects = False
        # Their tasks, until their turns are recorded.
        self.chats: set[asyncio.Task[Any]] = set()
        self.background = Background(self.metrics.count_background_failure)
        self.recorder = Recorder(self.metrics, self.engine_log, settings.price_table())
        # What it knows of the engine comes with the engine.
        self.attributor = self.recorder.attributor = Attributor(None, None)
        self.recorder.measure = lambda model, wire: self.estimators.uncorrected(model, wire)
        self.budget = BodyBudget(settings.server.inflight_body_bytes, _SMALL_BODY_BYTES)
        bounds = settings.server
        self.call_limits = CallLimits(settings.images.max_images_per_request, bounds.max_messages, bounds.max_parts)
        data = settings.data_path
        secret = load_secret(data)
        self._tenancy = Tenancy(secret)
        # By digest: how long a look-up takes says nothing about the keys.
        self._secret = secrets.token_bytes(32)
        self._tenants = {
            self._digest(key.encode()): self._tenancy.named(name) for name, key in settings.auth.keys.items()
        }
        admin = (settings.admin_token or load_token(data / "admin-token")).encode()
        self._admin = self._digest(admin)
        self._store = BlobStore(settings.images.store_url or str(data / "images"), settings.images.store_max_bytes)
        self._conversations: Conversations | None = None
        self.images = ImageService(settings.images.limits(), settings.fetch.limits(), self._store)
        # Known a moment after the engine is ready; nothing until then.
        self.template = TemplateFindings()
        self.reporting = CacheReporting()
        self._is_checked = False
        # Images that a request was refused for, with its number of messages; app/pictures.py says why.
        self.refused_images: Lru[bytes, int] = Lru(_REFUSED_IMAGES)
        self._ledger_file = data / "ledger.db"
        self.dashboard = Dashboard(
            settings,
            self._ledger_file,
            hmac.digest(secret, admin, "sha256"),
            self._tenancy,
            lambda token: hmac.compare_digest(self._digest(token), self._admin),
        )
        self.policies = settings.policies()
        self.estimators = estimates.rough(settings)
        self._give_up, self._ready = give_up, ready
        # Whether requests go to the engine with a key that their client did not choose.
        self.has_own_key = bool(settings.upstreams.api_key or settings.auth.keys)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Start in the background on entering; on leaving stop everything."""
        async with AsyncExitStack() as stack:
            stack.callback(self._stop_collecting)
            stack.push_async_callback(self._store.close)
            stack.push_async_callback(self.images.close)
            stack.push_async_callback(self.dashboard.close)
            ledger = await Ledger.open(self._ledger_file, self.settings.ledger.limits())
            stack.push_async_callback(ledger.close)
            self._conversations = Conversations(ledger)
            # Behind the ledger: the file is the ledger's.
            self.recorder.writer = await RecordWriter.open(self._ledger_file, self.settings.record_limits())
            stack.push_async_callback(self.recorder.writer.close)
            kind = self.engine.info().kind
            self.recorder.exporter = open_exporter(self.settings.otel.endpoint, provider_name(kind))
            stack.push_async_callback(self.recorder.exporter.close)
            stack.push_async_callback(self.recorder.close)
            # Those that the server has cut off are on their way to their record.
            stack.push_async_callback(self._await_chats)
            stack.push_async_callback(self._stop_engine)
            tasks = [
                asyncio.create_task(work, name=f"stillframe-{name}")
                for name, work in (
                    ("engine", self._run_engine()),
                    ("lag", self.background.keep("watch", self._watch_loop)),
                    ("estimates", self.background.keep("estimates", self._load_estimates)),
                )
            ]

            async def cancel() -> None:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

            stack.push_async_callback(cancel)
            yield

    @property
    def conversations(self) -> Conversations:
        """The conversations; there while the gateway is running."""
        assert self._conversations is not None, "the gateway is not running"
        return self._conversations

    def tenant(self, authorization: str | None) -> Tenant:
        """The tenant of a request by its Authorization header.

        Raises:
            RequestError: (401) keys are configured and this is none of them.
        """
        token = _bearer(authorization)
        if not self._tenants:
            return self._tenancy.of_token(token)
        if tenant := self._tenants.get(self._digest(token.encode("latin-1"))):
            return tenant
        raise RequestError(
            "The API key is missing or not known. Send it as 'Authorization: Bearer KEY'.",
            code="invalid_api_key",
            status=401,
        )

    def is_admin(self, authorization: str | None) -> bool:
        """Whether an Authorization header carries the admin token."""
        return hmac.compare_digest(self._digest(_bearer(authorization).encode("latin-1")), self._admin)

    def _digest(self, token: bytes) -> bytes:
        return hmac.digest(self._secret, token, "sha256")

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

    def note_usage(self, usage: Usage) -> None:
        """Say once that the engine does not tell what it reads from its prefix cache."""
        if self.reporting.heed(usage):
            _log.warning("engine: %s", SILENT)

    async def _run_engine(self) -> None:
        """Start the engine and follow what it reports."""
        started = time.monotonic()
        try:
            await self.engine.start()
        except (EngineError, ConfigError) as error:
            _log.error("engine: %s", error)
            if isinstance(error, ConfigError) or self.engine.info().kind != "remote":
                # An engine of our own that cannot start now never will.
                self._give_up(error)
                return
            # An upstream may come yet.
            while not self.engine.health().ready:  # noqa: ASYNC110 - it is the engine that asks
                await asyncio.sleep(_LOOK_EVERY_SECONDS)
        except Exception as error:
            _log.error("engine: it cannot be started: %s", place_of(error))
            self._give_up(EngineUnavailable("The engine cannot be started; the log says where it broke."))
            return
        COLLECTOR.begin()
        self._collects = True
        self._ready(time.monotonic() - started)
        await self.background.keep("follow", self._follow)

    def _stop_collecting(self) -> None:
        if self._collects:
            COLLECTOR.end()

    async def _follow(self) -> None:
        """Read the events of an engine that has started: not before, it may have nothing to subscribe to."""
        info, attributor = self.engine.info(), self.attributor
        has_events = info.kind != "remote"
        mirror = attributor.mirror
        if mirror is None or mirror.block_tokens != info.block_tokens:
            # One for all of the process's life: where following broke and is begun again, it is the one that knows.
            mirror = KvMirror(info.block_tokens) if has_events and info.block_tokens else None
        attributor.learn(mirror, info.block_tokens)
        self.recorder.has_encoder_events = has_events

        follow = [mirror.follow(self.engine)] if mirror is not None else []
        try:
            async with asyncio.TaskGroup() as group:
                for work in (self.engine_log.follow(self.engine), *follow, self._check_engine(info)):
                    group.create_task(work)
        except* EngineError:
            # It stops, or did.
            pass

    async def _check_engine(self, info: EngineInfo) -> None:
        """Find out what matters to the caches, and say it once."""
        if self._is_checked:
            return
        self.reporting.learn(info)
        self.template = await check_template(self.engine)
        self.attributor.template_extends = self.template.extends
        reuse = image_reuse.warnings(self.policies, info, header=self.settings.reuse_header)
        for words in (*reuse, *self.reporting.warnings, *self.template.warnings):
            _log.warning("engine: %s", words)
        told = ", ".join(f"{name} {answer}" for name, answer in self.engine_checks().items())
        _log.info("engine: %s", told.replace("_", " "))
        self._is_checked = True

    def engine_checks(self) -> dict[str, Told]:
        """What was found out about the engine, in `metrics/catalogue.py::CHECKS`' words."""
        return {
            "template_appends": yes_or_no(self.template.extends),
            "prefix_caching": yes_or_no(self.reporting.prefix_caching),
            "reports_read": self.reporting.reports,
        }

    async def _load_estimates(self) -> None:
        """Beside the start of the engine: a vocabulary takes as long to load as many requests take to serve."""
        self.estimators = await asyncio.to_thread(estimates.load, self.settings, self.engine.info().kind)

    async def _await_chats(self) -> None:
        if self.chats:
            await asyncio.wait(self.chats, timeout=_LAST_CHATS_SECONDS)

    async def _stop_engine(self) -> None:
        with suppress(EngineError):
            await self.engine.stop()

    async def _watch_loop(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _LAG_EVERY_SECONDS
            await asyncio.sleep(_LAG_EVERY_SECONDS)
            self.metrics.loop_lag.observe(max(0.0, loop.time() - due))
            # Also while no request ends.
            COLLECTOR.look()


def _bearer(authorization: str | None) -> str:
    """The token of an Authorization header, in Latin-1 as headers are; empty without one."""
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
