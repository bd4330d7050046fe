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
    _replay_command(commands)
    _export_command(commands)
    _report_command(commands)
    _eval_command(commands)
    _bench_command(commands)
    _policy_command(commands)
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
    command.add_argument(
        "--policy", metavar="NAME|FILE", help="context policy: a preset or a YAML file (default: stable)"
    )


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


def _replay_command(commands: Any) -> None:
    command = _command(
        commands,
        "replay",
        "Run recorded or generated sessions under several policies side by side: prompt tokens read and computed, "
        "against the floor of computing each once.",
        _replay,
    )
    command.epilog = "Traces t1 to t6 and their options: docs/replay.md. Example: stillframe replay t1 --simulate"
    command.add_argument(
        "traces",
        nargs="+",
        metavar="TRACE",
        help="t1 to t6, with options as in t1:steps=20,window=keep3_delete; or a file",
    )
    command.add_argument(
        "--policy",
        nargs="+",
        action="extend",
        metavar="NAME|FILE",
        help="presets or policy files (default: stable)",
    )
    command.add_argument("--simulate", action="store_true", help="simulate the engine's caches; no engine is started")
    command.add_argument(
        "--url", help="a running gateway on this machine, such as http://127.0.0.1:8000; without it one is started"
    )
    command.add_argument("--seed", type=int, default=0, help="seed of generated sessions (default: 0)")
    command.add_argument(
        "--image-size", metavar="WxH", help="size of all pictures (default: the trace's; on an engine 112x112)"
    )
    command.add_argument(
        "--text-scale", type=float, metavar="FACTOR", help="factor on all text lengths (default: 1; on an engine 0.25)"
    )
    command.add_argument("--json", type=Path, metavar="FILE", help="write the rows as JSON; - for standard output")
    command.add_argument("--plot", type=Path, metavar="FILE.png", help="draw computed tokens and prompt length by turn")
    command.add_argument("--export", type=Path, metavar="FILE", help="write the trace as JSON lines, and run nothing")
    _add_settings_flags(command)


def _replay(options: argparse.Namespace) -> int:
    from app.replay_command import replay

    options.policy = options.policy or ["stable"]
    return replay(options, _load(options, "model", "upstream"))


def _export_command(commands: Any) -> None:
    command = _command(
        commands,
        "export",
        "Write recorded turns as files that other programs read: OpenAI bodies without image bytes, token ids with "
        "tags, or block hashes. The gateway may run meanwhile.",
        _export,
    )
    command.epilog = "What the formats hold, and which programs read them: docs/exports.md."
    command.add_argument("--format", choices=("openai", "token_ids", "mooncake"), default="openai", help="of the lines")
    command.add_argument("--out", type=Path, metavar="FILE", required=True, help="where to; - for standard output")
    command.add_argument("--tenant", metavar="NAME", help="whose turns (default: all tenants')")
    command.add_argument(
        "--block-tokens", type=int, default=512, metavar="N", help="tokens in a block of mooncake (default: 512)"
    )
    command.add_argument(
        "--replies",
        action="store_true",
        help="in token_ids and mooncake also what the engine's cache holds of the replies when the next turn comes",
    )
    command.add_argument(
        "--url",
        help="a running gateway on this machine whose engine makes the token ids; without it the tokenizer of --model",
    )
    command.add_argument("--json", type=Path, metavar="FILE", help="write what was done as JSON; - for standard output")
    _add_settings_flags(command)


def _export(options: argparse.Namespace) -> int:
    from app.export_command import export

    return export(options, _load(options, "model", "upstream"))


def _report_command(commands: Any) -> None:
    command = _command(
        commands,
        "report",
        "Show what the recorded turns came to: tokens read and computed, by turn, with and without eviction, causes of "
        "lost tokens, latency and cost. Also while the gateway runs.",
        _report,
    )
    command.epilog = "Example: stillframe report --since 7d --by policy --html report.html"
    command.add_argument("--file", type=Path, help="a ledger.db (default: that of data_dir)")
    command.add_argument("--since", metavar="TIME", help="from then on: 2026-11-30, 2026-11-30T14:00 (UTC), or 12h, 7d")
    command.add_argument("--until", metavar="TIME", help="before then")
    command.add_argument(
        "--by",
        action="append",
        metavar="SPLIT",
        help="add a table by model, policy, tenant, multi_turn, multimodal, images, visual_tokens, turn, eviction, "
        "summary, prompt_length or outcome; model,policy for both at once; may be repeated",
    )
    for name in ("tenant", "model", "policy"):
        command.add_argument(f"--{name}", metavar="NAME", help=f"of one {name} alone")
    command.add_argument("--baseline", metavar="POLICY", help="what --by policy compares with (default: the most used)")
    command.add_argument("--json", type=Path, metavar="FILE", help="write the figures as JSON; - for standard output")
    command.add_argument("--html", type=Path, metavar="FILE", help="write one page with plots; - for standard output")
    command.add_argument("--config", type=Path, metavar="FILE", help="settings to lay over configs/default.yaml")


def _report(options: argparse.Namespace) -> int:
    from app.report_command import report

    return report(options, _load(options))


def _eval_command(commands: Any) -> None:
    from app.eval_options import add_eval_options

    command = _command(
        commands,
        "eval",
        "Measure what using the KV of images again elsewhere costs in answer quality and saves in work, against full "
        "recompute and the published ways, on the plain PyTorch model. About three minutes on two cores.",
        _eval,
    )
    add_eval_options(command)


def _eval(options: argparse.Namespace) -> int:
    from app.eval_command import evaluate

    return evaluate(options)


def _bench_command(commands: Any) -> None:
    command = _command(
        commands, "bench", "Measure what the gateway adds, against calling the fake engine directly.", _bench
    )
    command.add_argument("--quick", action="store_true", help="fewer rounds; the figures are rougher")
    command.add_argument("--json", type=Path, metavar="FILE", help="write the rows as JSON; - for standard output")


def _bench(options: argparse.Namespace) -> int:
    from app.commands import bench

    return bench(options)


def _policy_command(commands: Any) -> None:
    summary = "Validate context policies and show what they would do."
    command: argparse.ArgumentParser = commands.add_parser("policy", help=summary, description=summary)
    actions = command.add_subparsers(metavar="ACTION", required=True)
    check = _command(
        actions,
        "check",
        "Validate a policy; show its parameters and, turn by turn, what it would do to a session of an agent that "
        "sends a screenshot a step. No engine is needed: token counts are estimates.",
        _policy_check,
    )
    check.add_argument("policy", metavar="FILE|NAME", help="a YAML file, or a preset's name")
    check.add_argument("--steps", type=int, default=40, help="steps of the session (default: 40)")
    check.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="settings; for whom and which share is the policy in force",
    )
    listed = _command(actions, "list", "List the presets.", _policy_list)
    for action in (check, listed):
        _add_json_flag(action)


def _add_json_flag(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--json",
        type=Path,
        nargs="?",
        const=Path("-"),
        metavar="FILE",
        help="write the same as JSON; standard output without a FILE",
    )


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
    main()
