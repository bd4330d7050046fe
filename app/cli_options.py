"""The options of the commands."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_serve_options(command: argparse.ArgumentParser) -> None:
    """Of the gateway."""
    command.add_argument("--host", help="address to listen on (default: 127.0.0.1)")
    command.add_argument("--port", type=int, help="port to listen on (default: 8000)")
    _add_settings(command)
    command.add_argument("--workers", type=int, help="processes; more than one needs --upstream (default: 1)")
    command.add_argument(
        "--policy", metavar="NAME|FILE", help="context policy: a preset or a YAML file (default: stable)"
    )


def add_demo_options(command: argparse.ArgumentParser) -> None:
    """Of the demonstration."""
    command.add_argument(
        "--url", help="a running gateway on this machine, such as http://127.0.0.1:8000; without it one is started"
    )
    command.add_argument("--seed", type=int, default=0, help="seed of pictures and questions (default: 0)")
    command.add_argument("--save", type=Path, metavar="FOLDER", help="write the pictures there as PNG")
    command.add_argument("--json", type=Path, metavar="FILE", help="write the turns as JSON; - for standard output")
    _add_settings(command)


def add_experiment_options(command: argparse.ArgumentParser) -> None:
    """Of the controlled experiment."""
    command.add_argument(
        "--url", help="a running gateway on this machine, such as http://127.0.0.1:8000; without it one is started"
    )
    command.add_argument("--groups", default="ABCDEFGH", help="which groups to run (default: ABCDEFGH)")
    command.add_argument("--seed", type=int, default=0, help="seed of texts and pictures (default: 0)")
    command.add_argument("--json", type=Path, metavar="FILE", help="write the rows as JSON; - for standard output")
    command.add_argument("--plot", type=Path, metavar="FILE.png", help="draw read, written and uncached tokens")
    _add_settings(command)


def add_replay_options(command: argparse.ArgumentParser) -> None:
    """Of replaying sessions."""
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
    _add_settings(command)


def add_export_options(command: argparse.ArgumentParser) -> None:
    """Of writing recorded turns."""
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
    _add_settings(command)


def add_report_options(command: argparse.ArgumentParser) -> None:
    """Of the report."""
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


def add_bench_options(command: argparse.ArgumentParser) -> None:
    """Of the benchmark."""
    command.add_argument("--quick", action="store_true", help="fewer rounds; the figures are rougher")
    command.add_argument("--json", type=Path, metavar="FILE", help="write the rows as JSON; - for standard output")


def add_policy_check_options(command: argparse.ArgumentParser) -> None:
    """Of trying a policy."""
    command.add_argument("policy", metavar="FILE|NAME", help="a YAML file, or a preset's name")
    command.add_argument("--steps", type=int, default=40, help="steps of the session (default: 40)")
    command.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="settings; for whom and which share is the policy in force",
    )
    _add_json(command)


def add_policy_list_options(command: argparse.ArgumentParser) -> None:
    """Of listing the presets."""
    _add_json(command)


def _add_settings(command: argparse.ArgumentParser) -> None:
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


def _add_json(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--json",
        type=Path,
        nargs="?",
        const=Path("-"),
        metavar="FILE",
        help="write the same as JSON; standard output without a FILE",
    )
