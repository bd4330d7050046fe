"""A small evaluation of the demo model: what must be equal is, and a method costs what it says."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from context.errors import ConfigError
from engine.demo_model import bundled_folder
from engine.demo_model.questions import is_right
from engine.reference.profile import ReuseProfile
from engine.reference.reuse import continue_greedily, exact, reuse, rope_table
from engine.reference.selection import share
from metrics.eval import base
from metrics.eval.answers import Answers, contexts_of, full_recompute
from metrics.eval.base import Cell, Options, Row
from metrics.eval.calibrate import GRID, calibrate
from metrics.eval.cases import draw_cases
from metrics.eval.run import Subject, cells_of, evaluate, load_subject
from metrics.eval.variants import Maker, Setting
from tests.unit.reference.small import one_torch_thread

OPTIONS = Options(1, (3,), base.METHODS, base.DONORS, ("reordered",), (0.0, 0.3, 1.0), 1)
# All that is needed is the fourth layer, and so those before it.
SENSITIVITY = tuple((1.0 if layer == 3 else 0.0, 0.0) for layer in range(6))


def quiet(_stage: str, _text: str) -> None:
    """Say nothing."""


@pytest.fixture(scope="module")
def subject() -> Iterator[Subject]:
    with one_torch_thread():
        yield load_subject(bundled_folder())


@pytest.fixture(scope="module")
def profile(subject: Subject) -> ReuseProfile:
    return ReuseProfile(subject.weights_sha256, (0.0, 1.0), SENSITIVITY, 0.01, 1, 1)


@pytest.fixture(scope="module")
def rows(subject: Subject, profile: ReuseProfile) -> dict[Cell, Row]:
    made = evaluate(subject, OPTIONS, profile, quiet).rows
    return {Cell(row.method, row.ratio, row.donor): row for row in made}


def test_full_recompute_is_what_all_is_measured_against(rows: dict[Cell, Row]) -> None:
    row = rows[Cell(base.FULL)]
    assert (row.kl, row.logit_mse, row.top1_agreement, row.computed_token_share, row.speedup) == (0, 0, 1, 1, 1)
    assert row.greedy_match_tokens == row.reply_tokens > 1


@pytest.mark.parametrize("ratio", OPTIONS.ratios)
@pytest.mark.parametrize("donor", base.DONORS)
def test_the_same_context_or_every_row_gives_full_recomputes_answers(
    rows: dict[Cell, Row], donor: str, ratio: float
) -> None:
    row = rows[Cell(base.HEAD, ratio, donor)]
    is_same = donor == "same" or ratio == 1
    assert (row.logit_mse < 1e-8) == is_same
    # A small difference of logits may leave the probabilities as good as equal.
    assert row.reply_kl < 1e-6 or not is_same
    assert row.top1_agreement == 1 or not is_same


def test_a_prefix_cache_is_exact_and_saves_what_is_equal_from_the_start_on(rows: dict[Cell, Row]) -> None:
    for donor in base.DONORS:
        row = rows[Cell(base.PREFIX, None, donor)]
        assert row.reply_kl < 1e-6
        assert (row.computed_token_share < 0.02) == (donor == "same")
        # Behind other images the first one has nothing before it that differs.
        assert (row.computed_image_share == 1) == (donor not in ("same", "other_images"))


@pytest.mark.parametrize("ratio", OPTIONS.ratios)
def test_methods_that_need_no_look_compute_as_many_rows(rows: dict[Cell, Row], ratio: float) -> None:
    methods = (base.HEAD, base.SUFFIX, base.RANDOM, base.PER_LAYER, base.NO_ROTATION)
    shares = {rows[Cell(method, ratio, "reordered")].computed_image_share for method in methods}
    assert len({round(one, 9) for one in shares}) == 1
    assert ratio <= shares.pop() <= ratio + 0.02


def test_a_choice_in_the_second_layer_is_paid_for(rows: dict[Cell, Row]) -> None:
    head = rows[Cell(base.HEAD, 0.3, "reordered")]
    for method in (base.KV_DEVIATION, base.ATTENTION_DEVIATION):
        assert rows[Cell(method, 0.3, "reordered")].computed_image_share > head.computed_image_share + 0.1
        within = rows[Cell(method + base.WITHIN, 0.3, "reordered")].computed_image_share
        assert head.computed_image_share - 0.03 < within <= head.computed_image_share
        # The look alone is more than nothing.
        assert Cell(method + base.WITHIN, 0.0, "reordered") not in rows


def test_methods_that_differ_give_other_answers(rows: dict[Cell, Row]) -> None:
    moved = [rows[Cell(method, 0.3, "reordered")].reply_kl for method in base.METHODS[2:]]
    assert len(set(moved)) == len(moved)


def test_what_was_run_is_timed(rows: dict[Cell, Row]) -> None:
    assert all(row.ttft_seconds is not None and row.ttft_seconds > 0 for row in rows.values())
    assert all(row.speedup is not None for row in rows.values())


def test_the_same_options_give_the_same_figures(subject: Subject) -> None:
    few = Options(1, (3,), (base.FULL, base.HEAD, base.RANDOM), ("reordered",), ("reordered",), (0.3,), 0)
    first, again = (evaluate(subject, few, None, quiet) for _ in range(2))
    assert first == again
    assert {row.ttft_seconds for row in first.rows} == {None}


def test_full_and_prefix_have_no_ratio_and_other_methods_are_tried_on_the_main_donors() -> None:
    cells = cells_of(OPTIONS)
    assert len(set(cells)) == len(cells)
    assert cells[0] == Cell(base.FULL)
    assert {cell.donor for cell in cells if cell.method in (base.PREFIX, base.HEAD)} == set(base.DONORS)
    assert {cell.donor for cell in cells if cell.method == base.RANDOM} == {"reordered"}
    assert sum(cell.method == base.PREFIX for cell in cells) == len(base.DONORS)


def test_an_answer_is_what_the_model_would_write_on_its_own(subject: Subject) -> None:
    """Judged from one pass with full recompute's reply behind the prompt; here written token by token."""
    setting = Setting(subject.model, rope_table(subject.model.shape, 4096), None, 1)
    answers = Answers(setting, subject.tokenizer, subject.encoder.end)
    cell = Cell(base.HEAD, 0.0, "reordered")
    matches: list[bool] = []
    with torch.inference_mode():
        for case in draw_cases(subject.encoder, 3, (1,)):
            outcome = answers.of(case, [cell])[cell]
            full = full_recompute(subject.model, case, subject.encoder.end)
            variant = Maker(setting, case, contexts_of(subject.model, case, full, ["reordered"]), 0).make(cell)
            assert variant is not None
            x, positions = case.prompt.embedded(subject.model, full.features), case.prompt.positions
            result = reuse(subject.model, x, positions, variant.held, variant.rows)
            place = int(positions[0, -1]) + 1
            end = subject.encoder.end
            wrote = continue_greedily(subject.model, result.cache, result.logits[:, -1].argmax(-1), place, end, 12)[0]
            assert outcome.right == is_right(subject.tokenizer.decode(wrote), case.expected)
            equal = [a == b for a, b in zip(wrote, full.reply, strict=False)]
            assert outcome.match_tokens == (equal.index(False) if False in equal else len(equal))
            assert outcome.top1 == equal[0]
            logits = exact(subject.model, x, positions).logits
            assert outcome.logit_mse == pytest.approx(float((logits - result.logits).square().mean()), rel=1e-3)
            matches.append(tuple(wrote) == full.reply)
    assert set(matches) == {True, False}


