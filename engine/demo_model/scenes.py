"""Procedural pictures: coloured shapes and digits on a plain, framed background.

A scene is drawn from a random generator alone, so that with the pinned libraries a seed gives the same pictures. Where
objects stand is the scene's layout: the cells of a 56-pixel grid that are occupied. Of each grid and number of things,
about one layout in eight, and at least one, belongs to the held-out splits and is never drawn for training. A full grid
has one layout; there it is what stands in the cells that is held out.

The thin frame is there because the vision tower has relative positions only: on a plain picture nothing tells it
where the edges are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

Split = Literal["train", "validation", "test"]

OBJECT_COLOURS = {
    "red": (222, 38, 38),
    "green": (30, 150, 50),
    "blue": (40, 70, 225),
    "yellow": (245, 220, 40),
    "purple": (140, 40, 170),
    "orange": (250, 135, 20),
}
BACKGROUNDS = {
    "white": (248, 248, 248),
    "black": (16, 16, 16),
    "gray": (135, 135, 135),
    "pink": (250, 185, 205),
    "brown": (110, 70, 40),
    "cyan": (130, 225, 230),
}
SHAPES = ("circle", "square", "triangle", "star", "cross", "ring")
DIGITS = tuple("0123456789")
CLASSES = SHAPES + DIGITS
MIN_SIDE, MAX_SIDE, PATCH = 112, 448, 28
MAX_OBJECTS = 4
CELL = 56
_FRAME = 3
_SHADE = 10
_CLEAR = 4
_HELD_OUT = 8
# From so many layouts on, a share of them by digest is never empty.
_MANY_LAYOUTS = 128


@dataclass(frozen=True, slots=True)
class Thing:
    """An object of a scene. `x` and `y` are its centre, `size` its side, all in pixels."""

    name: str
    colour: str
    x: int
    y: int
    size: int

    @property
    def is_digit(self) -> bool:
        """Whether it is a digit and not a shape."""
        return self.name in DIGITS


@dataclass(frozen=True, slots=True)
class Scene:
    """One picture before it is drawn. `shades` are the exact colours: background, then one for each thing."""

    width: int
    height: int
    background: str
    things: tuple[Thing, ...]
    shades: tuple[tuple[int, int, int], ...]

    @property
    def tokens(self) -> int:
        """How many tokens the picture takes: one for each 28x28 pixels."""
        return self.width * self.height // PATCH**2

    def where(self, thing: Thing) -> str:
        """The quarter that a thing's centre stands in, such as `top left`."""
        vertical = "top" if thing.y < self.height / 2 else "bottom"
        return f"{vertical} {'left' if thing.x < self.width / 2 else 'right'}"


@dataclass(frozen=True, slots=True)
class SceneLimits:
    """What may be drawn: sides in pixels, and the number of things."""

    min_side: int = MIN_SIDE
    max_side: int = MAX_SIDE
    min_things: int = 1
    max_things: int = MAX_OBJECTS


def draw_scene(rng: np.random.Generator, split: Split, limits: SceneLimits | None = None) -> Scene:
    """A random scene of a split. Sides are multiples of 28, small ones more often than large ones."""
    limits = limits or SceneLimits()
    # Before the loop: pictures of many things are drawn anew more often, and counts shall be even.
    count = int(rng.integers(limits.min_things, limits.max_things + 1))
    while True:
        width, height = _side(rng, limits), _side(rng, limits)
        things = _arranged(rng, split, width, height, count)
        # A centre on a middle line has no quarter.
        if any(abs(2 * t.x - width) < 16 or abs(2 * t.y - height) < 16 for t in things):
            continue
        background = str(rng.choice(list(BACKGROUNDS)))
        base = [BACKGROUNDS[background], *(OBJECT_COLOURS[thing.colour] for thing in things)]
        shades = tuple(_shaded(rng, rgb) for rgb in base)
        return Scene(width, height, background, things, shades)


def held_out(columns: int, rows: int, cells: Sequence[int], names: Sequence[str]) -> bool:
    """Whether a layout is kept for validation and test. `cells` ascend; `names` say what stands in them."""
    if len(cells) == columns * rows:
        return _digest(columns, rows, names) % _HELD_OUT == 0
    middle = _on_middle(columns, rows, cells)
    total = math.comb(columns * rows, len(cells))
    off = math.comb((columns - columns % 2) * (rows - rows % 2), len(cells))
    if (total - off if middle else off) >= _MANY_LAYOUTS:
        return _digest(columns, rows, cells) % _HELD_OUT == 0
    return tuple(cells) in _few_held_out(columns, rows, len(cells), middle)


