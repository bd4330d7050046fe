"""The gateway as an ASGI application, and the server that runs it."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import tempfile
from collections.abc import Callable, Generator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from types import FrameType

import uvicorn

from app import asgi, routes
from app.gateway import Gateway
from app.logs import configure_logging
from app.memory import give_large_blocks_back
from app.protocol import http_config
from app.settings import Settings
from context.errors import ConfigError, StillframeError
from engine.base import Engine

_log = logging.getLogger("stillframe")
SETTINGS_VARIABLE = "STILLFRAME_INTERNAL_SETTINGS"


def make_engine(settings: Settings) -> Engine:
    """The engine that the settings ask for: a remote one where an upstream is named, else the embedded one.

    Raises:
        ConfigError: the embedded engine is not installed, or the model cannot be made.
    """
    if settings.upstream:
        from engine.remote import RemoteEngine, RemoteSettings

        return RemoteEngine(RemoteSettings(urls=settings.upstream, **settings.upstreams.model_dump()))
    from importlib.util import find_spec

    if find_spec("vllm") is None:
        reason = "the embedded engine needs vLLM; run 'make install', or name an engine with --upstream URL"
        raise ConfigError("environment", "", reason)
    from engine.vllm.environment import set_environment

    section = settings.engine.model_dump(exclude={"vllm"})
    # The hub's library reads it when it is imported, which looking for the model does.
    set_environment(offline=section["offline"], kv_cache_gib=section["kv_cache_gib"], log_level=section["log_level"])
    from app.model import resolve_model
    from engine.vllm.embedded import VllmEngine
    from engine.vllm.options import VllmSettings
    from engine.vllm.own_options import told

    model, options = resolve_model(settings)
    _log.info("engine: %s", told(options))
    return VllmEngine(VllmSettings(model=model, served_name=settings.model, options=options, **section))


class GatewayApp:
    """The ASGI application. `engine` is made from the settings unless one is given.

    `failure` is what stopped the start, if something did; `stop` is then called, when the start was already over.
    """

    def __init__(
        self, settings: Settings, engine: Engine | None = None, stop: Callable[[], None] = lambda: None
    ) -> None:
        self.failure: StillframeError | None = None
        self.stop = stop
        self.ready: Callable[[float], None] = lambda _: None
        self._settings = settings
        self._engine = engine
        self._gateway: Gateway | None = None

    async def __call__(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            assert self._gateway is not None
            await routes.dispatch(self._gateway, scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _lifespan(self, receive: asgi.Receive, send: asgi.Send) -> None:
        await receive()
        async with AsyncExitStack() as stack:
            try:
                engine = self._engine or await asyncio.to_thread(make_engine, self._settings)
                self._gateway = Gateway(self._settings, engine, self._give_up, lambda seconds: self.ready(seconds))
                await stack.enter_async_context(self._gateway.running())
            except ConfigError as error:
                self.failure = error
                _log.error("%s", error)
                await send({"type": "lifespan.startup.failed", "message": ""})
                return
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    def _give_up(self, failure: StillframeError) -> None:
        self.failure = failure
        self.stop()


class _Server(uvicorn.Server):
    """Takes a signal as the request to stop that it is: uvicorn's own server raises it again afterwards, and a clean
    stop would look like a crash to whatever supervises the process."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit:
            seconds = self.config.timeout_graceful_shutdown
            _say(f"Stopping; running requests have up to {seconds} seconds to end.")
        super().handle_exit(sig, frame)

    def stop(self) -> None:
        """Ask it to stop, as a signal does."""
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        before = {kind: signal.signal(kind, self.handle_exit) for kind in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for kind, handler in before.items():
                signal.signal(kind, handler)


def bind(host: str, port: int) -> socket.socket:
    """Listen before anything slow is started.

    Raises:
        ConfigError: the address cannot be used; says what to do.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener: socket.socket | None = None
    try:
        # Naming the protocol is what makes asyncio turn Nagle's algorithm off; with it a stream is held up.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
    except (OSError, UnicodeError) as error:
        if listener is not None:
            listener.close()
        reasons = {
            errno.EADDRINUSE: f"port {port} is taken, perhaps by another Stillframe; stop it or choose one with --port",
            errno.EACCES: f"port {port} needs privileges; choose one above 1023 with --port",
            errno.EADDRNOTAVAIL: f"{host} is not an address of this machine; choose one with --host",
        }
        other = f"cannot listen on {host} port {port}; choose others with --host and --port"
        number = error.errno if isinstance(error, OSError) else None
        key = "port" if number in (errno.EADDRINUSE, errno.EACCES) else "host"
        raise ConfigError("start", key, reasons.get(number or 0, other)) from error
    return listener


def serve(settings: Settings) -> int:
    """Run the gateway until it is told to stop. Returns the process's exit status.

    Raises:
        ConfigError: it cannot start.
    """
    give_large_blocks_back()
    check_disk(settings)
    settings.policies()
    check_engine(settings)
    listener = bind(settings.host, settings.port)
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    _say(f"Stillframe listens on http://{shown}:{port}/v1 - point a chat client's base_url there.")
    if not settings.upstream:
        _say("The engine is loading; the first start takes about a minute. Readiness: /health/ready")
    app = GatewayApp(settings)
    config = http_config(
        "app.server:from_environment" if settings.workers > 1 else app,
        factory=settings.workers > 1,
        workers=settings.workers,
        loop="uvloop",
        log_level="critical",
        timeout_keep_alive=settings.server.keep_alive_seconds,
        timeout_graceful_shutdown=settings.server.shutdown_grace_seconds,
    )
    server = _Server(config)
    app.stop = server.stop

    def ready(seconds: float) -> None:
        # vLLM and its libraries have set the process's logging up anew.
        configure_logging(settings.log_level)
        _say(f"Ready after {seconds:.0f} s.")

    app.ready = ready
    if settings.workers == 1:
        try:
            server.run(sockets=[listener])
        except SystemExit:
            # How uvicorn says that the start failed.
            return 2 if app.failure else 3
        finally:
            listener.close()
        if app.failure is not None:
            return 2 if isinstance(app.failure, ConfigError) else 1
        return 0 if server.started else 3
    return _serve_workers(settings, config, listener)


def _serve_workers(settings: Settings, config: uvicorn.Config, listener: socket.socket) -> int:
    from uvicorn.config import STARTUP_FAILURE
    from uvicorn.supervisors import Multiprocess

    with tempfile.TemporaryDirectory(prefix="stillframe-workers-") as folder:
        # By a file that is ours alone: an environment is inherited by every child and shown by many tools.
        file = Path(folder) / "settings.json"
        file.touch(mode=0o600)
        file.write_text(settings.model_dump_json())
        os.environ[SETTINGS_VARIABLE] = str(file)
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        workers = Multiprocess(config, sockets=[listener])
        workers.run()
    # A worker has logged what it could not start with.
    return 2 if any(worker.exitcode == STARTUP_FAILURE for worker in workers.processes) else 0


def from_environment() -> GatewayApp:
    """The application of a worker process, from the settings that its parent left."""
    settings = Settings.model_validate_json(Path(os.environ[SETTINGS_VARIABLE]).read_text())
    configure_logging(settings.log_level)
    give_large_blocks_back()
    return GatewayApp(settings)


def check_engine(settings: Settings) -> None:
    """Stop early where the embedded engine has no model to load, or a folder or a profile that it cannot use. The
    random model is made later; it takes a while.

    Raises:
        ConfigError: there is no model; a folder for KV or a profile of layers cannot be used, or more memory for
            KV is asked for than the machine has.
    """
    if settings.upstream:
        return
    from app.model import RANDOM, resolve_model
    from engine.vllm.own_options import check_machine

    check_machine(settings.engine.vllm)
    if settings.model != RANDOM:
        resolve_model(settings)


def check_disk(settings: Settings) -> None:
    """Stop early where files cannot be kept.

    Raises:
        ConfigError: the data folder cannot be made or written, or its disk is full.
    """
    folder = settings.data_path
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"\0" * 65_536)
            probe.flush()
    except (OSError, ValueError) as error:
        # ValueError: no system has such a name.
        why = getattr(error, "strerror", None) or "not a folder's name"
        reason = f"cannot write in {folder} ({why}); free some space or choose a folder with data_dir"
        raise ConfigError("settings", "data_dir", reason) from error


def _say(line: str) -> None:
    print(line, flush=True)
