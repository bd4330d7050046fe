"""The gateway as an ASGI application, and the server that runs it."""

from __future__ import annotations

import errno
import logging
import os
import socket
import sys
import tempfile
import traceback
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import uvicorn

from app import asgi, routes
from app.gateway import Gateway
from app.settings import Settings
from context.errors import ConfigError, EngineError
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
    from app.model import resolve_model
    from engine.vllm.embedded import VllmEngine
    from engine.vllm.options import VllmSettings

    model, options = resolve_model(settings)
    section = settings.engine.model_dump(exclude={"vllm"})
    return VllmEngine(VllmSettings(model=model, served_name=settings.model, options=options, **section))


class GatewayApp:
    """The ASGI application. `engine` is made from the settings unless one is given."""

    def __init__(self, settings: Settings, engine: Engine | None = None) -> None:
        self._settings = settings
        self._engine = engine
        self._gateway: Gateway | None = None

    async def __call__(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            assert self._gateway is not None
            await _guarded(self._gateway, scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _lifespan(self, receive: asgi.Receive, send: asgi.Send) -> None:
        await receive()
        async with AsyncExitStack() as stack:
            try:
                self._gateway = Gateway(self._settings, self._engine or make_engine(self._settings))
                await stack.enter_async_context(self._gateway.running())
            except ConfigError as error:
                _log.error("%s", error)
                await send({"type": "lifespan.startup.failed", "message": str(error)})
                return
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})


async def _guarded(gateway: Gateway, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
    """Serve a request; what nobody foresaw becomes a plain 500 for the client and a place for the log."""
    started = False

    async def noting(message: asgi.Message) -> None:
        nonlocal started
        started = True
        await send(message)

    try:
        await routes.dispatch(gateway, scope, receive, noting)
    except Exception as error:
        # The exception's text may hold what a client sent or a path; its kind and place are enough to find it.
        frame = traceback.extract_tb(error.__traceback__)[-1]
        _log.error("unexpected %s in %s (%s)", type(error).__name__, frame.name, Path(frame.filename).name)
        if not started:
            await asgi.respond_error(noting, EngineError("The gateway failed to serve this request."))


def bind(host: str, port: int) -> socket.socket:
    """Listen before anything slow is started.

    Raises:
        ConfigError: the address cannot be used; says what to do.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        reasons = {
            errno.EADDRINUSE: f"port {port} is taken, perhaps by another Stillframe; stop it or choose one with --port",
            errno.EACCES: f"port {port} needs privileges; choose one above 1023 with --port",
            errno.EADDRNOTAVAIL: f"{host} is not an address of this machine; choose one with --host",
        }
        other = f"cannot listen on {host} port {port}; choose others with --host and --port"
        reason = reasons.get(error.errno or 0, other)
        raise ConfigError("start", "port", reason) from error
    except OverflowError as error:
        listener.close()
        raise ConfigError("start", "port", "must be 0 to 65535") from error
    return listener


def serve(settings: Settings) -> int:
    """Run the gateway until it is told to stop. Returns the process's exit status.

    Raises:
        ConfigError: it cannot start.
    """
    check_disk(settings)
    listener = bind(settings.host, settings.port)
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    _say(f"Stillframe listens on http://{shown}:{port}/v1 - point a chat client's base_url there.")
    if not settings.upstream:
        _say("The engine is loading; the first start takes about a minute. Readiness: /health/ready")
    config = uvicorn.Config(
        "app.server:from_environment" if settings.workers > 1 else GatewayApp(settings),
        factory=settings.workers > 1,
        workers=settings.workers,
        http="httptools",
        loop="uvloop",
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=settings.server.keep_alive_seconds,
        timeout_graceful_shutdown=settings.server.shutdown_grace_seconds,
    )
    server = uvicorn.Server(config)
    if settings.workers == 1:
        with suppress(KeyboardInterrupt):
            server.run(sockets=[listener])
        return 0 if server.started else 3
    return _serve_workers(settings, config, listener)


def _serve_workers(settings: Settings, config: uvicorn.Config, listener: socket.socket) -> int:
    from uvicorn.supervisors import Multiprocess

    os.environ[SETTINGS_VARIABLE] = settings.model_dump_json()
    with tempfile.TemporaryDirectory(prefix="stillframe-metrics-") as folder:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        Multiprocess(config, sockets=[listener]).run()
    return 0


def from_environment() -> GatewayApp:
    """The application of a worker process, from the settings that its parent left."""
    configure_logging("info")
    return GatewayApp(Settings.model_validate_json(os.environ[SETTINGS_VARIABLE]))


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
    except OSError as error:
        reason = f"cannot write in {folder} ({error.strerror}); free some space or choose a folder with data_dir"
        raise ConfigError("settings", "data_dir", reason) from error


def configure_logging(level: str) -> None:
    """One line a record on standard error, without the text of foreign exceptions."""
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr, force=True
    )
    for noisy in ("asyncio", "PIL", "matplotlib"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _say(line: str) -> None:
    print(line, flush=True)
