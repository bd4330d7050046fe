"""Tokens of one image in the prompt, by model family, from its size alone. Pure functions; nothing is decoded.

    QwenVl       Qwen2-VL, Qwen2.5-VL, Qwen3-VL: one token for each merged patch of the scaled image
    AnyRes       LLaVA-NeXT, LLaVA-OneVision: a base view and a grid of views, cut to the image, a newline for each row
    Tiles        Idefics3, SmolVLM: tiles of one size and a view of the whole, each with the same number of tokens
    Fixed        LLaVA-1.5, Gemma 3: the same for every image

Each is compared with transformers' own processor in tests/contract/test_visual_tokens.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from context.visual_tokens import MAX_ASPECT_RATIO, QWEN2_5_VL, QWEN3_VL, VisualShape, visual_tokens

_IDEFICS_MAX_SIDE = 4096


class VisualRule(Protocol):
    """How many tokens an image takes."""

    @property
    def marks(self) -> int:
        """Tokens that stand around each image, such as its start and end, and are not counted by `tokens`."""
        ...

    def tokens(self, width: int, height: int) -> int:
        """Tokens of an image of positive sides."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same number for every image."""

    count: int
    marks: int = 0

    def tokens(self, width: int, height: int) -> int:
        """`count`."""
        return self.count


@dataclass(frozen=True, slots=True)
class QwenVl:
    """Source: see `context/visual_tokens.py`."""

    shape: VisualShape = QWEN2_5_VL
    marks: int = 2

    def tokens(self, width: int, height: int) -> int:
        """Tokens of the scaled image."""
        # The processor takes no longer image; an engine that takes it counts in a way of its own.
        longest = min(width, height) * MAX_ASPECT_RATIO
        return visual_tokens(min(width, longest), min(height, longest), self.shape)


@dataclass(frozen=True, slots=True)
class AnyRes:
    """A base view of `grid` x `grid` tokens, and views of `side` pixels that make up the best of `resolutions`.

    `resolutions` are (height, width). `max_views` bounds the tokens of the grid to those of so many views: beyond it
    they are interpolated; None leaves them.

    Source: transformers 5, image_processing_utils.py::select_best_resolution,
    models/llava_next/processing_llava_next.py::LlavaNextProcessor._get_number_of_features and _get_unpadded_features,
    models/llava_onevision/processing_llava_onevision.py::LlavaOnevisionProcessor, the same names.
    """

    side: int
    grid: int
    resolutions: tuple[tuple[int, int], ...]
    max_views: int | None = None
    marks: int = 0

    def tokens(self, width: int, height: int) -> int:
        """Tokens of the base view and of the grid, with one at the end of each of its rows."""
        best_height, best_width = best_resolution(width, height, self.resolutions)
        rows, columns = self.grid * (best_height // self.side), self.grid * (best_width // self.side)
        # What the image does not fill is cut off, as much on one side as on the other.
        if width / height > columns / rows:
            rows -= (rows - int(round(height * (columns / width), 7))) // 2 * 2
        else:
            columns -= (columns - int(round(width * (rows / height), 7))) // 2 * 2
        if self.max_views is not None:
            ratio = math.sqrt(rows * columns / (self.max_views * self.grid**2))
            if ratio > 1.1:
                rows, columns = int(rows // ratio), int(columns // ratio)
        return self.grid**2 + rows * columns + rows


def best_resolution(width: int, height: int, resolutions: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The resolution, as (height, width), that keeps most of an image's pixels and of those wastes the least."""

    def worth(resolution: tuple[int, int]) -> tuple[int, int]:
        scale = min(resolution[1] / width, resolution[0] / height)
        kept = min(int(width * scale) * int(height * scale), width * height)
        return kept, kept - resolution[0] * resolution[1]

    return max(resolutions, key=worth)


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tiles of `side` pixels of the image scaled to `longest`, then the whole image as one more tile.

    `each` are the tokens of a tile; one more opens it and one says where it stands. A row ends in a newline, and one
    more newline stands before the whole: `newlines` is how many tokens the last two are together.

    Source: transformers 5, models/idefics3/processing_idefics3.py::Idefics3Processor._get_num_multimodal_tokens and
    models/smolvlm/image_processing_smolvlm.py::SmolVLMImageProcessor.get_number_of_image_patches.
    """

    longest: int
    side: int
    each: int
    newlines: int = 1
    splits: bool = True
    marks: int = 0

    def tokens(self, width: int, height: int) -> int:
        """Tokens of all tiles with their marks."""
        rows, columns = self.grid(width, height)
        whole = self.each + 3
        return whole if not rows else rows * (columns * (self.each + 2) + 1) + whole + self.newlines - 1

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Rows and columns of tiles; (0, 0) for an image that is not cut."""
        if not self.splits:
            return 0, 0
        ratio = width / height
        if width >= height:
            wide, high = self.longest, _even(int(self.longest / ratio))
        else:
            wide, high = _even(int(self.longest * ratio)), self.longest
        ratio = wide / high
        if max(wide, high) > _IDEFICS_MAX_SIDE:
            at_most = _IDEFICS_MAX_SIDE
            wide, high = (at_most, int(at_most / ratio)) if wide >= high else (int(at_most * ratio), at_most)
        rows, columns = math.ceil(max(high, 1) / self.side), math.ceil(max(wide, 1) / self.side)
        return (rows, columns) if rows > 1 or columns > 1 else (0, 0)


def _even(side: int) -> int:
    return max(1, side + side % 2)


_NEXT_RESOLUTIONS = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))
_ONEVISION_RESOLUTIONS = tuple((384 * rows, 384 * columns) for rows in range(1, 7) for columns in range(1, 7))

# The settings of the models that their makers released.
QWEN2_VL_RULE = QwenVl()
QWEN3_VL_RULE = QwenVl(QWEN3_VL)
LLAVA_RULE = Fixed(576)
LLAVA_NEXT_RULE = AnyRes(336, 24, _NEXT_RESOLUTIONS)
LLAVA_ONEVISION_RULE = AnyRes(384, 27, _ONEVISION_RESOLUTIONS, max_views=9)
IDEFICS3_RULE = Tiles(longest=1456, side=364, each=169)
SMOLVLM_RULE = Tiles(longest=1536, side=384, each=81)
SMOLVLM_SMALL_RULE = Tiles(longest=2048, side=512, each=64)
GEMMA3_RULE = Fixed(256, marks=4)
