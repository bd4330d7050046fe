"""What the commands other than `serve` do. Heavy imports stand inside, so that `--help` answers at once."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic_core import to_json
from rich.console import Console
from rich.status import Status

from app.settings import Settings
from context.errors import ConfigError, EngineUnavailable
from engine.base import Engine

if TYPE_CHECKING:
    from app.server import GatewayApp
    from metrics.demo_plan import Plan

_READY_POLL_SECONDS = 0.2
# An upstream that does not answer may still be loading; one that never will must not hold a command up.
_UPSTREAM_SECONDS = 60
_QUICK_ROUNDS = 3


def experiment(options: argparse.Namespace, settings: Settings) -> int:
    """Run the controlled experiment. Exit status 0 when every verdict is ok, else 1.

    Raises:
        ConfigError: an option is wrong.
        EngineUnavailable: there is no gateway or engine to run it on.
    """
    from metrics.experiment_groups import GROUPS

    groups = [letter for letter in str(options.groups).upper() if not letter.isspace() and letter != ","]
    unknown = [letter for letter in groups if letter not in GROUPS]
    if unknown or not groups:
        raise ConfigError("flag", "--groups", f"takes letters of {''.join(GROUPS)}, such as ADF")
    for file in (options.json, options.plot):
        check_writable(file)
    if options.plot is not None and options.plot.suffix != ".png":
        raise ConfigError("flag --plot", str(options.plot), "must end in .png")
    return asyncio.run(_experiment(options, settings, groups))


async def _experiment(options: argparse.Namespace, settings: Settings, groups: Sequence[Any]) -> int:
    from metrics import experiment as runner
    from metrics.experiment_report import plot, table

    console = Console(stderr=True)
    async with open_gateway(options.url, settings, console) as url:
        client = runner.GatewayClient(url, *credentials(settings))
        async with client.connected():
            with console.status("experiment") as status:
                rows = await runner.run(client, groups, options.seed, status.update)
    to_stdout = str(options.json) == "-"
    if options.json is not None:
        write_json(options.json, {"rows": [asdict(row) for row in rows]})
    shown = Console(stderr=to_stdout)
    shown.print(table(rows))
    shown.print(f"{sum(row.passed for row in rows)} of {len(rows)} rows are as expected.")
    if options.plot is not None:
        await asyncio.to_thread(plot, rows, options.plot)
    return 0 if all(row.passed for row in rows) else 1


def demo(options: argparse.Namespace, settings: Settings) -> int:
    """Play the demonstration. Exit status 0 when the session ran to its end, whatever was answered.

    Raises:
        ConfigError: an option is wrong.
        EngineUnavailable: there is no gateway or engine to play it on, or it failed on the way.
    """
    from metrics.demo_plan import make_plan

    if options.seed < 0:
        raise ConfigError("flag", "--seed", "takes a number from 0 up")
    check_writable(options.json)
    plan = make_plan(options.seed)
    if options.save is not None:
        _save_pictures(plan, options.save)
    return asyncio.run(_demo(options, settings, plan))


async def _demo(options: argparse.Namespace, settings: Settings, plan: Plan) -> int:
    from metrics.demo import Session, TurnResult, totals
    from metrics.demo_report import Report, explain, next_steps
    from metrics.experiment_client import GatewayClient

    console = Console(stderr=True)
    report = Report(Console(stderr=str(options.json) == "-"))
    results: list[TurnResult] = []
    async with open_gateway(options.url, settings, console) as url:
        client = GatewayClient(url, *credentials(settings))
        async with client.connected():
            session = await Session.open(client, plan)
            report.begin()
            for turn in plan.turns:
                with console.status(f"turn {turn.number}", spinner=_spinner(console)):
                    results.append(await session.ask(turn))
                report.turn(turn, results[-1], len(plan.turns))
    sums = totals(results)
    report.end(sums, next_steps())
    if options.save is not None:
        console.print(f"The pictures are in {options.save}.", highlight=False, markup=False)
    if options.json is not None:
        turns = [{**asdict(result), "explanation": explain(result)} for result in results]
        write_json(options.json, {"seed": plan.seed, "turns": turns, "totals": asdict(sums)})
    return 0


def _save_pictures(plan: Plan, folder: Path) -> None:
    """Write the pictures of a session as PNG.

    Raises:
        ConfigError: the folder cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for picture in plan.pictures:
            (folder / f"picture-{picture.number}.png").write_bytes(picture.file())
    except (OSError, ValueError) as error:
        raise ConfigError("flag --save", str(folder), "is not a folder that can be written; choose another") from error


def credentials(settings: Settings) -> tuple[str, str]:
    """The administrator's token of a gateway on this machine, and a client's key for it."""
    from context.tenancy import load_token

    token = settings.admin_token or load_token(settings.data_path / "admin-token")
    return token, next(iter(settings.auth.keys.values()), "")


