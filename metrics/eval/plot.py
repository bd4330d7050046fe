"""An evaluation as a picture: answers and divergence over what is computed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from metrics.eval import base
from metrics.eval.base import EngineRow, Interval, Row

_ENGINE = "the engine's answers"
# What cannot be drawn on a scale of powers.
_LEAST_KL = 1e-6
_COLOURS = {
    base.HEAD: "#1d3557",
    base.PER_LAYER: "#e63946",
    base.SUFFIX: "#2a9d8f",
    base.RANDOM: "#8d99ae",
    base.KV_DEVIATION: "#f4a261",
    base.KV_DEVIATION + base.WITHIN: "#f4a261",
    base.ATTENTION_DEVIATION: "#9b5de5",
    base.ATTENTION_DEVIATION + base.WITHIN: "#9b5de5",
    base.NO_ROTATION: "#6d6875",
}
_DONORS = {
    "same": "#8d99ae",
    "text_moved": "#2a9d8f",
    "other_images": "#e9c46a",
    "describe": "#e76f51",
    "reordered": "#1d3557",
}


def plot(rows: Sequence[Row], file: Path, engine_rows: Sequence[EngineRow] = ()) -> None:
    """For each donor that several methods were tried on three panels, and three that compare the donors under `head`.

    `prefix`, which has no ratio, is a diamond, full recompute a dotted line; the embedded engine's answers are crosses.

    Raises:
        OSError: the file cannot be written.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    donors = list(dict.fromkeys(row.donor for row in rows if row.method in _COLOURS and row.method != base.HEAD))
    count = 1 + len(donors)
    figure, panels = cast(
        "tuple[Any, Any]", pyplot.subplots(count, 3, figsize=(16.5, 3.9 * count), squeeze=False, layout="constrained")
    )
    full = next(row for row in rows if row.method == base.FULL)
    for donor, axes in zip(donors, panels, strict=False):
        methods = dict.fromkeys(row.method for row in rows if row.donor == donor and row.method in _COLOURS)
        for method in methods:
            dashed = method.endswith(base.WITHIN)
            of = [row for row in rows if row.method == method and row.donor == donor]
            _draw(axes, of, method, _COLOURS[method], "--" if dashed else "-")
            _cross(axes, [row for row in engine_rows if (row.method, row.donor) == (method, donor)], _COLOURS[method])
        _prefix(axes, rows, engine_rows, donor, "black")
        _finish(axes, f"images from '{donor}'", full)
    for donor in dict.fromkeys(str(row.donor) for row in rows if row.method in (base.HEAD, base.PREFIX)):
        colour = _DONORS.get(donor, "black")
        of = [row for row in rows if row.method == base.HEAD and row.donor == donor]
        if of:
            _draw(panels[-1], of, f"{base.HEAD}, {donor}", colour, "-")
        _cross(panels[-1], [row for row in engine_rows if (row.method, row.donor) == (base.HEAD, donor)], colour)
        _prefix(panels[-1], rows, engine_rows, donor, colour, f", {donor}")
    _finish(panels[-1], "head and prefix, by donor", full)
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def _prefix(
    axes: Any, rows: Sequence[Row], engine_rows: Sequence[EngineRow], donor: str | None, colour: str, of: str = ""
) -> None:
    found = [row for row in rows if (row.method, row.donor) == (base.PREFIX, donor)]
    if found:
        # It stands where others do, at r = 1: whatever lies under it is to be seen, too.
        _draw(axes, found, f"{base.PREFIX}{of}", colour, "", marker="D", markersize=7, markerfacecolor="none")
    _cross(axes, [row for row in engine_rows if (row.method, row.donor) == (base.PREFIX, donor)], colour)


def _draw(axes: Any, rows: Sequence[Row], label: str, colour: str, line: str, **marks: Any) -> None:
    shares = [row.computed_image_share for row in rows]
    style = {"label": label, "color": colour, "linestyle": line, "marker": "o", "markersize": 3.5, "linewidth": 1.4}
    style |= marks
    for panel, found in zip(
        axes, ([row.accuracy_single_hop for row in rows], [row.accuracy_multi_hop for row in rows]), strict=False
    ):
        drawn = [(share, one) for share, one in zip(shares, found, strict=True) if one is not None]
        if drawn:
            panel.plot([share for share, _ in drawn], [one.mean * 100 for _, one in drawn], **style)
            low, high = ([getattr(one, end) * 100 for _, one in drawn] for end in ("low", "high"))
            panel.fill_between([share for share, _ in drawn], low, high, color=colour, alpha=0.07, linewidth=0)
    axes[2].plot(shares, [max(row.reply_kl, _LEAST_KL) for row in rows], **style)


def _cross(axes: Any, rows: Sequence[EngineRow], colour: str) -> None:
    for panel, hop in zip(axes, ("single", "multi"), strict=False):
        found = [(row.computed_image_share, getattr(row, f"accuracy_{hop}_hop")) for row in rows]
        drawn = [(share, one.mean * 100) for share, one in found if one is not None]
        panel.plot(*zip(*drawn, strict=True), "x", color=colour, markersize=7, label=_ENGINE) if drawn else None


def _finish(axes: Any, title: str, full: Row) -> None:
    accuracies: tuple[Interval | None, Interval | None] = (full.accuracy_single_hop, full.accuracy_multi_hop)
    for panel, name, whole in zip(axes, ("single-hop", "multi-hop"), accuracies, strict=False):
        panel.set_ylim(0, 103)
        panel.set_title(f"{title}: {name} answers right, %", loc="left", fontsize=10)
        if whole is not None:
            panel.axhline(whole.mean * 100, color="black", linewidth=0.8, linestyle=":", label=f"{base.FULL} recompute")
    axes[2].set_title(f"{title}: divergence over the reply, nats", loc="left", fontsize=10)
    axes[2].set_yscale("log")
    for panel in axes:
        panel.set_xlabel("share of the images' tokens that is computed")
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25)
    # What has a line in one panel of the three; crosses of all colours have one name.
    named: dict[str, Any] = {}
    for panel in axes:
        for line, name in zip(*panel.get_legend_handles_labels(), strict=True):
            named.setdefault(name, line)
    if _ENGINE in named:
        named[_ENGINE] = named.pop(_ENGINE)
    axes[2].legend(
        list(named.values()), list(named), frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5)
    )
