"""Which visual rule a model goes by: told, from its folder, or from its name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

from pydantic_core import from_json

from context.tokens.visual import (
    GEMMA3_RULE,
    IDEFICS3_RULE,
    LLAVA_NEXT_RULE,
    LLAVA_ONEVISION_RULE,
    LLAVA_RULE,
    QWEN2_VL_RULE,
    QWEN3_VL_RULE,
    SMOLVLM_RULE,
    SMOLVLM_SMALL_RULE,
    AnyRes,
    Fixed,
    QwenVl,
    Tiles,
    VisualRule,
)

Family = Literal[
    "qwen2-vl",
    "qwen2.5-vl",
    "qwen3-vl",
    "llava",
    "llava-next",
    "llava-onevision",
    "idefics3",
    "smolvlm",
    "smolvlm-small",
    "gemma3",
    "fixed",
]
FAMILIES: tuple[Family, ...] = get_args(Family)
# What a family's released models have; `fixed` is a number of the caller's own.
RULES: Mapping[str, VisualRule] = {
    "qwen2-vl": QWEN2_VL_RULE,
    "qwen2.5-vl": QWEN2_VL_RULE,
    "qwen3-vl": QWEN3_VL_RULE,
    "llava": LLAVA_RULE,
    "llava-next": LLAVA_NEXT_RULE,
    "llava-onevision": LLAVA_ONEVISION_RULE,
    "idefics3": IDEFICS3_RULE,
    "smolvlm": SMOLVLM_RULE,
    "smolvlm-small": SMOLVLM_SMALL_RULE,
    "gemma3": GEMMA3_RULE,
}
# Names of models as people serve them; the first that is found counts. The bundled models are Qwen2.5-VL's.
_NAMES = tuple(
    (re.compile(pattern), family)
    for pattern, family in (
        (r"qwen[-_. ]?2[-_. ]5[-_. ]?(vl|omni)", "qwen2.5-vl"),
        (r"qwen[-_. ]?2[-_. ]?vl|qvq", "qwen2-vl"),
        (r"qwen[-_. ]?(3[-_. ]?(vl|omni)|3[-_. ][5-9])", "qwen3-vl"),
        (r"llava[-_. ]?(onevision|ov)", "llava-onevision"),
        (r"llava[-_. ]?(next|v?1[-_. ]6)", "llava-next"),
        (r"llava", "llava"),
        (r"smolvlm2?[-_. ].*(256|500)m", "smolvlm-small"),
        (r"smolvlm", "smolvlm"),
        (r"idefics[-_. ]?3", "idefics3"),
        (r"gemma[-_. ]?3(?!n)", "gemma3"),
        (r"^(demo|random|stillframe[-_a-z]*)$", "qwen2.5-vl"),
    )
)


def by_name(model: str) -> VisualRule | None:
    """The rule of the family that a model's name tells; None where it tells none."""
    name = model.lower()
    return next((RULES[family] for pattern, family in _NAMES if pattern.search(name)), None)


def of_folder(folder: Path, overrides: Mapping[str, Any] | None = None) -> VisualRule | None:
    """The rule of a model's folder, by its `config.json` and `preprocessor_config.json`; None where they tell none.

    Args:
        folder: as a model hub lays it out.
        overrides: options of the image processor that the engine is started with (`mm-processor-kwargs`).
    """
    config = _read(folder / "config.json")
    processor = _read(folder / "preprocessor_config.json")
    if not processor:
        processor = _mapping(_read(folder / "processor_config.json").get("image_processor"))
    try:
        return _rule(config, {**processor, **(overrides or {})})
    except (TypeError, ValueError, ZeroDivisionError, AttributeError):
        # Figures of another shape than the family has.
        return None


def _rule(config: Mapping[str, Any], processor: Mapping[str, Any]) -> VisualRule | None:
    kind = str(config.get("model_type", ""))
    vision = _mapping(config.get("vision_config"))
    if re.match(r"qwen(2_vl|2_5_vl|3_vl|3_5)", kind):
        return _qwen(kind, processor)
    if kind in ("llava_next", "llava_onevision"):
        return _any_res(LLAVA_NEXT_RULE if kind == "llava_next" else LLAVA_ONEVISION_RULE, config, vision)
    if kind in ("idefics3", "smolvlm"):
        return _tiles(kind, config, vision, processor)
    if kind == "llava":
        return Fixed((vision.get("image_size", 336) // vision.get("patch_size", 14)) ** 2)
    for key in ("mm_tokens_per_image", "image_seq_length"):
        if isinstance(config.get(key), int):
            return Fixed(config[key], marks=GEMMA3_RULE.marks if kind.startswith("gemma3") else 0)
    return None


def _qwen(kind: str, processor: Mapping[str, Any]) -> QwenVl:
    known = (QWEN3_VL_RULE if kind.startswith("qwen3") else QWEN2_VL_RULE).shape
    size = _mapping(processor.get("size"))
    # The older name of a bound counts where both are there, as it does in the processor.
    least = processor.get("min_pixels") or size.get("shortest_edge") or known.min_pixels
    most = processor.get("max_pixels") or size.get("longest_edge") or known.max_pixels
    patch, merge = processor.get("patch_size") or known.patch, processor.get("merge_size") or known.merge
    return QwenVl(replace(known, patch=int(patch), merge=int(merge), min_pixels=int(least), max_pixels=int(most)))


def _any_res(known: AnyRes, config: Mapping[str, Any], vision: Mapping[str, Any]) -> AnyRes:
    side = int(vision.get("image_size", known.side))
    grid = side // int(vision["patch_size"]) if "patch_size" in vision else known.grid
    pinpoints = config.get("image_grid_pinpoints") or known.resolutions
    most = known.max_views
    if most is not None and (told := re.search(r"anyres_max_(\d+)", str(config.get("vision_aspect_ratio")))):
        most = int(told[1])
    return AnyRes(side, grid, tuple((int(one[0]), int(one[1])) for one in pinpoints), most)


def _tiles(kind: str, config: Mapping[str, Any], vision: Mapping[str, Any], processor: Mapping[str, Any]) -> Tiles:
    known = IDEFICS3_RULE if kind == "idefics3" else SMOLVLM_RULE
    side = int(_mapping(processor.get("max_image_size")).get("longest_edge", vision.get("image_size", known.side)))
    each = known.each
    if "image_size" in vision and "patch_size" in vision and "scale_factor" in config:
        # As in the processor's own words: (image_size // patch_size)^2 / scale_factor^2.
        each = int((vision["image_size"] // vision["patch_size"]) ** 2 / config["scale_factor"] ** 2)
    longest = int(_mapping(processor.get("size")).get("longest_edge", 4 * side))
    return Tiles(longest, side, each, splits=bool(processor.get("do_image_splitting", True)))


def _read(file: Path) -> Mapping[str, Any]:
    try:
        return _mapping(from_json(file.read_bytes()))
    except (OSError, ValueError):
        return {}


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
