"""Sensitivities of a model's layers: one layer at a time reads the taken keys and values, all others the exact ones.

Nothing of the images is computed: their exact keys and values are there, and in the layer looked at those of the rows
from the ratio on are a donor's. What moves is the text's reading alone.
"""

# torch leaves much of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.reference.profile import ReuseProfile
from engine.reference.reuse import KeysValues, reuse, rope_table
from engine.reference.selection import Layout, head
from metrics.eval.answers import Full, contexts_of, full_recompute
from metrics.eval.base import Say
from metrics.eval.cases import Case, draw_cases
from metrics.eval.held import place
from metrics.eval.parallel import each
from metrics.eval.run import MOST_POSITIONS, Subject

GRID = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)
STEP = 0.01


def calibrate(subject: Subject, questions: int, seed: int, donors: Sequence[str], say: Say) -> ReuseProfile:
    """Measure a profile on questions that no evaluation asks. The same arguments give the same one.

    Args:
        subject: the model.
        questions: of each hop.
        seed: of the questions.
        donors: contexts that the images' KV is taken from; each counts the same.
        say: is told the stage it is at, and how far it is.
    """
    table = rope_table(subject.model.shape, MOST_POSITIONS)
    cases = list(draw_cases(subject.encoder, questions, (seed,), "validation"))

    def moved(case: Case) -> Tensor:
        full = full_recompute(subject.model, case, subject.encoder.end)
        contexts = contexts_of(subject.model, case, full, donors).values()
        taken = [place(case.prompt, len(full.prompt.ids), one, table) for one in contexts]
        return torch.stack([_moved(subject, case, full, one) for one in taken]).mean(0)

    made = each(cases, moved, lambda done: say("calibration", f"calibration: question {done} of {len(cases)}"))
    mean: list[list[float]] = torch.stack(made).mean(0).tolist()
    sensitivity = tuple(tuple(round(figure, 9) for figure in layer) for layer in mean)
    return ReuseProfile(subject.weights_sha256, GRID, sensitivity, STEP, 2 * questions, seed)


def _moved(subject: Subject, case: Case, full: Full, taken: KeysValues) -> Tensor:
    """[layers, ratios]: the reply's mean divergence from full recompute, in nats."""
    model, layers = subject.model, subject.model.shape.layers
    layout = Layout(len(full.prompt.ids), case.prompt.images, len(full.reply) - 1)
    text = head(layout, 0.0, layers)[0]
    # All rows from 1 on: nothing is taken.
    ratios = GRID[:-1]
    keys = full.cache.keys.repeat(1, layers * len(ratios), 1, 1, 1)
    values = full.cache.values.repeat(1, layers * len(ratios), 1, 1, 1)
    for at, ratio in enumerate(ratios):
        computed = torch.zeros(layout.tokens, dtype=torch.bool)
        computed[head(layout, ratio, 1)[0][0]] = True
        is_taken = ~computed
        for layer in range(layers):
            variant = layer * len(ratios) + at
            keys[layer, variant][:, is_taken] = taken.keys[layer, 0][:, is_taken]
            values[layer, variant][:, is_taken] = taken.values[layer, 0][:, is_taken]
    rows = [text.expand(keys.shape[1], -1)] * layers
    result = reuse(model, full.x, full.prompt.positions, KeysValues(keys, values), rows, last=len(full.reply))
    exact_log, log = full.logits.log_softmax(-1), result.logits.log_softmax(-1)
    moved = (exact_log.exp() * (exact_log - log)).sum(-1).mean(-1).clamp_min(0).view(layers, len(ratios))
    return torch.cat((moved, moved.new_zeros(layers, 1)), 1).double()
