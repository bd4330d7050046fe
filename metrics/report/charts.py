"""Plots as inline SVG: plain shapes whose colours are the page's, so that light and dark are its alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 720, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 8, 10, 34
_MOST_LABELS = 14
# Room for a character of a label, and a little more than half of it to the next.
_LABEL = 9.5
_ROW = 26
_WIDEST = 90


@dataclass(frozen=True, slots=True)
class Series:
    """Values of one kind, a value for each place of an axis; `style` is the page's class for its colour."""

    name: str
    style: str
    values: Sequence[float]


def stacked_bars(label: str, places: Sequence[str], series: Sequence[Series], unit: str) -> str:
    """Bars of stacked values above their places. `label` says in words what is shown."""
    tops = [sum(one.values[at] for one in series) for at in range(len(places))]
    highest = _nice(max(tops, default=0.0))
    width = (_WIDTH - _LEFT - _RIGHT) / max(1, len(places))
    gap = max(min(8.0, width * 0.2), width - _WIDEST)
    parts = [_grid(highest)]
    for at, place in enumerate(places):
        x, floor = _LEFT + at * width + gap / 2, 0.0
        for one in series:
            low, high = _y(floor, highest), _y(floor + one.values[at], highest)
            if low - high > 0:
                tip = escape(f"{place}: {one.values[at]:,.0f} {unit}, {one.name}")
                parts.append(
                    f'<rect class="{one.style}" x="{x:.1f}" y="{high:.1f}" width="{width - gap:.1f}" '
                    f'height="{low - high:.1f}"><title>{tip}</title></rect>'
                )
            floor += one.values[at]
    every = max(1, math.ceil(_LABEL * max(map(len, places), default=1) / width), math.ceil(len(places) / _MOST_LABELS))
    for at in range(0, len(places), every):
        x = _LEFT + (at + 0.5) * width
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - 14}" text-anchor="middle">{escape(places[at])}</text>')
    return _svg(label, _HEIGHT, parts)


def bars(label: str, rows: Sequence[tuple[str, float, str]], style: str) -> str:
    """Bars that lie, with a name before and a figure behind each: name, value, figure in words."""
    left, right = 210, 96
    longest = max((value for _, value, _ in rows), default=0.0) or 1.0
    parts: list[str] = []
    for at, (name, value, words) in enumerate(rows):
        y, width = at * _ROW + 4, (_WIDTH - left - right) * value / longest
        parts.append(f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{escape(name)}</text>')
        parts.append(
            f'<rect class="{style}" x="{left}" y="{y}" width="{max(width, 0.5):.1f}" height="{_ROW - 8}"></rect>'
        )
        parts.append(f'<text x="{left + width + 6:.1f}" y="{y + 14}">{escape(words)}</text>')
    return _svg(label, len(rows) * _ROW + 6, parts)


def intervals(label: str, rows: Sequence[tuple[str, float, float, float, str]]) -> str:
    """Differences with their intervals on one axis through zero: name, low, value, high, figure in words."""
    left, right = 150, 210
    reach = max((abs(edge) for _, low, _, high, _ in rows for edge in (low, high)), default=0.0) or 1.0
    middle, scale = (left + _WIDTH - right) / 2, (_WIDTH - left - right) / 2 / reach
    bottom = len(rows) * _ROW + 6
    parts = [f'<line class="axis" x1="{middle}" y1="0" x2="{middle}" y2="{bottom}"></line>']
    for at, (name, low, value, high, words) in enumerate(rows):
        y = at * _ROW + 13
        parts.append(f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{escape(name)}</text>')
        ends = f'x1="{middle + low * scale:.1f}" x2="{middle + high * scale:.1f}"'
        parts.append(f'<line class="interval" {ends} y1="{y}" y2="{y}"></line>')
        parts.append(f'<circle class="point" cx="{middle + value * scale:.1f}" cy="{y}" r="5"></circle>')
        parts.append(f'<text x="{_WIDTH - right + 10}" y="{y + 4}">{escape(words)}</text>')
    return _svg(label, bottom, parts)


def _svg(label: str, height: int, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(label, quote=True)}">'
        f"{''.join(parts)}</svg>"
    )


def _grid(highest: float) -> str:
    parts: list[str] = []
    for step in range(5):
        value = highest * step / 4
        y = _y(value, highest)
        parts.append(f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}"></line>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_tick(value)}</text>')
    return "".join(parts)


def _y(value: float, highest: float) -> float:
    return _HEIGHT - _BOTTOM - value / highest * (_HEIGHT - _TOP - _BOTTOM)


def _nice(value: float) -> float:
    """The next number of which a quarter is short to write."""
    if value <= 0:
        return 4.0
    unit = 10 ** math.floor(math.log10(value))
    return max(4.0, next(unit * step for step in (1, 1.2, 2, 4, 6, 8, 10) if unit * step >= value * 0.999))


def _tick(value: float) -> str:
    for unit, word in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:g}{word}"
    return f"{value:g}"