def _root(url: str) -> str:
    """A gateway's address, also where it is given as clients take it, with /v1, or without http://.

    Raises:
        ConfigError: it is none.
    """
    whole = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(whole)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError("flag", "--url", "is not an http or https URL; write it as http://127.0.0.1:8000")
    return whole.rstrip("/").removesuffix("/v1")


@asynccontextmanager
async def open_gateway(url: str | None, settings: Settings, console: Console) -> AsyncGenerator[str]:
    """The gateway at `url`, or one that is started here and stopped on leaving."""
    if url:
        yield _root(url)
        return
    import uvicorn

    from app.logs import configure_logging
    from app.server import GatewayApp, bind, check_disk, check_engine, make_engine

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Generator[None]:
            """Leave Ctrl-C to the command: uvicorn would stop the gateway under its feet."""
            yield

    configure_logging("warning")
    # vLLM's log goes to standard output otherwise, between the rows that --json writes there.
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    check_disk(settings)
    check_engine(settings)
    listener = bind("127.0.0.1", 0)
    # Whoever ends a command means its engine too, which a SIGTERM of the system's own kind would leave behind.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, os.kill, os.getpid(), signal.SIGINT)
    what = "upstream" if settings.upstream else "engine"
    with _status(console, f"Starting a gateway and its {what}" + ("." if settings.upstream else "; about a minute.")):
        engine = await asyncio.to_thread(make_engine, settings)
    app = GatewayApp(settings, engine)
    config = uvicorn.Config(app, log_level="warning", access_log=False, ws="none", lifespan="on", loop="none")
    server = Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await _until_ready(app, engine, serving, console)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        # vLLM takes the end of its own core for a crash, now and then, and says so at length.
        logging.getLogger("vllm").setLevel(logging.CRITICAL)
        server.should_exit = True
        await asyncio.gather(serving, return_exceptions=True)


async def _until_ready(app: GatewayApp, engine: Engine, serving: asyncio.Task[None], console: Console) -> None:
    """Wait for a gateway's engine and say for what.

    Raises:
        StillframeError: it cannot start, or an upstream did not answer in time.
    """
    began = time.monotonic()
    remote = engine.info().kind == "remote"
    with _status(console, "Waiting for the engine.") as status:
        while not (health := engine.health()).ready:
            seconds = time.monotonic() - began
            if app.failure is not None:
                raise app.failure
            if serving.done():
                raise EngineUnavailable("The gateway could not be started; its log says why.")
            if remote and seconds > _UPSTREAM_SECONDS:
                raise EngineUnavailable(f"The upstream did not become ready in {_UPSTREAM_SECONDS} s. {health.reason}")
            status.update(f"Waiting: {health.reason or 'the engine is starting'}; {seconds:.0f} s")
            await asyncio.sleep(_READY_POLL_SECONDS)
    console.print(f"Ready after {time.monotonic() - began:.0f} s.", highlight=False)


def _status(console: Console, text: str) -> Status:
    """A line that changes in a terminal. Elsewhere rich shows none, so the text is printed."""
    if not console.is_terminal:
        console.print(text, highlight=False)
    return console.status(text, spinner=_spinner(console))


def _spinner(console: Console) -> str:
    return "line" if console.options.ascii_only else "dots"


def bench(options: argparse.Namespace) -> int:
    """Measure what the gateway adds. Exit status 0 when every limit holds, else 1.

    Raises:
        ConfigError: the file for the rows cannot be written.
        BenchError: a server of the measurement could not be started or broke.
    """
    import uvloop

    from metrics.bench import BenchConfig, run

    check_writable(options.json)
    config = BenchConfig(rounds=_QUICK_ROUNDS) if options.quick else BenchConfig()
    result = uvloop.run(run(config, Console(stderr=True)))
    if options.json is not None:
        write_json(options.json, result.to_json())
    Console(stderr=str(options.json) == "-", width=None if sys.stdout.isatty() else 150).print(result.table())
    return 0 if result.passed else 1


def check_writable(file: Path | None) -> None:
    """Find out before the work whether a file can be written after it.

    Raises:
        ConfigError: it cannot.
    """
    if file is None or str(file) == "-":
        return
    folder = file.absolute().parent
    if file.is_dir() or not folder.is_dir():
        raise ConfigError("flag", str(file), "cannot be written; its folder does not exist, or it is a folder")
    if not os.access(file if file.exists() else folder, os.W_OK):
        raise ConfigError("flag", str(file), "cannot be written; name a file that you may write")


def write_json(file: Path, value: Any) -> None:
    """Write figures to a file, or to standard output for `-`.

    Raises:
        ConfigError: the file cannot be written.
    """
    data = to_json(value, indent=1) + b"\n"
    if str(file) == "-":
        sys.stdout.write(data.decode())
        return
    try:
        file.write_bytes(data)
    except OSError as error:
        raise ConfigError("flag", str(file), f"cannot be written ({error.strerror}); name another file") from error
