"""What the commands other than `serve` do. Heavy imports stand inside, so that `--help` answers at once."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic_core import to_json
from rich.console import Console

from app.settings import Settings
from context.errors import ConfigError, EngineUnavailable

_READY_POLL_SECONDS = 0.2
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
        _check_writable(file)
    if options.plot is not None and options.plot.suffix != ".png":
        raise ConfigError("flag --plot", str(options.plot), "must end in .png")
    return asyncio.run(_experiment(options, settings, groups))


async def _experiment(options: argparse.Namespace, settings: Settings, groups: Sequence[Any]) -> int:
    from context.tenancy import load_token
    from metrics import experiment as runner
    from metrics.experiment_report import plot, table

    console = Console(stderr=True)
    token = settings.admin_token or load_token(settings.data_path / "admin-token")
    api_key = next(iter(settings.auth.keys.values()), "")
    async with _gateway(options.url, settings, console) as url:
        client = runner.GatewayClient(url, token, api_key)
        async with client.connected():
            with console.status("experiment") as status:
                rows = await runner.run(client, groups, options.seed, status.update)
    to_stdout = str(options.json) == "-"
    if options.json is not None:
        _write_json(options.json, {"rows": [asdict(row) for row in rows]})
    shown = Console(stderr=to_stdout)
    shown.print(table(rows))
    shown.print(f"{sum(row.passed for row in rows)} of {len(rows)} rows are as expected.")
    if options.plot is not None:
        await asyncio.to_thread(plot, rows, options.plot)
    return 0 if all(row.passed for row in rows) else 1


def _root(url: str) -> str:
    """A gateway's address, also where it is given as clients take it, with /v1, or without http://."""
    return (url if "://" in url else f"http://{url}").rstrip("/").removesuffix("/v1")


@asynccontextmanager
async def _gateway(url: str | None, settings: Settings, console: Console) -> AsyncGenerator[str]:
    """The gateway at `url`, or one that is started here and stopped on leaving."""
    if url:
        yield _root(url)
        return
    import uvicorn

    from app.logs import configure_logging
    from app.server import GatewayApp, bind, check_disk, check_model, make_engine

    configure_logging("warning")
    check_disk(settings)
    check_model(settings)
    listener = bind("127.0.0.1", 0)
    engine = await asyncio.to_thread(make_engine, settings)
    app = GatewayApp(settings, engine)
    config = uvicorn.Config(app, log_level="warning", access_log=False, ws="none", lifespan="on", loop="none")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        with console.status("starting the engine; about a minute"):
            while not engine.health().ready:
                if app.failure is not None:
                    raise app.failure
                if serving.done():
                    raise EngineUnavailable("The gateway could not be started; its log says why.")
                await asyncio.sleep(_READY_POLL_SECONDS)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await asyncio.gather(serving, return_exceptions=True)


def bench(options: argparse.Namespace) -> int:
    """Measure what the gateway adds. Exit status 0 when every limit holds, else 1.

    Raises:
        ConfigError: the file for the rows cannot be written.
        BenchError: a server of the measurement could not be started or broke.
    """
    import uvloop

    from metrics.bench import BenchConfig, run

    _check_writable(options.json)
    config = BenchConfig(rounds=_QUICK_ROUNDS) if options.quick else BenchConfig()
    result = uvloop.run(run(config, Console(stderr=True)))
    if options.json is not None:
        _write_json(options.json, result.to_json())
    Console(stderr=str(options.json) == "-", width=None if sys.stdout.isatty() else 150).print(result.table())
    return 0 if result.passed else 1


def _check_writable(file: Path | None) -> None:
    if file is None or str(file) == "-":
        return
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise ConfigError("flag", str(file), "cannot be written; its folder does not exist, or it is a folder")


def _write_json(file: Path, value: Any) -> None:
    data = to_json(value, indent=1) + b"\n"
    if str(file) == "-":
        sys.stdout.write(data.decode())
    else:
        file.write_bytes(data)
