"""Ratios by layer: spent where they help most, and read from a file or refused with the place and the remedy."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from context.errors import ConfigError
from engine.demo_model import bundled_folder
from engine.demo_model.evaluate import weights_digest
from engine.reference.profile import ReuseProfile, read_profile, weights_sha256, write_profile

WEIGHTS = "ab" * 32


def profile(
    *sensitivity: tuple[float, ...], grid: tuple[float, ...] = (0.0, 0.5, 1.0), step: float = 0.1
) -> ReuseProfile:
    return ReuseProfile(WEIGHTS, grid, sensitivity, step, 8, 1)


@pytest.mark.parametrize(
    ("layers", "budget", "expected"),
    [
        pytest.param([(1, 0.5, 0), (0, 0, 0)], 0.2, (0.4, 0.0), id="all goes to the layer that needs it"),
        pytest.param([(0, 0, 0), (1, 0.5, 0)], 0.2, (0.2, 0.2), id="a later layer takes those before it along"),
        pytest.param([(1, 0.5, 0), (0, 0, 0)], 0.6, (1.0, 0.2), id="what is left goes on when a layer is full"),
        pytest.param([(1, 0.2, 0), (1, 0.8, 0)], 0.25, (0.5, 0.0), id="the steeper part of a way goes first"),
        pytest.param([(1, 1, 0), (0.3, 0.2, 0)], 0.2, (0.4, 0.0), id="a late fall counts as the way to it"),
        pytest.param([(0.5, 0.7, 0), (0, 0, 0)], 0.2, (0.4, 0.0), id="a rise by chance is no reason to stop"),
        pytest.param([(1, 0.5, 0), (1, 0.5, 0)], 0.0, (0.0, 0.0), id="nothing to spend"),
        pytest.param([(1, 0.5, 0), (1, 0.5, 0)], 1.0, (1.0, 1.0), id="everything"),
        pytest.param([(0, 0, 0), (0, 0, 0)], 0.1, (0.2, 0.0), id="no layer needs any"),
    ],
)
def test_a_budget_goes_where_it_helps_most(
    layers: list[tuple[float, ...]], budget: float, expected: tuple[float, ...]
) -> None:
    assert profile(*layers).ratios(budget) == pytest.approx(expected)


@given(
    st.lists(st.lists(st.floats(0, 10), min_size=4, max_size=4).map(tuple), min_size=1, max_size=8),
    st.floats(0, 1),
)
def test_shares_never_rise_from_layer_to_layer_nor_pass_the_budget(layers: list[Any], budget: float) -> None:
    made = profile(*layers, grid=(0.0, 0.1, 0.4, 1.0), step=0.05).ratios(budget)
    assert list(made) == sorted(made, reverse=True)
    assert all(0 <= share <= 1 for share in made)
    # Less than a step of one layer is left over, but where all would have to rise together.
    assert budget - 0.05 - 1e-6 < sum(made) / len(made) <= budget + 1e-6


@pytest.mark.parametrize("budget", [-0.1, 1.1])
def test_a_budget_beyond_all_rows_is_refused(budget: float) -> None:
    with pytest.raises(ValueError, match="from 0 to 1"):
        profile((1, 1, 0)).ratios(budget)


def test_a_profile_is_read_as_it_was_written_and_replaced_whole(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    first, second = profile((1, 0.25, 0), (0.5, 0.125, 0)), profile((2, 1, 0))
    for one in (first, second):
        write_profile(file, one)
        assert read_profile(file) == one
    assert [found.name for found in tmp_path.iterdir()] == ["profile.json"]


def test_a_profile_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "profile.json"
    folder.mkdir()
    with pytest.raises(ConfigError, match="cannot be written"):
        write_profile(folder, profile((1, 0.5, 0)))
    assert list(tmp_path.iterdir()) == [folder]


def test_a_profile_of_another_model_is_refused(tmp_path: Path) -> None:
    made = profile((1, 0.5, 0), (1, 0.5, 0))
    made.check(WEIGHTS, 2, tmp_path)
    for weights, layers in (("cd" * 32, 2), (WEIGHTS, 3)):
        with pytest.raises(ConfigError, match=r"another model.*--calibrate"):
            made.check(weights, layers, tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", "other"),
        ("version", 2),
        ("weights_sha256", "xy"),
        ("grid", [0.0, 0.5]),
        ("grid", [0.0, 0.5, 0.5, 1.0]),
        ("grid", "0 1"),
        ("sensitivity", []),
        ("sensitivity[1]", [1, 0]),
        ("sensitivity[0]", [1, -1, 0]),
        ("sensitivity[0]", [1, float("nan"), 0]),
        ("sensitivity[1]", [True, 0, 0]),
        ("step", 0.3),
        ("step", 0),
        ("questions", 0),
        ("seed", "1"),
        ("ratios", [1]),
    ],
)
def test_what_is_wrong_in_a_profile_is_named(tmp_path: Path, key: str, value: Any) -> None:
    file = tmp_path / "profile.json"
    write_profile(file, profile((1, 0.5, 0), (1, 0.5, 0)))
    written = json.loads(file.read_text())
    if key.startswith("sensitivity["):
        written["sensitivity"][int(key[-2])] = value
    else:
        written[key] = value
    file.write_text(json.dumps(written))
    with pytest.raises(ConfigError) as raised:
        read_profile(file)
    assert (raised.value.where, raised.value.key) == (str(file), key)
    assert "--calibrate" in raised.value.reason


@pytest.mark.parametrize(("content", "said"), [(None, "cannot be read"), ("{", "not JSON"), ("[1]", "not a profile")])
def test_a_file_that_is_no_profile_is_refused(tmp_path: Path, content: str | None, said: str) -> None:
    file = tmp_path / "profile.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=said):
        read_profile(file)


def test_weights_are_known_by_all_of_their_bytes_in_one_file_or_several(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"one")
    assert weights_sha256(tmp_path) == weights_digest(tmp_path) == sha256(b"one").hexdigest()
    (tmp_path / "model-2.safetensors").write_bytes(b"two")
    several = weights_sha256(tmp_path)
    assert several != sha256(b"one").hexdigest()
    (tmp_path / "model-2.safetensors").write_bytes(b"twp")
    assert weights_sha256(tmp_path) != several
    # What the bundled profile is of.
    assert (
        weights_sha256(bundled_folder()) == read_profile(bundled_folder().parent / "reuse_profile.json").weights_sha256
    )


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no weights as safetensors"):
        weights_sha256(tmp_path)
