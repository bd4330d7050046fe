"""The visual rules give what transformers' own processors give, from settings and from a model's folder."""

# transformers leaves much of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false, reportAttributeAccessIssue=false

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from context.tokens import families
from context.tokens.visual import (
    IDEFICS3_RULE,
    LLAVA_NEXT_RULE,
    LLAVA_ONEVISION_RULE,
    LLAVA_RULE,
    QWEN2_VL_RULE,
    QWEN3_VL_RULE,
    SMOLVLM_RULE,
    SMOLVLM_SMALL_RULE,
    Tiles,
    VisualRule,
)
from context.visual_tokens import MAX_ASPECT_RATIO, QWEN2_5_VL, QWEN3_VL
from engine import torchvision_ops
from engine.demo_model import bundled_folder

_CHOSEN = random.Random(4)  # noqa: S311
SIZES = [
    *((1, 1), (28, 28), (42, 70), (224, 224), (336, 336), (384, 384), (640, 480), (480, 640), (512, 512), (800, 1280)),
    *(
        (1280, 800),
        (1920, 1080),
        (1080, 1920),
        (2560, 1440),
        (3840, 2160),
        (4096, 4096),
        (1000, 10),
        (10, 1000),
        (5, 7),
    ),
    *((_CHOSEN.randint(8, 3000), _CHOSEN.randint(8, 3000)) for _ in range(60)),
    *((_CHOSEN.randint(100, 2000), _CHOSEN.randint(10, 90)) for _ in range(20)),
]
Count = Callable[[Sequence[tuple[int, int]]], list[int]]


@pytest.fixture(scope="module")
def transformers() -> Any:
    torchvision_ops.declare_missing()
    import transformers

    return transformers


@pytest.fixture(scope="module")
def tokenizer(transformers: Any) -> Any:
    return transformers.AutoTokenizer.from_pretrained(str(bundled_folder()))


