"""Times to the first token of the plain PyTorch model, one prompt at a time, the encoder warm.

Of reuse, turning the keys and putting them in place is in the time; reading them from somewhere is not.
"""

# torch leaves much of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import time
from collections.abc import Sequence

from engine.reference.reuse import exact, reuse
from metrics.eval import base
from metrics.eval.answers import contexts_of, full_recompute
from metrics.eval.base import Cell, Say
from metrics.eval.cases import Case
from metrics.eval.variants import Maker, Setting

_ROUNDS = 3


def first_token_seconds(
    setting: Setting, cases: Sequence[Case], cells: Sequence[Cell], end: int, say: Say
) -> dict[Cell, float]:
    """Seconds to the first token by cell: the best of a few rounds for each case, a mean over the cases.

    A cell that is not possible for one of the cases is missing. Where the KV comes from changes what is read and not
    how long that takes, but for `prefix`: other methods are timed with one donor. Rounds take turns between the cells,
    so that a machine that gets slower on the way is slower for all.
    """
    timed = dict.fromkeys(cells, cells[0])
    for cell in reversed(cells):
        timed[Cell(cell.method, cell.ratio)] = cell
    stands_for = {cell: cell if cell.method == base.PREFIX else timed[Cell(cell.method, cell.ratio)] for cell in cells}
    best: dict[Cell, list[float]] = {cell: [] for cell in dict.fromkeys(stands_for.values())}
    for number, case in enumerate(cases):
        say("timing", f"timing {number + 1} of {len(cases)}")
        clock = _Clock(setting, case, list(best), end)
        for _ in range(_ROUNDS):
            clock.round()
        for cell, seconds in clock.best.items():
            best[cell].append(seconds)
    return {cell: sum(best[of]) / len(cases) for cell, of in stands_for.items() if len(best[of]) == len(cases)}


class _Clock:
    """Times the cells on one case. `best` is the shortest time of each that is possible."""

    def __init__(self, setting: Setting, case: Case, cells: Sequence[Cell], end: int) -> None:
        self._setting, self._case, self._cells = setting, case, cells
        full = full_recompute(setting.model, case, end)
        self._x = full.x[: len(case.prompt.ids)]
        self._contexts = contexts_of(setting.model, case, full, {cell.donor for cell in cells if cell.donor})
        self.best: dict[Cell, float] = {}

    def round(self) -> None:
        """Each cell once."""
        for cell in self._cells:
            began = time.perf_counter()
            if self._run(cell):
                self.best[cell] = min(self.best.get(cell, float("inf")), time.perf_counter() - began)

    def _run(self, cell: Cell) -> bool:
        model, positions = self._setting.model, self._case.prompt.positions
        if cell.method == base.FULL:
            exact(model, self._x, positions)
            return True
        variant = Maker(self._setting, self._case, self._contexts, 0).make(cell)
        if variant is None:
            return False
        reuse(model, self._x, positions, variant.held, variant.rows, variant.choose)
        return True
