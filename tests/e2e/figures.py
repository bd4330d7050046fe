"""Whether a served model answers as its card says, told from a small sample."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

# A sound model falls below in one of some ten thousand runs.
_DEVIATIONS = 4


def below_the_card(found: Mapping[str, Mapping[str, Any]], card: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What is worse than chance allows: groups, and `all` for all questions together, where a small loss shows.

    Both are groups with their figures, as `engine.demo_model.evaluate.summary` gives them.
    """
    assert found.keys() == card.keys()
    worse = [
        name
        for name, figures in found.items()
        if figures["accuracy"] < _least(card[name]["accuracy"], figures["questions"])
    ]
    asked = sum(figures["questions"] for figures in found.values())
    right = sum(figures["accuracy"] * figures["questions"] for figures in found.values())
    told = sum(card[name]["accuracy"] * figures["questions"] for name, figures in found.items())
    return worse + ["all"] * (right / asked < _least(told / asked, asked))


def _least(told: float, questions: int) -> float:
    return told - _DEVIATIONS * math.sqrt(max(told * (1 - told), 0.01) / questions)