def _qwen(transformers: Any, _: Any, **options: Any) -> tuple[Any, Count]:
    images = transformers.Qwen2VLImageProcessor(**options)
    merged = images.merge_size**2
    return images, lambda sizes: [images.get_number_of_image_patches(h, w) // merged for w, h in sizes]


def _llava(transformers: Any, tokenizer: Any) -> tuple[Any, Count]:
    images = transformers.CLIPImageProcessor(crop_size={"height": 336, "width": 336})
    told = {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    return images, _counting(transformers.LlavaProcessor(images, tokenizer, **told))


def _llava_next(transformers: Any, tokenizer: Any) -> tuple[Any, Count]:
    images = transformers.LlavaNextImageProcessor(size={"shortest_edge": 336}, crop_size={"height": 336, "width": 336})
    told = {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    return images, _counting(transformers.LlavaNextProcessor(images, tokenizer, **told))


def _llava_onevision(transformers: Any, tokenizer: Any, **options: Any) -> tuple[Any, Count]:
    images, videos = transformers.LlavaOnevisionImageProcessor(), transformers.LlavaOnevisionVideoProcessor()
    told = {"num_image_tokens": 729, "vision_feature_select_strategy": "full", **options}
    return images, _counting(transformers.LlavaOnevisionProcessor(images, tokenizer, videos, **told))


def _onevision_of_four(transformers: Any, tokenizer: Any) -> tuple[Any, Count]:
    return _llava_onevision(transformers, tokenizer, vision_aspect_ratio="anyres_max_4")


def _idefics3(transformers: Any, tokenizer: Any, each: int = 169, **options: Any) -> tuple[Any, Count]:
    images = transformers.Idefics3ImageProcessor(**options)
    return images, _counting(transformers.Idefics3Processor(images, tokenizer, image_seq_len=each))


def _counting(processor: Any) -> Count:
    def count(sizes: Sequence[tuple[int, int]]) -> list[int]:
        return list(processor._get_num_multimodal_tokens(image_sizes=[(h, w) for w, h in sizes])["num_image_tokens"])

    return count


def _bounds(least: int, most: int) -> dict[str, Any]:
    return {"size": {"shortest_edge": least, "longest_edge": most}}


CASES: dict[str, tuple[VisualRule, Callable[[Any, Any], tuple[Any, Count]]]] = {
    "qwen2.5-vl": (
        QWEN2_VL_RULE,
        lambda t, k: _qwen(t, k, **_bounds(QWEN2_5_VL.min_pixels, QWEN2_5_VL.max_pixels)),
    ),
    "qwen3-vl": (
        QWEN3_VL_RULE,
        lambda t, k: _qwen(t, k, patch_size=16, **_bounds(QWEN3_VL.min_pixels, QWEN3_VL.max_pixels)),
    ),
    "llava": (LLAVA_RULE, _llava),
    "llava-next": (LLAVA_NEXT_RULE, _llava_next),
    "llava-onevision": (LLAVA_ONEVISION_RULE, _llava_onevision),
    "idefics3": (IDEFICS3_RULE, _idefics3),
    "smolvlm": (
        SMOLVLM_RULE,
        lambda t, k: _idefics3(t, k, 81, size={"longest_edge": 1536}, max_image_size={"longest_edge": 384}),
    ),
    "smolvlm-small": (
        SMOLVLM_SMALL_RULE,
        lambda t, k: _idefics3(t, k, 64, size={"longest_edge": 2048}, max_image_size={"longest_edge": 512}),
    ),
}


def _expected(rule: VisualRule, sizes: Sequence[tuple[int, int]], count: Count, tokenizer: Any) -> list[int]:
    """What the processor counts. It adds a token where the tokenizer, as here, has none for two newlines."""
    more = len(tokenizer("\n\n", add_special_tokens=False)["input_ids"]) - 1
    cut = [isinstance(rule, Tiles) and rule.grid(*size) != (0, 0) for size in sizes]
    return [one - more * is_cut for one, is_cut in zip(count(sizes), cut, strict=True)]


def _taken(family: str) -> list[tuple[int, int]]:
    """The sizes that the processor takes."""
    return [size for size in SIZES if "qwen" not in family.lower() or max(size) / min(size) <= MAX_ASPECT_RATIO]


@pytest.mark.parametrize("family", CASES)
def test_a_rule_counts_as_the_processor_does(family: str, transformers: Any, tokenizer: Any) -> None:
    rule, make = CASES[family]
    sizes = _taken(family)
    assert [rule.tokens(*size) for size in sizes] == _expected(rule, sizes, make(transformers, tokenizer)[1], tokenizer)


@pytest.mark.parametrize("size", [(640, 480), (300, 1200), (512, 512), (33, 2000)])
def test_tiles_are_those_that_the_processor_cuts(size: tuple[int, int], transformers: Any) -> None:
    from PIL import Image

    images = transformers.SmolVLMImageProcessor(size={"longest_edge": 2048}, max_image_size={"longest_edge": 512})
    made = images(Image.new("RGB", size), return_row_col_info=True)
    assert SMOLVLM_SMALL_RULE.grid(*size) == (made["rows"][0][0], made["cols"][0][0])


def test_a_onevision_grid_is_bounded_by_the_views_that_the_model_names(transformers: Any, tokenizer: Any) -> None:
    count = _onevision_of_four(transformers, tokenizer)[1]
    assert [replace(LLAVA_ONEVISION_RULE, max_views=4).tokens(*size) for size in SIZES] == count(SIZES)


_SMOL: dict[str, Any] = {"vision_config": {"image_size": 512, "patch_size": 16}, "scale_factor": 4}


@pytest.mark.parametrize(
    ("config", "options", "make"),
    [
        ("Qwen2_5_VLConfig", {}, partial(_qwen, **_bounds(4 * 784, 400 * 784))),
        ("Qwen3VLConfig", {}, partial(_qwen, patch_size=16, **_bounds(65_536, 999_999))),
        ("LlavaConfig", {}, _llava),
        ("LlavaNextConfig", {}, _llava_next),
        ("LlavaOnevisionConfig", {"vision_aspect_ratio": "anyres_max_4"}, _onevision_of_four),
        ("SmolVLMConfig", _SMOL, CASES["smolvlm-small"][1]),
    ],
)
def test_a_folder_tells_the_rule(
    config: str,
    options: dict[str, Any],
    make: Callable[[Any, Any], tuple[Any, Count]],
    transformers: Any,
    tokenizer: Any,
    tmp_path: Path,
) -> None:
    images, count = make(transformers, tokenizer)
    getattr(transformers, config)(**options).save_pretrained(str(tmp_path))
    images.save_pretrained(str(tmp_path))
    rule, sizes = families.of_folder(tmp_path), _taken(config)
    assert rule is not None
    assert [rule.tokens(*size) for size in sizes] == _expected(rule, sizes, count, tokenizer)
