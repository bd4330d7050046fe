"""Reports correct the estimates: text and images apart, whatever a template adds, and no report breaks them."""

from __future__ import annotations

import random

import pytest

from context.tokens.calibration import Calibration


def _session(turns: int, text: float, visual: float, constant: int, *, told: bool = False) -> Calibration:
    """A session of a GUI agent under a model for which estimates are wrong by these factors."""
    chosen, calibration = random.Random(3), Calibration()  # noqa: S311
    texts, images = 400, 0
    for _ in range(turns):
        texts += chosen.randint(30, 400)
        images += chosen.choice((0, 1, 1)) * 1300
        seen = round(visual * images)
        prompt = round(text * texts) + seen + constant
        calibration.observe(texts, images, prompt, seen if told else None)
    return calibration


def test_without_a_report_nothing_is_corrected() -> None:
    assert (Calibration().factors.text, Calibration().factors.visual) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("text", "visual", "constant"), [(1.0, 1.0, 0), (1.3, 0.5, 40), (0.8, 1.6, 150), (1.1, 4.0, 20)]
)
@pytest.mark.parametrize("told", [False, True])
def test_factors_are_found_from_one_session(text: float, visual: float, constant: int, told: bool) -> None:
    calibration = _session(25, text, visual, constant, told=told)
    # Text and images grow side by side: unless the engine tells them apart, their sum is known better than they are.
    assert calibration.factors.visual == pytest.approx(visual, rel=0.002 if told else 0.04)
    assert calibration.factors.text == pytest.approx(text, rel=0.01 if told else 0.2)
    prompt = calibration.factors.text * 5000 + calibration.factors.visual * 20_000 + calibration.constant_tokens
    assert prompt == pytest.approx(text * 5000 + visual * 20_000 + constant, rel=0.01)


def test_what_a_template_adds_to_a_short_prompt_is_no_factor() -> None:
    calibration = Calibration()
    for _ in range(20):
        calibration.observe(8, 0, 33)
    assert calibration.factors.text == pytest.approx(1.0, abs=0.02)
    assert calibration.constant_tokens == pytest.approx(25, abs=6)


def test_a_model_that_is_exchanged_is_followed() -> None:
    calibration = _session(200, 1.0, 1.0, 10)
    for turn in range(60):
        calibration.observe(2000 + 50 * turn, 0, round(1.4 * (2000 + 50 * turn)) + 10)
    assert calibration.factors.text == pytest.approx(1.4, rel=0.05)


def test_one_wrong_report_among_many_moves_little() -> None:
    calibration = _session(50, 1.0, 1.0, 10)
    before = calibration.factors.text
    calibration.observe(10_000, 10_000, 2_000_000)
    assert calibration.factors.text == pytest.approx(before, rel=0.1)


def test_reports_that_say_nothing_are_left_out_and_nothing_runs_away() -> None:
    calibration = Calibration()
    for report in ((0, 0, 10), (10, 0, 0), (10, 0, -5), (-1, 0, 5)):
        calibration.observe(*report)
    assert calibration.factors == Calibration().factors
    for _ in range(500):
        calibration.observe(100_000, 1, 1)
    assert calibration.factors.text == pytest.approx(0.1)
    assert 0.1 <= calibration.factors.visual <= 10
