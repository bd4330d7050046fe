"""A model's visual rule by its name and by its folder. That the rules are right is tests/contract's to say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from context.tokens import families
from context.tokens.visual import QWEN2_VL_RULE, Fixed, QwenVl
from engine.demo_model import bundled_folder


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("Qwen/Qwen2-VL-7B-Instruct", "qwen2-vl"),
        ("Qwen/Qwen2.5-VL-72B-Instruct-AWQ", "qwen2.5-vl"),
        ("qwen2_5_vl", "qwen2.5-vl"),
        ("Qwen/Qwen3-VL-30B-A3B-Instruct", "qwen3-vl"),
        ("qwen3.5-35b", "qwen3-vl"),
        ("llava-hf/llava-1.5-7b-hf", "llava"),
        ("llava-hf/llava-v1.6-mistral-7b-hf", "llava-next"),
        ("llava-hf/llava-onevision-qwen2-7b-ov-hf", "llava-onevision"),
        ("HuggingFaceTB/SmolVLM-Instruct", "smolvlm"),
        ("HuggingFaceTB/SmolVLM2-500M-Video-Instruct", "smolvlm-small"),
        ("HuggingFaceM4/Idefics3-8B-Llama3", "idefics3"),
        ("google/gemma-3-4b-it", "gemma3"),
        ("demo", "qwen2.5-vl"),
    ],
)
def test_a_name_tells_the_family(name: str, family: str) -> None:
    assert families.by_name(name) is families.RULES[family]


@pytest.mark.parametrize("name", ["", "gpt-5", "Qwen/Qwen2.5-7B-Instruct", "my-demo-2", "gemma-3n-e4b"])
def test_another_name_tells_none(name: str) -> None:
    assert families.by_name(name) is None


def test_every_family_but_the_fixed_one_has_a_rule() -> None:
    assert set(families.FAMILIES) == {*families.RULES, "fixed"}


def test_the_bundled_model_has_bounds_of_its_own() -> None:
    rule = families.of_folder(bundled_folder())
    assert isinstance(rule, QwenVl)
    settings = json.loads((bundled_folder() / "preprocessor_config.json").read_text())
    assert rule.shape.max_pixels == settings["max_pixels"] != QWEN2_VL_RULE.shape.max_pixels
    smaller = families.of_folder(bundled_folder(), {"max_pixels": 28 * 28 * 16})
    assert smaller is not None
    assert smaller.tokens(4000, 4000) == 16


def test_the_image_processor_may_stand_in_the_processors_settings(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_vl"}))
    (tmp_path / "processor_config.json").write_text(
        json.dumps({"image_processor": {"patch_size": 16, "size": {"shortest_edge": 65_536, "longest_edge": 262_144}}})
    )
    rule = families.of_folder(tmp_path)
    assert rule is not None
    assert rule.tokens(4096, 4096) == 256


def test_a_fixed_number_is_taken_from_the_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "paligemma", "image_seq_length": 256}))
    assert families.of_folder(tmp_path) == Fixed(256)


@pytest.mark.parametrize(
    "config",
    [
        None,
        "{",
        [],
        {"model_type": "gpt_oss"},
        {"model_type": "llava", "vision_config": {"image_size": "big", "patch_size": 14}},
        {"model_type": "llava_next", "vision_config": {"image_size": 336, "patch_size": 0}},
        {"model_type": "llava_next", "image_grid_pinpoints": 7},
    ],
)
def test_a_folder_of_another_shape_tells_none(config: Any, tmp_path: Path) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    assert families.of_folder(tmp_path) is None
