"""What a block holds, from where images stand in a request."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from engine.vllm.blocks.labels import TEXT, Label, labels_of

BLOCK = 16


@dataclass(frozen=True)
class Place:
    offset: int
    length: int


@dataclass(frozen=True)
class Feature:
    identifier: str
    mm_position: Place


def image(identifier: str, offset: int, length: int) -> Feature:
    return Feature(identifier, Place(offset, length))


CASES: list[tuple[str, list[Feature], list[Label]]] = [
    ("text alone", [], [TEXT, TEXT, TEXT]),
    ("an image fills a block", [image("a", 16, 16)], [TEXT, Label("image", "a", 0, 16), TEXT]),
    (
        "one that begins in a block",
        [image("a", 20, 20)],
        [TEXT, Label("mixed", "a", 0, 12), Label("mixed", "a", 12, 8)],
    ),
    (
        "one of several blocks",
        [image("a", 0, 48)],
        [Label("image", "a", 0, 16), Label("image", "a", 16, 16), Label("image", "a", 32, 16)],
    ),
    ("two in a block, with text", [image("a", 18, 4), image("b", 24, 6)], [TEXT, Label("mixed", "b", 0, 10), TEXT]),
    ("two fill a block", [image("a", 16, 10), image("b", 26, 6)], [TEXT, Label("image", "a", 0, 16), TEXT]),
    ("behind all blocks", [image("a", 48, 16)], [TEXT, TEXT, TEXT]),
]


@pytest.mark.parametrize(("features", "labels"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_block_is_text_or_an_image_or_mixed(features: list[Feature], labels: list[Label]) -> None:
    assert list(labels_of(features, 0, 3, BLOCK)) == labels


@pytest.mark.parametrize("first", [0, 1, 2])
def test_later_blocks_alone_have_the_same_labels(first: int) -> None:
    features = [image("a", 3, 20), image("b", 40, 9)]
    assert list(labels_of(features, first, 4, BLOCK)) == list(labels_of(features, 0, 4, BLOCK))[first:]
