"""What each layer computes of an image under a budget, and how a request with such shares is planned."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.reference.profile import ReuseProfile
from engine.vllm.image_kv.jumps import jump_over
from engine.vllm.image_kv.layers import LayerProfile, LayerShares
from engine.vllm.image_kv.messages import Plan, Report
from engine.vllm.image_kv.planner import Planner
from engine.vllm.image_kv.reporting import Reporter
from tests.unit.engine.image_kv.planned import (
    BLOCK_TOKENS,
    BLOCKS,
    FIRST,
    PROMPT,
    TOKENS,
    Request,
    nothing_cached,
)

LAYERS = 4


def profile(*weights: float) -> LayerProfile:
    sensitivity = tuple((weight, weight * 0.1, 0.0) for weight in weights)
    return LayerProfile(ReuseProfile("0" * 64, (0.0, 0.5, 1.0), sensitivity, 0.05, 1, 1))


FALLING = profile(4, 3, 2, 1)


@given(st.floats(0, 1), st.integers(1, 5000))
def test_all_layers_together_compute_what_the_ratio_alone_would(ratio: float, tokens: int) -> None:
    rows = FALLING.at(ratio).rows(tokens)
    alone = jump_over(0, tokens, ratio, tokens + 2)
    assert sum(rows) == LAYERS * (tokens if alone is None else alone.start)
    assert all(tokens >= one >= other >= 0 for one, other in pairwise(rows))


def test_the_layers_that_need_it_more_compute_more() -> None:
    assert FALLING.at(0.25).rows(20) == (10, 10, 0, 0)
    assert FALLING.at(0.75).rows(20) == (20, 20, 10, 10)


@pytest.mark.parametrize("prompt", [FIRST + TOKENS + 5, FIRST + TOKENS])
def test_shares_that_are_the_same_in_all_layers_jump_as_one_ratio(prompt: int) -> None:
    """Also in an image whose last token ends the prompt and is computed in any case."""
    shares = LayerShares(0.25, (0.25,) * LAYERS, "p")
    jump, alone = shares.jump_over(FIRST, TOKENS, prompt), jump_over(FIRST, TOKENS, 0.25, prompt)
    assert jump is not None
    assert alone is not None
    assert (jump.start, jump.end, set(jump.rows)) == (alone.start, alone.end, {5})


def test_where_the_first_layer_computes_all_nothing_is_passed_over_and_rows_are_dropped_all_the_same() -> None:
    jump = FALLING.at(0.75).jump_over(FIRST, TOKENS, PROMPT)
    assert jump is not None
    assert (jump.start, jump.end, jump.rows) == (FIRST + TOKENS, FIRST + TOKENS, (20, 20, 10, 10))
    assert FALLING.at(0.999).jump_over(FIRST, TOKENS, PROMPT) is None


def test_profiles_of_other_figures_have_other_names() -> None:
    assert FALLING.at(0.25).profile == profile(4, 3, 2, 1).at(0.75).profile != profile(4, 3, 2, 1.5).at(0.25).profile


@dataclass
class ProfileRequest(Request):
    """One that wants its ratio as a mean over the layers."""

    @property
    def kv_transfer_params(self) -> Any:
        return {"stillframe": {"mode": "position_independent", "ratio": self.ratio, "profile": True}}


def admitted(request: Request, known: LayerProfile | None = FALLING) -> Planner:
    """All that it asks for is there."""
    planner = Planner(BLOCK_TOKENS, None, 1, Reporter(), profile=known)
    planner.arrive(request, nothing_cached)
    planner.told(Report({ask.hold: (1, 0) for ask in planner.plan({}, lambda _: BLOCKS).asks}))
    planner.admit(request, nothing_cached)
    assert planner.reach(request, 0) == 0
    return planner


def step(planner: Planner, request: Request, count: int) -> Plan:
    """A step that computes so many tokens."""
    moved = planner.jump([request])
    plan = planner.plan({request.request_id: count}, lambda _: BLOCKS)
    planner.settle(moved)
    request.num_computed_tokens += count
    return plan


def test_rows_that_some_layers_load_come_with_the_step_that_computes_them_and_the_rest_with_the_jump() -> None:
    request = ProfileRequest("r", ratio=0.25)
    planner = admitted(request)
    assert planner.cut(request, 0, PROMPT) == FIRST + 10
    # In two chunks, of which the first ends within the image.
    (first,) = step(planner, request, FIRST + 3).loads
    assert (first.row, first.span.count, first.rows, first.position) == (0, 3, (10, 10, 0, 0), FIRST)
    (second,) = step(planner, request, 7).loads
    assert (second.row, second.span.count, second.rows) == (3, 7, (10, 10, 0, 0))
    (jump,) = step(planner, request, 20).loads
    assert (jump.row, jump.span.count, jump.rows) == (10, 10, ())
    assert {load.hold for load in (first, second, jump)} == {first.hold}


def test_rows_that_all_layers_compute_are_not_loaded() -> None:
    request = ProfileRequest("r", ratio=0.75)
    planner = admitted(request)
    assert step(planner, request, FIRST + 10).loads == ()
    # A step ends with the image, though nothing of it is passed over: what is dropped are the last rows of a step.
    assert planner.cut(request, FIRST + 10, PROMPT) == 10
    (load,) = step(planner, request, 10).loads
    assert (load.row, load.span.count) == (10, 10)
    assert step(planner, request, 20).loads == ()


def test_nothing_behind_a_row_that_a_layer_loaded_is_kept() -> None:
    request = ProfileRequest("r", ratio=0.75, images=(("image", 4), ("other", 28)))
    planner = Planner(BLOCK_TOKENS, None, 1, Reporter(), profile=FALLING)
    planner.arrive(request, nothing_cached)
    one, two = (ask.hold for ask in planner.plan({}, lambda _: BLOCKS).asks)
    planner.told(Report({one: (1, 0), two: (0, 1)}))
    planner.admit(request, nothing_cached)
    assert planner.reach(request, 0) == 0
    assert [load.hold for load in step(planner, request, 24).loads] == [one]
    assert step(planner, request, 26).captures == ()


def test_an_engine_without_a_profile_has_all_layers_compute_the_same() -> None:
    request = ProfileRequest("r", ratio=0.25)
    planner = admitted(request, None)
    assert planner.cut(request, 0, PROMPT) == FIRST + 5
    assert step(planner, request, FIRST + 5).loads == ()
    plain = Request("r", ratio=0.25)
    admitted(plain)
    by_layer = ProfileRequest("r", ratio=0.25)
    admitted(by_layer)
    # And in hashes of its own.
    assert request.block_hashes == plain.block_hashes != by_layer.block_hashes
