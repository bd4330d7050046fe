"""The command line: `stillframe COMMAND`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NoReturn

from app import settings as settings_module
from app.settings import Settings
from context.errors import ConfigError, StillframeError

_OLDEST_PYTHON = (3, 11)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and end the process with its status."""
    if sys.version_info < _OLDEST_PYTHON:  # pyright: ignore[reportUnnecessaryComparison]
        _end(2, f"stillframe needs Python 3.11 or newer; this is {sys.version.split()[0]}")
    options = _parser().parse_args(arguments)
    try:
        _end(options.run(options))
    except ConfigError as error:
        _end(2, f"stillframe: {error}")
    except StillframeError as error:
        _end(1, f"stillframe: {error}")
    except KeyboardInterrupt:
        _end(130, "stillframe: interrupted")


def _end(status: int, line: str = "") -> NoReturn:
    """End at once. The engine's libraries print pages about their own leaks when the interpreter is taken down; by
    now everything of ours is stopped."""
    if line:
        print(line, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    if "vllm" in sys.modules:
        from engine.vllm.embedded import kill_children

        kill_children(2.0)
        os._exit(status)
    sys.exit(status)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stillframe",
        description="An OpenAI-compatible gateway that builds multimodal chat contexts so that the engine's caches can "
        "be used, and says in tokens what that saved.",
        epilog="Every setting with its default: configs/default.yaml. Documentation: README.md and docs/.",
    )
    parser.add_argument("--version", action="version", version=f"stillframe {_version()}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _serve_command(commands)
    _demo_command(commands)
    _experiment_command(commands)
    _bench_command(commands)
    return parser


def _version() -> str:
    try:
        return version("stillframe")
    except PackageNotFoundError:
        return "(not installed)"


def _command(
    commands: Any, name: str, summary: str, run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(name, help=summary, description=summary)
    command.set_defaults(run=run)
    return command


def _add_settings_flags(command: argparse.ArgumentParser) -> None:
    command.add_argument("--config", type=Path, metavar="FILE", help="settings to lay over configs/default.yaml")
    command.add_argument(
        "--model", help="demo, random, a folder or a Hugging Face id for the embedded engine (default: demo)"
    )
    command.add_argument(
        "--upstream",
        action="append",
        metavar="URL",
        help="an OpenAI-compatible engine to forward to instead of the embedded one; may be repeated",
    )


def _load(options: argparse.Namespace, *names: str) -> Settings:
    flags = {name: getattr(options, name) for name in names}
    return settings_module.load(options.config, flags=flags)


def _serve_command(commands: Any) -> None:
    command = _command(commands, "serve", "Run the gateway.", _serve)
    command.add_argument("--host", help="address to listen on (default: 127.0.0.1)")
    command.add_argument("--port", type=int, help="port to listen on (default: 8000)")
    _add_settings_flags(command)
    command.add_argument("--workers", type=int, help="processes; more than one needs --upstream (default: 1)")
    command.add_argument("--policy", help="context policy (default: stable)")


def _serve(options: argparse.Namespace) -> int:
    settings = _load(options, "host", "port", "model", "upstream", "workers", "policy")
    from app.logs import configure_logging
    from app.server import serve

    configure_logging(settings.log_level)
    return serve(settings)


def _demo_command(commands: Any) -> None:
    command = _command(
        commands,
        "demo",
        "Play a short conversation about pictures on a gateway and show, turn by turn, what the caches gave: prompt "
        "tokens read, written and uncached.",
        _demo,
    )
    command.add_argument(
        "--url", help="a running gateway on this machine, such as http://127.0.0.1:8000; without it one is started"
    )
    command.add_argument("--seed", type=int, default=0, help="seed of pictures and questions (default: 0)")
    command.add_argument("--save", type=Path, metavar="FOLDER", help="write the pictures there as PNG")
    command.add_argument("--json", type=Path, metavar="FILE", help="write the turns as JSON; - for standard output")
    _add_settings_flags(command)


def _demo(options: argparse.Namespace) -> int:
    from app.commands import demo

    return demo(options, _load(options, "model", "upstream"))


def _experiment_command(commands: Any) -> None:
    command = _command(
        commands,
        "experiment",
        "Run the controlled experiment A-H on a gateway, each group straight to the engine and through the gateway.",
        _experiment,
    )
    command.add_argument(
        "--url", help="a running gateway on this machine, such as http://127.0.0.1:8000; without it one is started"
    )
    command.add_argument("--groups", default="ABCDEFGH", help="which groups to run (default: ABCDEFGH)")
    command.add_argument("--seed", type=int, default=0, help="seed of texts and pictures (default: 0)")
    command.add_argument("--json", type=Path, metavar="FILE", help="write the rows as JSON; - for standard output")
    command.add_argument("--plot", type=Path, metavar="FILE.png", help="draw read, written and uncached tokens")
    _add_settings_flags(command)


def _experiment(options: argparse.Namespace) -> int:
    from app.commands import experiment

    return experiment(options, _load(options, "model", "upstream"))


def _bench_command(commands: Any) -> None:
    command = _command(
        commands, "bench", "Measure what the gateway adds, against calling the fake engine directly.", _bench
    )
    command.add_argument("--quick", action="store_true", help="fewer rounds; the figures are rougher")
    command.add_argument("--json", type=Path, metavar="FILE", help="write the rows as JSON; - for standard output")


def _bench(options: argparse.Namespace) -> int:
    from app.commands import bench

    return bench(options)


if __name__ == "__main__":
    main()
