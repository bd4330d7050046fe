"""Rows of a replay as a table for the terminal, and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from rich import box
from rich.table import Table

from metrics.replay.figures import Row

_NOTE = (
    "computed: prompt tokens that were not read. floor: the last prompt if nothing were ever evicted, each token "
    "computed once. breaks: turns whose prompt stopped extending what was sent before."
)


def tables(rows: Sequence[Row]) -> list[Table]:
    """A table for each trace, a line for each policy. Fits a terminal of 80 columns without cutting a figure."""
    traces = list(dict.fromkeys(row.trace for row in rows))
    made = [_table(trace, [row for row in rows if row.trace == trace]) for trace in traces]
    if made:
        made[-1].caption, made[-1].caption_justify = _NOTE, "left"
    return made


def _table(trace: str, rows: Sequence[Row]) -> Table:
    floor, engine = _figure(rows[0].floor_tokens), rows[0].engine
    shown = Table(
        title=f"{trace}: {rows[0].turns} turns, floor {floor} tokens, {engine}",
        title_justify="left",
        box=box.SIMPLE,
        padding=(0, 0, 0, 0),
    )
    has_times = any(row.ttft_seconds is not None for row in rows)
    shown.add_column("policy", overflow="fold")
    for name in ("prompt", "read", "computed", "/ floor", "longest", *(["first"] if has_times else [])):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("breaks", overflow="fold")
    for row in rows:
        times = ["-" if row.ttft_seconds is None else f"{row.ttft_seconds * 1000:.0f} ms"] if has_times else []
        shown.add_row(
            row.policy,
            _figure(row.prompt_tokens),
            _figure(row.read_tokens),
            _figure(row.computed_tokens),
            "?" if row.computed_over_floor is None else f"{row.computed_over_floor:.3f}",
            _figure(row.max_prompt_tokens),
            *times,
            _breaks(row),
        )
    return shown


def _breaks(row: Row) -> str:
    told = [f"{cause} {count}" for cause, count in row.breaks.items()] or ["none"]
    return "\n".join(told + [f"refused {row.refused_turns}"] * bool(row.refused_turns))


def plot(rows: Sequence[Row], file: Path) -> None:
    """For each trace two panels over its turns: tokens computed so far, with the floor as a line, and prompt length.

    Raises:
        OSError: the file cannot be written.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    traces = list(dict.fromkeys(row.trace for row in rows))
    figure, panels = cast(
        "tuple[Any, Any]",
        pyplot.subplots(len(traces), 2, figsize=(12, 3.6 * len(traces) + 0.6), squeeze=False, layout="constrained"),
    )
    for trace, (computed, prompt) in zip(traces, panels, strict=True):
        for row in (row for row in rows if row.trace == trace):
            _draw(computed, prompt, row)
        floor = next(row.floor_tokens for row in rows if row.trace == trace)
        if floor is not None:
            computed.axhline(floor, color="black", linewidth=0.8, linestyle="--", label="floor")
        computed.set_title(f"{trace}: tokens computed so far", loc="left")
        prompt.set_title(f"{trace}: prompt tokens", loc="left")
        for axes in (computed, prompt):
            axes.set_xlabel("turn")
            axes.set_ylim(bottom=0)
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.25)
        computed.legend(frameon=False, fontsize=8)
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def _draw(computed: Any, prompt: Any, row: Row) -> None:
    turns = [one.turn for one in row.by_turn if one.prompt_tokens is not None]
    total, so_far = 0, list[int]()
    for one in row.by_turn:
        total += (one.computed_tokens or 0) + one.summary_computed_tokens
        if one.prompt_tokens is not None:
            so_far.append(total)
    computed.plot(turns, so_far, label=row.policy, linewidth=1.6)
    prompt.plot(turns, [one.prompt_tokens for one in row.by_turn if one.prompt_tokens is not None], linewidth=1.6)


def _figure(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"