def test_shares_are_of_the_prompts_tokens_too(rows: dict[Cell, Row], subject: Subject) -> None:
    row = rows[Cell(base.KV_DEVIATION, 0.0, "reordered")]
    (first, *_) = draw_cases(subject.encoder, 1, (3,))
    layout = Maker(Setting(subject.model, rope_table(subject.model.shape, 8), None, 1), first, {}, 0).layout
    assert row.computed_image_share == pytest.approx(share(subject.model.shape, layout, 0), abs=1e-6)
    text = 1 - row.image_tokens / (row.image_tokens + 100)
    assert text < row.computed_token_share < 1


def test_a_method_that_needs_a_profile_says_so(subject: Subject) -> None:
    options = Options(1, (1,), (base.PER_LAYER,), ("reordered",), ("reordered",), (0.1,), 0)
    with pytest.raises(ConfigError, match="needs one") as raised:
        evaluate(subject, options, None, quiet)
    assert raised.value.key == "--profile"


def test_layers_are_measured_where_what_is_taken_differs(subject: Subject) -> None:
    made = calibrate(subject, 1, 2, ("reordered",), quiet)
    assert made.weights_sha256 == subject.weights_sha256
    assert (made.layers, made.grid, made.questions, made.seed) == (6, GRID, 2, 2)
    # The first layer's keys and values depend on the token alone; what all rows give is exact.
    assert max(made.sensitivity[0]) < 1e-6
    assert {layer[-1] for layer in made.sensitivity} == {0}
    assert max(layer[0] for layer in made.sensitivity) > 1e-3
    same = calibrate(subject, 1, 2, ("same",), quiet)
    assert max(max(layer) for layer in same.sensitivity) < 1e-6