@lru_cache(maxsize=1024)
def _few_held_out(columns: int, rows: int, count: int, middle: bool) -> frozenset[tuple[int, ...]]:
    """Layouts held out of a grid that has few, apart for those on a middle line: these are hardly ever drawn."""
    found = [c for c in combinations(range(columns * rows), count) if _on_middle(columns, rows, c) == middle]
    found.sort(key=lambda cells: _digest(columns, rows, cells))
    # A layout that is alone is trained on.
    return frozenset(found[: max(len(found) > 1, len(found) // _HELD_OUT)])


def _on_middle(columns: int, rows: int, cells: Sequence[int]) -> bool:
    """Whether something stands in the middle column or row of an odd grid, where most places have no quarter."""
    return any(2 * (cell % columns) + 1 == columns or 2 * (cell // columns) + 1 == rows for cell in cells)


def _digest(columns: int, rows: int, what: Sequence[int] | Sequence[str]) -> int:
    return int.from_bytes(blake2b(f"{columns}x{rows}:{list(what)}".encode(), digest_size=4).digest(), "big")


def render(scene: Scene) -> NDArray[np.uint8]:
    """Draw a scene: (height, width, 3) RGB."""
    picture = np.empty((scene.height, scene.width, 3), np.uint8)
    ground = np.array(scene.shades[0], np.int16)
    picture[:] = ground
    edge = np.clip(ground + (60 if ground.sum() < 384 else -60), 0, 255)
    for strip in (picture[:_FRAME], picture[-_FRAME:], picture[:, :_FRAME], picture[:, -_FRAME:]):
        strip[:] = edge
    for thing, shade in zip(scene.things, scene.shades[1:], strict=True):
        left, top = thing.x - thing.size // 2, thing.y - thing.size // 2
        region = picture[top : top + thing.size, left : left + thing.size]
        mask = _mask(thing.name, thing.size)[..., None]
        region[:] = (region * (1 - mask) + np.array(shade, np.float32) * mask + 0.5).astype(np.uint8)
    return picture


def _arranged(rng: np.random.Generator, split: Split, width: int, height: int, count: int) -> tuple[Thing, ...]:
    """Things in cells of a layout that belongs to the split."""
    columns, rows = width // CELL, height // CELL
    full, train = count == columns * rows, split == "train"
    while True:
        cells = sorted(int(cell) for cell in rng.choice(columns * rows, count, replace=False))
        if not full and held_out(columns, rows, cells, ()) == train:
            continue
        things = tuple(_thing(rng, cell % columns, cell // columns, width, height, columns, rows) for cell in cells)
        if not full or held_out(columns, rows, cells, [thing.name for thing in things]) != train:
            return things


def _side(rng: np.random.Generator, limits: SceneLimits) -> int:
    low, high = math.log(limits.min_side), math.log(limits.max_side + PATCH)
    return int(math.exp(rng.uniform(low, high))) // PATCH * PATCH


def _shaded(rng: np.random.Generator, rgb: tuple[int, int, int]) -> tuple[int, int, int]:
    red, green, blue = (max(0, min(255, channel + int(rng.integers(-_SHADE, _SHADE + 1)))) for channel in rgb)
    return red, green, blue


def _thing(rng: np.random.Generator, column: int, row: int, width: int, height: int, columns: int, rows: int) -> Thing:
    size = int(rng.integers(30, 49)) // 2 * 2
    across, down = width / columns, height / rows

    def centre(index: int, step: float) -> int:
        slack = (step - size) / 2 - _FRAME
        at = round((index + 0.5) * step + float(rng.uniform(-slack, slack)) if slack > 0 else (index + 0.5) * step)
        # Two patches that share a centre would both hold the thing, or neither.
        rest = at % PATCH
        return at + max(0, _CLEAR - rest) - max(0, rest - (PATCH - _CLEAR))

    names = SHAPES if rng.random() < 0.6 else DIGITS
    colour = str(rng.choice(list(OBJECT_COLOURS)))
    return Thing(str(rng.choice(names)), colour, centre(column, across), centre(row, down), size)


@lru_cache(maxsize=1024)
def _mask(name: str, size: int) -> NDArray[np.float32]:
    """How much of each pixel a thing covers: (size, size) in 0..1."""
    big = size * 4
    image = Image.new("L", (big, big), 0)
    pen = ImageDraw.Draw(image)
    if name in DIGITS:
        font = ImageFont.load_default(big * 1.25)
        pen.text((big / 2, big / 2), name, fill=255, font=font, anchor="mm")
    elif name in ("circle", "ring"):
        pen.ellipse((0, 0, big - 1, big - 1), fill=255)
        if name == "ring":
            inner = big * 0.26
            pen.ellipse((inner, inner, big - 1 - inner, big - 1 - inner), fill=0)
    elif name == "square":
        pen.rectangle((big * 0.06, big * 0.06, big * 0.94, big * 0.94), fill=255)
    elif name == "triangle":
        pen.polygon(((big / 2, 0), (big - 1, big * 0.95), (0, big * 0.95)), fill=255)
    elif name == "cross":
        pen.rectangle((big * 0.36, 0, big * 0.64, big), fill=255)
        pen.rectangle((0, big * 0.36, big, big * 0.64), fill=255)
    else:
        pen.polygon(_star(big), fill=255)
    small = image.resize((size, size), Image.Resampling.BOX)
    return np.asarray(small, np.float32) / np.float32(255)


def _star(size: int) -> list[tuple[float, float]]:
    turns = np.arange(10) * np.pi / 5
    radius = np.where(np.arange(10) % 2 == 0, size / 2, size / 5)
    return [(size / 2 + r * np.sin(t), size / 2 - r * np.cos(t)) for t, r in zip(turns, radius, strict=True)]
