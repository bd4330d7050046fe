"""What an engine's reported prompts say about the estimates.

    reported = text * estimated text + visual * estimated visual tokens + constant

The constant stands for what a chat template writes by itself. A Kalman filter follows the three: what a report cannot
tell apart moves in proportion to how uncertain it is, so that images are told from text as soon as prompts differ in
their share of them, and a change of the model is followed within some dozens of reports.
"""

from __future__ import annotations

import math

from context.frozen import frozen

# Before any report: standard deviations of the two factors and of the constant, in tokens.
_PRIOR = (0.3, 0.5, 100.0)
# How much each may drift from one report to the next.
_DRIFT = (0.005, 0.005, 2.0)
# Of a report against the best factors: a share of the prompt and some tokens.
_NOISE_RATIO, _NOISE_TOKENS = 0.02, 8.0
# A report that is further off than this many standard deviations moves the factors as one that is no further, and makes
# nothing more certain: one such report does little, and several after one another are a change, which is followed.
_CLIP = 3.0
_FACTORS = (0.1, 10.0)
_CONSTANT = (0.0, 4096.0)


@frozen
class Factors:
    """What estimates are multiplied with."""

    text: float = 1.0
    visual: float = 1.0


class Calibration:
    """The factors of one model. Bounded: twelve numbers, however many reports there are."""

    def __init__(self) -> None:
        self._state = [1.0, 1.0, 0.0]
        self._spread = [[_PRIOR[row] ** 2 if row == column else 0.0 for column in range(3)] for row in range(3)]

    @property
    def factors(self) -> Factors:
        """As of now."""
        return Factors(self._state[0], self._state[1])

    @property
    def constant_tokens(self) -> float:
        """Tokens of each prompt beyond its messages and tools."""
        return self._state[2]

    def observe(self, text: int, visual: int, prompt_tokens: int, visual_tokens: int | None = None) -> None:
        """Take a report in.

        Args:
            text, visual: what was estimated, not corrected.
            prompt_tokens: what the engine counted.
            visual_tokens: how many of them were images; None where it does not say.
        """
        if prompt_tokens < 1 or text < 0 or visual < 0 or text + visual == 0:
            return
        for at in range(3):
            if self._spread[at][at] < _PRIOR[at] ** 2:
                self._spread[at][at] += _DRIFT[at] ** 2
        if visual_tokens is not None and 0 < visual_tokens <= prompt_tokens:
            self._update((0.0, float(visual), 0.0), float(visual_tokens))
            self._update((float(text), 0.0, 1.0), float(prompt_tokens - visual_tokens))
        else:
            self._update((float(text), float(visual), 1.0), float(prompt_tokens))

    def _update(self, given: tuple[float, float, float], reported: float) -> None:
        state, spread = self._state, self._spread
        along = [sum(row[at] * given[at] for at in range(3)) for row in spread]
        noise = (_NOISE_RATIO * reported + _NOISE_TOKENS) ** 2
        variance = sum(given[at] * along[at] for at in range(3)) + noise
        most = _CLIP * math.sqrt(variance)
        off = reported - sum(given[at] * state[at] for at in range(3))
        is_far = abs(off) > most
        off = max(-most, min(most, off))
        gain = [one / variance for one in along]
        for row in range(3):
            low, high = _CONSTANT if row == 2 else _FACTORS
            state[row] = max(low, min(high, state[row] + gain[row] * off))
            for column in range(0 if is_far else 3):
                spread[row][column] -= gain[row] * along[column]
