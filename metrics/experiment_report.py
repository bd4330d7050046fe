"""The experiment's rows as a table for the terminal and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from rich import box
from rich.table import Table

from metrics.experiment import Row


def table(rows: Sequence[Row]) -> Table:
    """Expected and measured side by side, a verdict a row. Fits a terminal of 80 columns without cutting a figure."""
    changes = ", ".join(dict.fromkeys(f"{row.group} {row.change}" for row in rows))
    derived = (
        "\nThe engine does not report written tokens; they are derived." if any(r.write_derived for r in rows) else ""
    )
    shown = Table(
        title="Second request of each group",
        title_justify="left",
        caption=changes + derived,
        caption_justify="left",
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
    )
    shown.add_column("")
    shown.add_column("path", no_wrap=True)
    for name in ("prompt", "read", "expected", "write", "uncached", "runs", "hits", "first"):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("verdict")
    for row in rows:
        shown.add_row(
            row.group if row.path == "direct" else "",
            row.path,
            _figure(row.prompt_tokens),
            _figure(row.read_tokens),
            _figure(row.expected["read_tokens"]),
            _figure(row.write_tokens),
            _figure(row.uncached_tokens),
            f"{_figure(row.encoder_runs)}/{row.expected['encoder_runs']}",
            f"{_figure(row.encoder_hits)}/{row.expected['encoder_hits']}",
            f"{row.ttft_seconds * 1000:.0f} ms",
            f"[green]{row.verdict}[/green]" if row.passed else f"[red]{row.verdict}[/red]",
            end_section=row.path == "gateway",
        )
    return shown


def plot(rows: Sequence[Row], file: Path) -> None:
    """Read, written and uncached tokens of every row as stacked bars; what should be read as a tick.

    Raises:
        OSError: the file cannot be written.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes_untyped = pyplot.subplots(figsize=(10, 0.42 * len(rows) + 1.8), layout="constrained")
    # matplotlib types most of its arguments as unknown.
    axes = cast("Any", axes_untyped)
    places = [index + (0.12 if row.path == "gateway" else -0.12) for index, row in enumerate(reversed(rows))]
    drawn = list(reversed(rows))
    left = [0] * len(drawn)
    for name, colour in (("read", "#2a9d8f"), ("write", "#e9c46a"), ("uncached", "#e76f51")):
        widths = [getattr(row, f"{name}_tokens") or 0 for row in drawn]
        axes.barh(places, widths, left=left, height=0.72, color=colour, label=f"{name} tokens")
        left = [a + b for a, b in zip(left, widths, strict=True)]
    wanted = [row.expected["read_tokens"] for row in drawn]
    axes.scatter(wanted, places, marker="|", s=160, color="black", zorder=3, label="should be read")
    axes.set_yticks(places, [f"{row.group} {row.change}, {row.path}" for row in drawn])
    axes.set_xlabel("prompt tokens of the second request")
    axes.set_title("Controlled experiment: one change between two requests", loc="left")
    axes.legend(loc="upper center", bbox_to_anchor=(0.4, -0.07), ncols=4, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", alpha=0.25)
    axes.set_axisbelow(True)
    cast("Any", figure).savefig(file, dpi=130)
    pyplot.close(figure)


def _figure(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"
