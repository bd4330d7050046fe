"""The command line: `stillframe COMMAND`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NoReturn

from app import settings as settings_module
from app.cli_options import (
    add_bench_options,
    add_demo_options,
    add_experiment_options,
    add_export_options,
    add_policy_check_options,
    add_policy_list_options,
    add_replay_options,
    add_report_options,
    add_serve_options,
)
from app.eval_options import add_eval_options
from app.settings import Settings
from context.errors import ConfigError, StillframeError

_OLDEST_PYTHON = (3, 11)


def program() -> None:
    """Run the command that the process was started with, and end the process at once with its status.

    The engine's libraries print pages about their own leaks when the interpreter is taken down; by then everything of
    ours is stopped.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A script has what it starts with '&' ignore it. A command that is told to stop would go on, its engine too.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        main()
    except SystemExit as ended:
        if "vllm" not in sys.modules:
            raise
        from engine.vllm.blocking import kill_children

        sys.stdout.flush()
        sys.stderr.flush()
        kill_children(2.0)
        os._exit(int(ended.code or 0))


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command.

    Raises:
        SystemExit: always, with the command's status.
    """
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
    if line:
        print(line, file=sys.stderr)
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
    _command(commands, "serve", "Run the gateway.", _serve, add_serve_options)
    _command(
        commands,
        "demo",
        "Play a short conversation about pictures on a gateway and show, turn by turn, what the caches gave: prompt "
        "tokens read, written and uncached.",
        _demo,
        add_demo_options,
    )
    _command(
        commands,
        "experiment",
        "Run the controlled experiment A-H on a gateway, each group straight to the engine and through the gateway.",
        _experiment,
        add_experiment_options,
    )
    _command(
        commands,
        "replay",
        "Run recorded or generated sessions under several policies side by side: prompt tokens read and computed, "
        "against the floor of computing each once.",
        _replay,
        add_replay_options,
    )
    _command(
        commands,
        "export",
        "Write recorded turns as files that other programs read: OpenAI bodies without image bytes, token ids with "
        "tags, or block hashes. The gateway may run meanwhile.",
        _export,
        add_export_options,
    )
    _command(
        commands,
        "report",
        "Show what the recorded turns came to: tokens read and computed, by turn, with and without eviction, causes of "
        "lost tokens, latency and cost. Also while the gateway runs.",
        _report,
        add_report_options,
    )
    _command(
        commands,
        "eval",
        "Measure what using the KV of images again elsewhere costs in answer quality and saves in work, against full "
        "recompute and the published ways, on the plain PyTorch model. About three minutes on two cores.",
        _eval,
        add_eval_options,
    )
    _command(
        commands,
        "bench",
        "Measure what the gateway adds, against calling the fake engine directly.",
        _bench,
        add_bench_options,
    )
    summary = "Validate context policies and show what they would do."
    policy: argparse.ArgumentParser = commands.add_parser("policy", help=summary, description=summary)
    actions = policy.add_subparsers(metavar="ACTION", required=True)
    _command(
        actions,
        "check",
        "Validate a policy; show its parameters and, turn by turn, what it would do to a session of an agent that "
        "sends a screenshot a step. No engine is needed: token counts are estimates.",
        _policy_check,
        add_policy_check_options,
    )
    _command(actions, "list", "List the presets.", _policy_list, add_policy_list_options)
    return parser


def _version() -> str:
    try:
        return version("stillframe")
    except PackageNotFoundError:
        return "(not installed)"


def _command(
    commands: Any,
    name: str,
    summary: str,
    run: Callable[[argparse.Namespace], int],
    add_options: Callable[[argparse.ArgumentParser], None],
) -> None:
    command: argparse.ArgumentParser = commands.add_parser(name, help=summary, description=summary)
    command.set_defaults(run=run)
    add_options(command)


def _load(options: argparse.Namespace, *names: str) -> Settings:
    flags = {name: getattr(options, name) for name in names}
    return settings_module.load(options.config, flags=flags)


def _serve(options: argparse.Namespace) -> int:
    settings = _load(options, "host", "port", "model", "upstream", "workers", "policy")
    from app.logs import configure_logging
    from app.server import serve

    configure_logging(settings.log_level)
    return serve(settings)


def _demo(options: argparse.Namespace) -> int:
    from app.commands import demo

    return demo(options, _load(options, "model", "upstream"))


def _experiment(options: argparse.Namespace) -> int:
    from app.commands import experiment

    return experiment(options, _load(options, "model", "upstream"))


def _replay(options: argparse.Namespace) -> int:
    from app.replay_command import replay

    options.policy = options.policy or ["stable"]
    return replay(options, _load(options, "model", "upstream"))


def _export(options: argparse.Namespace) -> int:
    from app.export_command import export

    return export(options, _load(options, "model", "upstream"))


def _report(options: argparse.Namespace) -> int:
    from app.report_command import report

    return report(options, _load(options))


def _eval(options: argparse.Namespace) -> int:
    from app.eval_command import evaluate

    return evaluate(options)


def _bench(options: argparse.Namespace) -> int:
    from app.commands import bench

    return bench(options)


def _policy_check(options: argparse.Namespace) -> int:
    from app.policy_commands import check

    try:
        settings = settings_module.load(options.config)
    except ConfigError:
        # Whoever checks a policy need not have settings.
        if options.config is not None:
            raise
        settings = None
    return check(options, settings)


def _policy_list(options: argparse.Namespace) -> int:
    from app.policy_commands import list_presets

    return list_presets(options)


if __name__ == "__main__":
    program()
