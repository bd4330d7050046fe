"""How many prompt tokens an image takes, from its size alone. Pure functions; nothing is decoded.

A Qwen-VL processor scales an image so that both sides are multiples of `patch * merge`, cuts it into patches, and
merges `merge` x `merge` of them into one token.

Source: transformers 5, models/qwen2_vl/image_processing_qwen2_vl.py::smart_resize, and vLLM 0.32,
model_executor/models/qwen2_vl.py::Qwen2VLProcessingInfo._get_vision_info and get_image_size_with_most_features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

MAX_ASPECT_RATIO = 200


@dataclass(frozen=True, slots=True)
class VisualShape:
    """What of an image processor decides token counts. Pixels are those of the scaled image."""

    patch: int = 14
    merge: int = 2
    min_pixels: int = 56 * 56
    max_pixels: int = 28 * 28 * 1280

    @property
    def unit(self) -> int:
        """Pixels along one side of one token."""
        return self.patch * self.merge


QWEN2_VL = VisualShape()
QWEN2_5_VL = VisualShape(max_pixels=12_845_056)
QWEN3_VL = VisualShape(patch=16, min_pixels=65_536, max_pixels=16_777_216)


def scaled_size(width: int, height: int, shape: VisualShape = QWEN2_VL) -> tuple[int, int]:
    """Width and height, in pixels, that the processor scales an image to.

    Raises:
        ValueError: a side is not positive, or one side is over 200 times the other.
    """
    if width < 1 or height < 1:
        raise ValueError(f"an image needs positive sides, got {width}x{height}")
    if max(width, height) / min(width, height) > MAX_ASPECT_RATIO:
        raise ValueError(f"the sides of an image may differ by a factor of {MAX_ASPECT_RATIO}, got {width}x{height}")
    unit = shape.unit
    # Python's round() rounds halves to even, as the processor does: 42 pixels become 2 x 28, 70 also 2 x 28.
    scaled_height, scaled_width = round(height / unit) * unit, round(width / unit) * unit
    if scaled_height * scaled_width > shape.max_pixels:
        shrink = math.sqrt((height * width) / shape.max_pixels)
        scaled_height = max(unit, math.floor(height / shrink / unit) * unit)
        scaled_width = max(unit, math.floor(width / shrink / unit) * unit)
    elif scaled_height * scaled_width < shape.min_pixels:
        grow = math.sqrt(shape.min_pixels / (height * width))
        scaled_height = math.ceil(height * grow / unit) * unit
        scaled_width = math.ceil(width * grow / unit) * unit
    return scaled_width, scaled_height


def visual_tokens(width: int, height: int, shape: VisualShape = QWEN2_VL) -> int:
    """Prompt tokens of one image, without the tokens that mark its start and end.

    Raises:
        ValueError: as `scaled_size`.
    """
    scaled_width, scaled_height = scaled_size(width, height, shape)
    return (scaled_width // shape.unit) * (scaled_height // shape.unit)


@lru_cache(maxsize=64)
def max_visual_tokens(shape: VisualShape = QWEN2_VL) -> int:
    """The most tokens that any one image can take."""
    for tokens in range(shape.max_pixels // (shape.unit * shape.unit), 0, -1):
        rows = next(rows for rows in range(math.isqrt(tokens), 0, -1) if tokens % rows == 0)
        if tokens // rows <= rows * MAX_ASPECT_RATIO:
            return visual_tokens(shape.unit * (tokens // rows), shape.unit * rows, shape)
    return 1
