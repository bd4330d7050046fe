"""`stillframe policy check` and `stillframe policy list`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from app.commands import check_writable, write_json
from context.errors import ConfigError
from context.policies.choice import LoadedPolicy, load_policy
from context.policies.document import PRESETS
from context.policies.parameters import parameters, values

if TYPE_CHECKING:
    from app.settings import Settings
    from metrics.preview import PreviewTurn

MAX_STEPS = 500
_WIDTH = 150


def check(options: argparse.Namespace, settings: Settings | None = None) -> int:
    """Validate a policy and show what it would do, and for whom it is in force by the settings. Exit status 0 when it
    can be used; a fault ends with 2.

    Raises:
        ConfigError: the policy, or an option, cannot be used.
    """
    from metrics.preview import preview

    if not 1 <= options.steps <= MAX_STEPS:
        raise ConfigError("flag", "--steps", f"takes a number from 1 to {MAX_STEPS}")
    check_writable(options.json)
    policy, stable = load_policy(options.policy), load_policy("stable")
    turns = asyncio.run(preview(policy, options.steps))
    baseline = turns if policy.document == stable.document else asyncio.run(preview(stable, options.steps))
    summary = _summary(turns, baseline)
    force = [] if settings is None else _in_force(policy, settings)
    if options.json is not None:
        shown = {"name": policy.name, "version": policy.version, "kind": policy.document.kind}
        report = {
            "parameters": _own(policy),
            "in_force": force,
            "turns": [asdict(turn) for turn in turns],
            "summary": summary,
        }
        write_json(options.json, {**shown, **report})
    console = _console(options)
    console.print(f"{policy.name} {policy.version} ({policy.document.kind}) can be used.", highlight=False)
    if settings is not None:
        console.print(_said_of_force(force), highlight=False, markup=False, soft_wrap=True)
    console.print(_parameter_table(policy))
    console.print(_turn_table(turns))
    console.print(_sentence(policy, summary), highlight=False, soft_wrap=True)
    return 0


def list_presets(options: argparse.Namespace) -> int:
    """Show the presets.

    Raises:
        ConfigError: the file for the rows cannot be written.
    """
    check_writable(options.json)
    documents = [load_policy(name).document for name in PRESETS]
    keys = ("name", "version", "kind", "description")
    if options.json is not None:
        write_json(options.json, {"policies": [{key: getattr(one, key) for key in keys} for one in documents]})
    table = Table(box=None, pad_edge=False)
    for key in keys:
        table.add_column(key)
    for one in documents:
        table.add_row(*(str(getattr(one, key)) for key in keys))
    console = _console(options)
    console.print(table)
    console.print("When to use each: configs/policies/README.md", highlight=False)
    return 0


def _in_force(policy: LoadedPolicy, settings: Settings) -> list[dict[str, Any]]:
    """Where the settings name a policy: for the rest of the requests, by a rule, or for clients that ask for it."""

    def is_it(name: str) -> bool:
        try:
            return load_policy(name).document == policy.document
        except ConfigError:
            return False

    anybody = {"model": None, "tenant": None, "share": None}
    found: list[dict[str, Any]] = [
        {"by": "rule", "model": rule.model, "tenant": rule.tenant, "share": rule.share}
        for rule in settings.policy_rules
        if is_it(rule.policy)
    ]
    if is_it(settings.policy):
        found.append({"by": "default", **anybody})
    return [*found, *({"by": "header", **anybody} for name in settings.policy_headers if is_it(name))]


def _said_of_force(force: Sequence[dict[str, Any]]) -> str:
    if not force:
        return "The settings name it nowhere."
    said: list[str] = []
    for one in force:
        if one["by"] == "rule":
            whose = [f"{key} {one[key]}" for key in ("model", "tenant") if one[key] is not None]
            what = "all conversations" if one["share"] is None else f"{one['share']:.4g} of the conversations"
            said.append(f"for {what}{' of ' + ' and '.join(whose) if whose else ''} that no rule before took")
        else:
            said.append("for all that no rule takes" if one["by"] == "default" else "where a client asks for it")
    return f"In force by the settings: {'; '.join(said)}."


def _console(options: argparse.Namespace) -> Console:
    stderr = str(options.json) == "-"
    is_terminal = (sys.stderr if stderr else sys.stdout).isatty()
    # In a file or a pipe nobody wants the lines of a narrow terminal.
    return Console(stderr=stderr, width=None if is_terminal else _WIDTH)


def _parameter_table(policy: LoadedPolicy) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("parameter", "value", "default", "meaning"):
        table.add_column(name)
    found = _own(policy)
    for one in parameters(policy.document.kind):
        if one.key not in found:
            continue
        value, default = escape(_plain(found[one.key])), escape(_plain(one.default))
        table.add_row(one.key, value, "" if value == default else default, escape(one.meaning))
    return table


def _own(policy: LoadedPolicy) -> dict[str, Any]:
    """The values of what decides; not those of what only names."""
    names = ("name", "version", "kind", "description")
    return {key: value for key, value in values(policy.document).items() if key not in names}


def _turn_table(turns: Sequence[PreviewTurn]) -> Table:
    """The turns; those that follow each other with the same break, or none, share a row."""
    table = Table(box=None, pad_edge=False)
    table.add_column("turns")
    for name in ("images", "prompt tokens", "computed tokens"):
        table.add_column(name, justify="right")
    table.add_column("break")
    for _, group in groupby(turns, key=lambda turn: (turn.turn == 1, turn.cause, turn.actor)):
        rows = list(group)
        first = rows[0]
        where = f"{first.cause} by {first.actor} at {first.place}" if first.cause else ""
        more = f", and in each turn to {rows[-1].turn}" if first.cause and len(rows) > 1 else ""
        table.add_row(
            _range([row.turn for row in rows]),
            _range([row.images for row in rows]),
            _range([row.prompt_tokens for row in rows]),
            _range([row.computed_tokens for row in rows]),
            where + more,
        )
    return table


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _summary(turns: Sequence[PreviewTurn], stable: Sequence[PreviewTurn]) -> dict[str, Any]:
    def sums(rows: Sequence[PreviewTurn]) -> dict[str, int]:
        return {
            "prompt_tokens": sum(row.prompt_tokens for row in rows),
            "computed_tokens": sum(row.computed_tokens for row in rows),
            "longest_prompt_tokens": max(row.prompt_tokens for row in rows),
            "most_images": max(row.images for row in rows),
            "breaks": sum(bool(row.cause) for row in rows),
        }

    # Every token of the session computed once: its last prompt, as long as nothing is evicted.
    return {"turns": len(turns), **sums(turns), "floor_tokens": stable[-1].prompt_tokens, "stable": sums(stable)}


def _sentence(policy: LoadedPolicy, summary: dict[str, Any]) -> str:
    stable = summary["stable"]
    made = (
        f"{summary['turns']} turns: {summary['computed_tokens']:,} computed tokens, "
        f"{summary['computed_tokens'] / summary['floor_tokens']:.2f} of the floor; longest prompt "
        f"{summary['longest_prompt_tokens']:,}, {summary['breaks']} breaks"
    )
    if policy.name == "stable":
        return f"{made}."
    computed = summary["computed_tokens"] / stable["computed_tokens"]
    longest = summary["longest_prompt_tokens"] / stable["longest_prompt_tokens"]
    return f"{made}. Against stable: {computed:.2f} of the computed tokens, {longest:.2f} of the longest prompt."


def _plain(value: Any) -> str:
    """A value as YAML has it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_plain, value))}]"  # pyright: ignore[reportUnknownArgumentType]
    return str(value)
