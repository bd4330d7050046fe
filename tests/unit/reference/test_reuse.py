"""A prefill that takes keys and values from elsewhere, against one that computes them."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from engine.reference import selection
from engine.reference.qwen2_5_vl import Model, text_rotation
from engine.reference.reuse import KeysValues, continue_greedily, exact, reuse, rope_table
from engine.vllm.image_kv.rotation import rotate, shift_between
from tests.unit.reference.small import SHAPE, SmallPrompt, nothing_held, one_torch_thread, small_model, small_prompt

# Text, an image of 12 tokens, text, one of 20, text.
PARTS = (5, (3, 4, 1), 3, (4, 5, 2), 6)
NEAR = 2e-4


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with torch.inference_mode(), one_torch_thread():
        yield small_model()


@pytest.fixture
def prompt() -> SmallPrompt:
    return small_prompt(1, PARTS)


def differs(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


def test_a_prefill_that_computes_every_row_is_the_full_prefill(model: Model, prompt: SmallPrompt) -> None:
    rows = selection.every_row(prompt.layout, SHAPE.layers)
    full = exact(model, prompt.x, prompt.positions, prompt.layout.tokens)
    got = reuse(model, prompt.x, prompt.positions, nothing_held(prompt), rows, last=prompt.layout.tokens)
    assert float(full.logits.std()) > 1
    assert differs(got.logits, full.logits) < NEAR
    assert differs(got.cache.keys, full.cache.keys) < NEAR
    assert differs(got.cache.values, full.cache.values) < NEAR


def test_the_full_prefill_is_what_the_model_computes_without_a_cache(model: Model, prompt: SmallPrompt) -> None:
    hidden = model.decode(prompt.x[None], prompt.positions[:, None])
    assert differs(exact(model, prompt.x, prompt.positions, 4).logits, model.logits(hidden)[:, -4:]) < NEAR


@pytest.mark.parametrize("ratio", [0.0, 0.02, 0.3, 0.5, 1.0])
def test_what_is_taken_from_the_same_context_changes_nothing(model: Model, prompt: SmallPrompt, ratio: float) -> None:
    full = exact(model, prompt.x, prompt.positions, 6)
    ways = [
        selection.head(prompt.layout, ratio, SHAPE.layers),
        selection.suffix(prompt.layout, ratio, SHAPE.layers),
        selection.scattered(prompt.layout, ratio, SHAPE.layers, 3),
        selection.by_layer(prompt.layout, ratio, (ratio, ratio, ratio / 2, 0.0)),
    ]
    for rows in ways:
        got = reuse(model, prompt.x, prompt.positions, full.cache, rows, last=6)
        assert differs(got.logits, full.logits) < NEAR


def test_several_variants_at_once_give_each_what_it_gets_alone(model: Model, prompt: SmallPrompt) -> None:
    taken = [exact(model, other.x, other.positions).cache for other in (small_prompt(2, PARTS), small_prompt(3, PARTS))]
    ways = [selection.head(prompt.layout, 0.3, SHAPE.layers), selection.suffix(prompt.layout, 0.3, SHAPE.layers)]
    held = KeysValues(torch.cat([one.keys for one in taken], 1), torch.cat([one.values for one in taken], 1))
    together = reuse(model, prompt.x, prompt.positions, held, [torch.cat(layer) for layer in zip(*ways, strict=True)])
    for at, (one, rows) in enumerate(zip(taken, ways, strict=True)):
        alone = reuse(model, prompt.x, prompt.positions, one, rows)
        assert differs(together.logits[at], alone.logits[0]) < NEAR


@pytest.mark.parametrize(
    "ratios", [(0.5, 0.5, 0.5, 0.5), (0.9, 0.5, 0.2, 0.0), (1.0, 1.0, 0.1, 0.1), (0.4, 0.0, 0.0, 0.0)]
)
def test_rows_that_are_dropped_on_the_way_read_as_taken_from_there_on(
    model: Model, prompt: SmallPrompt, ratios: tuple[float, ...]
) -> None:
    other = small_prompt(2, PARTS)
    taken = exact(model, other.x, other.positions).cache
    rows = selection.by_layer(prompt.layout, sum(ratios) / len(ratios), ratios)
    got = reuse(model, prompt.x, prompt.positions, taken, rows, last=6)
    assert differs(got.logits[0], _slowly(model, prompt, taken, rows)[-6:]) < NEAR
    assert differs(got.logits, exact(model, prompt.x, prompt.positions, 6).logits) > 0.01


def _slowly(model: Model, prompt: SmallPrompt, taken: KeysValues, rows: list[Tensor]) -> Tensor:
    """All rows through all layers; where one is not computed, its keys and values are overwritten."""
    cos, sin = text_rotation(prompt.positions[:, None], SHAPE, torch.float32)
    tokens = prompt.layout.tokens
    mask = torch.full((tokens, tokens), float("-inf")).triu(1)[None, None]
    x = prompt.x[None]
    for layer, block in enumerate(model.blocks):
        q, k, v = block.project(x, cos, sin)  # type: ignore[operator]
        lent = torch.ones(tokens, dtype=torch.bool)
        lent[rows[layer][0]] = False
        k[:, :, lent], v[:, :, lent] = taken.keys[layer][:, :, lent], taken.values[layer][:, :, lent]
        x = block.finish(x, q, k, v, mask)  # type: ignore[operator]
    return model.logits(model.norm(x))[0]


def test_keys_of_an_image_that_moved_are_those_of_its_new_place_in_the_first_layer(model: Model) -> None:
    # There keys and values depend on the token alone, so that a moved image's can be had exactly.
    old, new = small_prompt(1, (3, (4, 5, 2), 2)), small_prompt(2, (17, (4, 5, 2), 2))
    donor, full = (exact(model, one.x, one.positions).cache for one in (old, new))
    (first, end), (to_first, to_end) = old.layout.images[0], new.layout.images[0]
    was, now = old.positions[:, first:end], new.positions[:, to_first:to_end]
    delta = shift_between(was, now)
    assert delta == 14
    there, here = donor.keys[0, :, :, first:end], full.keys[0, :, :, to_first:to_end]
    turned = rotate(there.transpose(-3, -2), was, delta, rope_table(SHAPE, 64)).transpose(-3, -2)
    assert differs(turned, here) < NEAR
    assert differs(there, here) > 0.1


@pytest.mark.parametrize(("row", "is_read"), [(5 + 11, True), (5, False)])
def test_a_spoiled_key_shows_where_it_is_taken_and_nowhere_else(
    model: Model, prompt: SmallPrompt, row: int, is_read: bool
) -> None:
    full = exact(model, prompt.x, prompt.positions)
    keys = full.cache.keys.clone()
    keys[2, 0, :, row] += 1
    rows = selection.head(prompt.layout, 0.3, SHAPE.layers)
    got = reuse(model, prompt.x, prompt.positions, KeysValues(keys, full.cache.values), rows)
    assert (differs(got.logits, full.logits) > 0.01) == is_read


def test_nothing_that_was_given_is_changed(model: Model, prompt: SmallPrompt) -> None:
    held = exact(model, prompt.x, prompt.positions).cache
    before = held.keys.clone(), prompt.x.clone()
    other = small_prompt(2, PARTS)
    reuse(model, other.x, other.positions, held, selection.head(other.layout, 0.3, SHAPE.layers))
    assert torch.equal(held.keys, before[0])
    assert torch.equal(prompt.x, before[1])


def test_rows_that_cannot_be_are_refused(model: Model, prompt: SmallPrompt) -> None:
    few, more = selection.head(prompt.layout, 0.1, 1), selection.head(prompt.layout, 0.5, 1)
    for rows, said in (
        ([*few, *more * 3], "layer before has not"),
        (few * 3, "the model has 4"),
        ([few[0][:, :-1]] * 4, "last tokens"),
    ):
        with pytest.raises(ValueError, match=said):
            reuse(model, prompt.x, prompt.positions, nothing_held(prompt), rows)


def test_a_reply_is_written_as_if_each_token_were_prefilled(model: Model) -> None:
    seen: set[int] = set()
    for seed in range(8):
        prompt = small_prompt(seed, PARTS)
        wanted = _one_by_one(model, prompt, 5)
        full = exact(model, prompt.x, prompt.positions)
        first, place = full.logits[:, -1].argmax(-1), int(prompt.positions[0, -1]) + 1
        assert continue_greedily(model, full.cache, first, place, -1, 5) == [wanted]
        for end in wanted:
            cut = wanted[: wanted.index(end) + 1]
            assert continue_greedily(model, full.cache, first, place, end, 5) == [cut]
        seen |= set(wanted[1:]) - {wanted[0]}
    assert len(seen) > 3


def _one_by_one(model: Model, prompt: SmallPrompt, count: int) -> list[int]:
    x, positions = prompt.x, prompt.positions
    written: list[int] = []
    for _ in range(count):
        token = exact(model, x, positions).logits[0, -1].argmax()
        written.append(int(token))
        x = torch.cat((x, model.embed(token[None])))
        positions = torch.cat((positions, positions[:, -1:] + 1), 1)
    return written
