"""Tokens of an image, against sizes computed with the processor's own function."""

from __future__ import annotations

import pytest

from context.visual_tokens import (
    QWEN2_5_VL,
    QWEN2_VL,
    QWEN3_VL,
    VisualShape,
    max_visual_tokens,
    scaled_size,
    visual_tokens,
)


@pytest.mark.parametrize(
    ("width", "height", "scaled", "tokens"),
    [
        (28, 28, (56, 56), 4),
        (224, 224, (224, 224), 64),
        (640, 480, (644, 476), 391),
        # 42 and 70 pixels are halves of 28: rounded to even, 1.5 and 2.5 both give 2.
        (42, 70, (56, 56), 4),
        (1920, 1080, (1316, 728), 1222),
        (4000, 3000, (1148, 840), 1230),
        (2000, 10, (812, 28), 29),
    ],
)
@pytest.mark.case("MC-081")
def test_sizes(width: int, height: int, scaled: tuple[int, int], tokens: int) -> None:
    assert scaled_size(width, height, QWEN2_VL) == scaled
    assert visual_tokens(width, height, QWEN2_VL) == tokens


def test_other_shapes() -> None:
    assert visual_tokens(1920, 1080, QWEN2_5_VL) == 69 * 39
    assert visual_tokens(1920, 1080, QWEN3_VL) == 60 * 34
    assert visual_tokens(16, 16, QWEN3_VL) == 64


@pytest.mark.parametrize(("width", "height"), [(0, 5), (5, -1), (201, 1), (1, 201)])
def test_impossible_sizes(width: int, height: int) -> None:
    with pytest.raises(ValueError, match=str(width)):
        visual_tokens(width, height)


def test_most_tokens() -> None:
    assert max_visual_tokens(QWEN2_VL) == 1280
    # 1279 is prime, as a row it is too long; 211 x 1 is over the aspect ratio as well, 210 = 15 x 14 is not.
    assert max_visual_tokens(VisualShape(max_pixels=211 * 28 * 28)) == 210
