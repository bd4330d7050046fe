"""How much of an image each layer computes: measured for one model, kept in a file, spent under a budget.

Sensitivity S_l(r) is how far the answer moves when layer l alone reads the taken keys and values of an image's rows
from the share r on, and all other layers the exact ones. A budget is a mean of the layers' shares. They may not rise
from layer to layer: a row that a layer computes has come through all layers before it.

Source: VLCache (arXiv 2512.12977), section on ratios by layer.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn, cast

from context.errors import ConfigError

FORMAT, VERSION = "stillframe-reuse-profile", 1
_REMEDY = "make it anew with 'stillframe eval --calibrate FILE'"


@dataclass(frozen=True, slots=True)
class ReuseProfile:
    """Sensitivities of one model's layers.

    Attributes:
        weights_sha256: of the model whose layers these are, in hex.
        grid: ratios at which was measured, ascending from 0 to 1.
        sensitivity: for each layer one figure for each ratio of the grid, 0 or more; the unit does not matter.
        step: by how much of an image a layer's share is raised at a time.
        questions: how many it was measured on.
        seed: of the questions.
    """

    weights_sha256: str
    grid: tuple[float, ...]
    sensitivity: tuple[tuple[float, ...], ...]
    step: float
    questions: int
    seed: int

    @property
    def layers(self) -> int:
        """Of the model."""
        return len(self.sensitivity)

    def ratios(self, budget: float) -> tuple[float, ...]:
        """The share of an image that each layer computes, not rising, with a mean of at most `budget`.

        Greedy: raises by `step` what lowers the sum of sensitivities most for each layer that has to be raised for it.

        Raises:
            ValueError: the budget is not within 0 and 1.
        """
        if not 0.0 <= budget <= 1.0:
            raise ValueError(f"a budget is a share from 0 to 1, not {budget}")
        most = round(1 / self.step)
        steps = [0] * self.layers
        left = int(budget * self.layers * most + 1e-6)
        table = [_falling(self.grid, layer, most) for layer in self.sensitivity]
        while left and (move := _best_move(table, steps, left, most)):
            first, last = move
            for layer in range(first, last + 1):
                steps[layer] += 1
            left -= last + 1 - first
        return tuple(count / most for count in steps)

    def check(self, weights_sha256: str, layers: int, file: Path) -> None:
        """Refuse a model that it was not measured on.

        Raises:
            ConfigError: it is of other weights.
        """
        if self.weights_sha256 != weights_sha256 or self.layers != layers:
            raise ConfigError(str(file), "weights_sha256", f"it was measured on another model; {_REMEDY}")


def _falling(grid: Sequence[float], measured: Sequence[float], most: int) -> list[float]:
    """Sensitivities at each step from 0 to `most`: the lower convex hull of what was measured.

    A layer whose sensitivity stays and falls late would gain nothing by a first step, and never get to the second; on
    the hull each step gains what the way as a whole does.
    """
    low = [min(measured[: at + 1]) for at in range(len(measured))]
    hull: list[tuple[float, float]] = []
    for point in zip(grid, low, strict=True):
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) >= _slope(hull[-1], point):
            hull.pop()
        hull.append(point)
    made: list[float] = []
    at = 0
    for step in range(most + 1):
        while at < len(hull) - 2 and step / most >= hull[at + 1][0]:
            at += 1
        made.append(hull[at][1] + (step / most - hull[at][0]) * _slope(hull[at], hull[at + 1]))
    return made


def _slope(start: tuple[float, float], end: tuple[float, float]) -> float:
    return (end[1] - start[1]) / (end[0] - start[0])


def _best_move(table: Sequence[Sequence[float]], steps: Sequence[int], left: int, most: int) -> tuple[int, int] | None:
    """The run of layers to raise by one step each: what it gains for each layer is the most. None when none may rise.

    A layer that is as high as the one before takes that one along. Equal gains go to the earliest and the shortest.
    """
    best: tuple[float, int, int] | None = None
    for last in range(len(steps)):
        first = last
        while first and steps[first - 1] == steps[last]:
            first -= 1
        count = last + 1 - first
        if count > left or steps[last] >= most:
            continue
        gain = sum(table[layer][steps[layer]] - table[layer][steps[layer] + 1] for layer in range(first, last + 1))
        if best is None or gain / count > best[0] + 1e-15:
            best = (gain / count, first, last)
    return None if best is None else (best[1], best[2])


def weights_sha256(folder: Path) -> str:
    """SHA-256 of a checkpoint's weights in hex; of several files over the digests of each, in their names' order.

    Raises:
        ConfigError: there are none, or they cannot be read.
    """
    digests: list[str] = []
    try:
        for path in sorted(folder.glob("*.safetensors")):
            with path.open("rb") as file:
                digests.append(hashlib.file_digest(file, "sha256").hexdigest())
    except OSError as error:
        raise ConfigError(str(folder), "", f"its weights cannot be read ({error.strerror})") from error
    if not digests:
        raise ConfigError(str(folder), "", "has no weights as safetensors, by which a profile knows its model")
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


def write_profile(file: Path, profile: ReuseProfile) -> None:
    """Write a profile: a reader finds the old file or the new one, whole.

    Raises:
        ConfigError: it cannot be written.
    """
    written = {
        "format": FORMAT,
        "version": VERSION,
        "weights_sha256": profile.weights_sha256,
        "grid": list(profile.grid),
        "sensitivity": [list(layer) for layer in profile.sensitivity],
        "step": profile.step,
        "questions": profile.questions,
        "seed": profile.seed,
    }
    part = file.with_name(f"{file.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("w") as out:
            out.write(json.dumps(written, indent=1) + "\n")
            out.flush()
            os.fsync(out.fileno())
        part.replace(file)
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise ConfigError(str(file), "", f"cannot be written ({error.strerror}); name another file") from error


def read_profile(file: Path) -> ReuseProfile:
    """Read a profile.

    Raises:
        ConfigError: there is none, or it is not one that this version writes; names the key.
    """
    try:
        written: object = json.loads(file.read_bytes())
    except OSError as error:
        raise ConfigError(str(file), "", f"cannot be read ({error.strerror}); {_REMEDY}") from error
    except ValueError as error:
        raise ConfigError(str(file), "", f"is not JSON; {_REMEDY}") from error
    if not isinstance(written, dict):
        raise ConfigError(str(file), "", f"is not a profile; {_REMEDY}")
    return _Reader(file, cast("dict[str, Any]", written)).read()


class _Reader:
    """Takes a document's fields one by one and says which one is wrong."""

    def __init__(self, file: Path, written: dict[str, Any]) -> None:
        self._file, self._written = file, written

    def read(self) -> ReuseProfile:
        known = {"format", "version", "weights_sha256", "grid", "sensitivity", "step", "questions", "seed"}
        if unknown := sorted(self._written.keys() - known):
            self._refuse(unknown[0], "is not known")
        if self._written.get("format") != FORMAT:
            self._refuse("format", f"must be {FORMAT!r}")
        if self._written.get("version") != VERSION:
            self._refuse("version", f"must be {VERSION}, the version that this Stillframe reads")
        weights = self._written.get("weights_sha256")
        if not isinstance(weights, str) or len(weights) != 64 or set(weights) - set("0123456789abcdef"):
            self._refuse("weights_sha256", "must be 64 hex digits")
        grid = self._numbers("grid", self._written.get("grid"))
        if len(grid) < 2 or grid[0] != 0 or grid[-1] != 1 or any(a >= b for a, b in pairwise(grid)):
            self._refuse("grid", "must be ratios that ascend from 0 to 1")
        return ReuseProfile(
            weights,
            grid,
            self._sensitivity(len(grid)),
            self._step(),
            self._whole("questions", 1),
            self._whole("seed", 0),
        )

    def _sensitivity(self, ratios: int) -> tuple[tuple[float, ...], ...]:
        layers: Any = self._written.get("sensitivity")
        if not isinstance(layers, list) or not layers:
            self._refuse("sensitivity", "must be a list with one list for each layer")
        read = [self._numbers(f"sensitivity[{at}]", layer) for at, layer in enumerate(cast("list[object]", layers))]
        for at, layer in enumerate(read):
            if len(layer) != ratios:
                self._refuse(f"sensitivity[{at}]", f"must have {ratios} figures, one for each ratio of grid")
        return tuple(read)

    def _step(self) -> float:
        step = self._numbers("step", [self._written.get("step")])[0]
        if not 0.001 <= step <= 1 or abs(1 / step - round(1 / step)) > 1e-6:
            self._refuse("step", "must be 1 divided by a whole number, from 0.001 to 1")
        return step

    def _numbers(self, key: str, given: object) -> tuple[float, ...]:
        made: list[float] = []
        for one in cast("list[object]", given) if isinstance(given, list) else [None]:
            # JSON as Python reads it knows NaN and Infinity.
            if isinstance(one, bool) or not isinstance(one, (int, float)) or not 0 <= one < float("inf"):
                self._refuse(key, "must be finite figures from 0 up")
            made.append(float(cast("float", one)))
        return tuple(made)

    def _whole(self, key: str, least: int) -> int:
        given = self._written.get(key)
        if isinstance(given, bool) or not isinstance(given, int) or given < least:
            self._refuse(key, f"must be a whole number from {least} up")
        return given

    def _refuse(self, key: str, reason: str) -> NoReturn:
        raise ConfigError(str(self._file), key, f"{reason}; {_REMEDY}")
