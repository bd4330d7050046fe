"""Which rows each method computes, and what a choice costs."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from engine.reference import selection
from engine.reference.qwen2_5_vl import Model
from engine.reference.reuse import KeysValues, exact, reuse
from engine.reference.selection import AttentionDeviation, KvDeviation, Layout
from tests.unit.reference.small import SHAPE, SmallPrompt, one_torch_thread, small_model, small_prompt

# Text 0-4, an image 5-14, text 15-17, an image 18-37, text 38-40.
LAYOUT = Layout(41, ((5, 15), (18, 38)))
TEXT = [*range(5), *range(15, 18), *range(38, 41)]
MIXED = (5, (2, 5, 1), 3, (4, 5, 2), 3)


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with torch.inference_mode(), one_torch_thread():
        yield small_model()


def images(rows: Tensor) -> list[int]:
    """The rows of images among those computed."""
    found: list[int] = rows[0].tolist()
    assert found == sorted(found)
    assert set(TEXT) <= set(found)
    return [row for row in found if row not in TEXT]


@pytest.mark.parametrize(
    ("ratio", "head", "suffix"),
    [
        (0.0, [], []),
        (0.05, [5, 18], [14, 37]),
        (0.2, [5, 6, 18, 19, 20, 21], [13, 14, 34, 35, 36, 37]),
        (1.0, [*range(5, 15), *range(18, 38)], [*range(5, 15), *range(18, 38)]),
    ],
)
def test_the_first_and_the_last_rows_of_each_image(ratio: float, head: list[int], suffix: list[int]) -> None:
    assert [images(rows) for rows in selection.head(LAYOUT, ratio, 2)] == [head, head]
    assert [images(rows) for rows in selection.suffix(LAYOUT, ratio, 2)] == [suffix, suffix]


def test_rows_by_chance_are_as_many_of_each_image_and_the_same_for_a_seed() -> None:
    chosen = [images(selection.scattered(LAYOUT, 0.2, 2, seed)[0]) for seed in (1, 1, 2)]
    assert chosen[0] == chosen[1] != chosen[2]
    for rows in chosen:
        assert sum(row < 15 for row in rows) == 2
        assert len(rows) == 6


@pytest.mark.parametrize(
    ("ratio", "ratios"),
    [(0.2, (0.4, 0.2, 0.15, 0.05)), (0.05, (0.1, 0.1, 0.0, 0.0)), (0.5, (1.0, 1.0, 0.0, 0.0)), (1.0, (1.0,) * 4)],
)
def test_ratios_by_layer_compute_as_many_rows_in_all_as_one_ratio(ratio: float, ratios: tuple[float, ...]) -> None:
    rows = selection.by_layer(LAYOUT, ratio, ratios)
    counts = [len(images(layer)) for layer in rows]
    assert sum(counts) == 4 * len(images(selection.head(LAYOUT, ratio, 1)[0]))
    assert counts == sorted(counts, reverse=True)
    for layer, share in zip(rows, ratios, strict=True):
        assert abs(sum(row < 15 for row in images(layer)) - share * 10) <= 1
        assert images(layer) == [row for row in images(layer) if row - (5 if row < 15 else 18) < len(images(layer))]


def spoiled(held: KeysValues, layer: int, rows: Sequence[int]) -> KeysValues:
    values = held.values.clone()
    values[layer, :, :, rows] += 1
    return KeysValues(held.keys, values)


def test_the_rows_whose_keys_and_values_changed_most_go_on(model: Model) -> None:
    prompt = small_prompt(1, MIXED)
    held = spoiled(exact(model, prompt.x, prompt.positions).cache, 1, [7, 20, 21])
    seen = _chosen(model, prompt, held, KvDeviation(prompt.layout, 3))
    assert images(seen) == [7, 20, 21]


def test_rows_that_the_text_does_not_look_at_are_not_chosen_by_attention(model: Model) -> None:
    prompt = small_prompt(1, MIXED)
    exactly = exact(model, prompt.x, prompt.positions).cache
    keys = exactly.keys.clone()
    # Values are not in the weights, and a key of layer three is not looked at when the choice is made.
    keys[1, :, :, 22] += 2
    keys[2, :, :, 9] += 50
    held = spoiled(KeysValues(keys, exactly.values), 1, [30])
    assert images(_chosen(model, prompt, held, AttentionDeviation(prompt.layout, 30)))[:2] == [5, 6]
    assert images(_chosen(model, prompt, held, AttentionDeviation(prompt.layout, 1))) == [22]


def test_a_choice_does_not_look_at_the_reply_that_is_judged(model: Model) -> None:
    prompt = small_prompt(1, MIXED)
    longer = small_prompt(1, (*MIXED, 4))
    held = exact(model, longer.x, longer.positions).cache
    moved = KeysValues(
        held.keys + 0.3 * torch.randn(held.keys.shape, generator=torch.Generator().manual_seed(1)), held.values
    )
    short = KeysValues(moved.keys[..., :41, :], moved.values[..., :41, :])
    with_reply = replace(longer.layout, reply=4)
    for rows in (1, 5, 12):
        alone = _chosen(model, prompt, short, AttentionDeviation(prompt.layout, rows))
        behind = _chosen(model, longer, moved, AttentionDeviation(with_reply, rows))
        assert images(alone) == [row for row in images(behind) if row < 41]


def _chosen(model: Model, prompt: SmallPrompt, held: KeysValues, choose: KvDeviation | AttentionDeviation) -> Tensor:
    seen: list[Tensor] = []

    def watched(layer: selection.SecondLayer) -> Tensor:
        seen.append(choose(layer))
        return seen[0]

    rows = selection.every_row(prompt.layout, SHAPE.layers)
    reuse(model, prompt.x, prompt.positions, held, rows, watched)
    return seen[0]


@pytest.mark.parametrize("ratio", [0.3, 0.5, 0.9])
def test_a_choice_within_a_budget_costs_no_more_than_rows_that_need_none(ratio: float) -> None:
    rows = selection.rows_within(SHAPE, LAYOUT, ratio)
    assert rows is not None
    budget = sum(LAYOUT.computed(ratio)) / LAYOUT.image_tokens
    assert selection.share(SHAPE, LAYOUT, rows) <= budget + 1e-9 < selection.share(SHAPE, LAYOUT, rows + 1)


def test_a_choice_that_alone_is_more_than_the_budget_is_not_possible() -> None:
    assert selection.share(SHAPE, LAYOUT, 0) > 0.25
    assert selection.rows_within(SHAPE, LAYOUT, 0.2) is None
    assert selection.share(SHAPE, LAYOUT, LAYOUT.image_tokens) == pytest.approx(1)
