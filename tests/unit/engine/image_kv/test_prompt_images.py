"""Which images of a prompt the pool can have, where they stand, and what a request may ask for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from engine.vllm.image_kv.prompt_images import images_of, wanted_ratio


class Grid:
    def __init__(self, *sides: int) -> None:
        self._sides = sides

    def flatten(self) -> tuple[int, ...]:
        return self._sides


def feature(name: str, first: int, rows: int, columns: int, *, embeds: int | None = None, kind: str = "image") -> Any:
    tokens = rows * columns
    place = SimpleNamespace(offset=first, length=tokens, get_num_embeds=lambda: tokens if embeds is None else embeds)
    data = {"image_grid_thw": SimpleNamespace(data=Grid(1, 2 * rows, 2 * columns))}
    return SimpleNamespace(identifier=name, mm_position=place, modality=kind, data=data)


def request(*features: Any, asked: Any = None, **other: Any) -> Any:
    given: dict[str, Any] = {
        "prompt_embeds": None,
        "lora_request": None,
        "resumable": False,
        "cache_salt": "tenant",
        "pooling_params": None,
        "sampling_params": SimpleNamespace(prompt_logprobs=None),
        "kv_transfer_params": asked,
    }
    return SimpleNamespace(mm_features=list(features), **(given | other))


def test_with_m_rope_an_image_takes_as_many_positions_as_its_longest_side() -> None:
    images = images_of(request(feature("a", 10, 4, 6), feature("b", 40, 5, 3), feature("c", 60, 1, 1)), merge=2)
    assert [(image.first, image.tokens, image.position) for image in images] == [
        (10, 24, 10),
        (40, 15, 40 - (24 - 6)),
        (60, 1, 60 - (24 - 6) - (15 - 5)),
    ]
    assert (images[0].name.tenant, images[0].name.image, images[0].name.grid) == ("tenant", "a", (1, 4, 6))


def test_without_it_every_token_takes_one() -> None:
    images = images_of(request(feature("a", 10, 4, 6), feature("b", 40, 5, 3)), merge=None)
    assert [(image.position, image.name.grid) for image in images] == [(10, (1, 1, 24)), (40, (1, 1, 15))]


@pytest.mark.parametrize("merge", [2, None])
def test_images_with_tokens_of_other_kinds_among_them_are_left_out(merge: int | None) -> None:
    images = images_of(request(feature("a", 10, 4, 6, embeds=20), feature("b", 40, 5, 3)), merge)
    assert [image.name.image for image in images] == ["b"]


def test_where_images_behind_a_video_stand_is_not_known() -> None:
    features = (feature("a", 10, 4, 6), feature("v", 40, 5, 3, kind="video"), feature("b", 60, 2, 2))
    assert [image.name.image for image in images_of(request(*features), merge=2)] == ["a"]
    assert [image.name.image for image in images_of(request(*features), merge=None)] == ["a", "b"]


@pytest.mark.parametrize("other", [{"prompt_embeds": 1}, {"lora_request": 1}, {"resumable": True}])
def test_requests_of_adapters_embeddings_and_streamed_input_have_none(other: dict[str, Any]) -> None:
    assert images_of(request(feature("a", 10, 4, 6), **other), merge=2) == ()


@pytest.mark.parametrize(
    ("asked", "ratio"),
    [
        ({"stillframe": {"mode": "position_independent", "ratio": 0.05}}, 0.05),
        ({"stillframe": {"mode": "position_independent", "ratio": 0}}, 0.0),
        ({"stillframe": {"mode": "position_independent", "ratio": 1}}, None),
        ({"stillframe": {"mode": "position_independent", "ratio": -0.1}}, None),
        ({"stillframe": {"mode": "position_independent", "ratio": "half"}}, None),
        ({"stillframe": {"mode": "another", "ratio": 0.05}}, None),
        ({"stillframe": 0.05}, None),
        ({"other": {}}, None),
        (None, None),
    ],
)
def test_what_a_request_asks_for(asked: Any, ratio: float | None) -> None:
    assert wanted_ratio(request(asked=asked)) == ratio
    # Log-probabilities of the prompt are of all of its tokens.
    assert wanted_ratio(request(asked=asked, sampling_params=SimpleNamespace(prompt_logprobs=0))) is None
