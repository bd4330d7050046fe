"""Chunks and jumps: every token is computed once or loaded once, and never one that was to be the other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.vllm.image_kv.jumps import Jump, Stretch, Walk, chunk, jump_over, landing, walk


@pytest.mark.parametrize(
    ("tokens", "ratio", "loaded"),
    [
        (1024, 0.05, (52, 1024)),
        (20, 0.05, (1, 20)),
        (1, 0.05, None),
        (64, 0.0, (0, 64)),
        (64, 1.0, None),
        (64, 0.99, None),
        (3, 0.5, (2, 3)),
    ],
)
def test_the_first_share_of_an_image_is_computed(tokens: int, ratio: float, loaded: tuple[int, int] | None) -> None:
    found = jump_over(100, tokens, ratio, 2000)
    assert found == (None if loaded is None else Jump(100, 100 + loaded[0], 100 + loaded[1]))


def test_the_last_token_of_a_prompt_is_computed() -> None:
    assert jump_over(10, 5, 0.0, 15) == Jump(10, 10, 14)
    assert jump_over(10, 1, 0.0, 11) is None


def test_images_side_by_side_are_passed_over_together_and_a_hit_within_one_is_gone_on_from() -> None:
    jumps = [Jump(4, 4, 10), Jump(10, 10, 20), Jump(20, 22, 30)]
    assert landing(jumps, 4) == (20, [Jump(4, 4, 10), Jump(10, 10, 20)])
    assert landing(jumps, 7) == (20, [Jump(4, 7, 10), Jump(10, 10, 20)])
    assert landing(jumps, 20) == (20, [])
    assert chunk(jumps, 0, 100) == 4
    assert chunk(jumps, 20, 100) == 2
    assert chunk(jumps, 0, 3) == 3
    assert chunk(jumps, 30, 100) == 100


def test_a_step_with_room_goes_on_behind_as_many_jumps_as_fit() -> None:
    jumps = [Jump(4, 5, 10), Jump(12, 12, 20), Jump(20, 20, 30), Jump(40, 41, 50)]
    passed = (Stretch(0, 5), Stretch(10, 12), Stretch(30, 41))
    assert walk(jumps, 0, 18, 3) == Walk(50, tuple(jumps), passed)
    assert walk(jumps, 0, 17, 3) == Walk(30, tuple(jumps[:3]), passed[:2])
    assert walk(jumps, 0, 18, 1) == Walk(10, tuple(jumps[:1]), passed[:1])
    assert walk(jumps, 0) == Walk(0)
    assert walk(jumps, 7, 100, 1) == Walk(30, (Jump(4, 7, 10), *jumps[1:3]), (Stretch(10, 12),))
    assert walk(jumps, 50, 100, 9) == Walk(50)


def test_rows_that_only_some_layers_load_end_a_stretch_as_well() -> None:
    assert walk([Jump(2, 6, 6, (4, 1)), Jump(8, 9, 12)], 0, 100, 9).passed == (Stretch(0, 6), Stretch(6, 9))


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(1, 40)), max_size=5),
    st.integers(1, 9),
    st.floats(0, 1),
    st.integers(1, 50),
    st.integers(0, 200),
    st.integers(0, 60),
    st.integers(0, 4),
)
def test_all_is_there_at_the_end(
    images: list[tuple[int, int]], tail: int, ratio: float, budget: int, cached: int, room: int, stretches: int
) -> None:
    """Whatever the images, the budget of a step, what room it has, and how much a prefix cache brought."""
    spans: list[tuple[int, int]] = []
    at = 0
    for text, tokens in images:
        spans.append((at + text, tokens))
        at += text + tokens
    prompt = at + tail
    jumps = [jump for first, tokens in spans if (jump := jump_over(first, tokens, ratio, prompt)) is not None]
    to_load = {token for jump in jumps for token in range(jump.start, jump.end)}
    computed = first = min(cached, prompt - 1)
    computing: list[int] = []
    loaded: list[int] = []
    while computed < prompt:
        found = walk(jumps, computed, room, stretches)
        computed = found.target
        loaded += [token for load in found.loads for token in range(load.start, load.end)]
        computing += [token for stretch in found.passed for token in range(stretch.start, stretch.end)]
        assert sum(stretch.tokens for stretch in found.passed) <= room
        assert len(found.passed) <= stretches
        step = chunk(jumps, computed, min(budget, prompt - computed))
        assert step > 0
        computing += range(computed, computed + step)
        computed += step
    assert sorted(computing + loaded) == list(range(first, prompt))
    assert set(loaded) == {token for token in to_load if token >= first}
    assert computing[-1] == prompt - 1
