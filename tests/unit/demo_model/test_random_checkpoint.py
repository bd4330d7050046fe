"""The random checkpoint: any size, the same for the same seed, and a model that loads."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from engine import torchvision_ops
from engine.demo_model.random_checkpoint import CheckpointShape, build

SMALL = CheckpointShape(
    layers=2, hidden=64, heads=4, kv_heads=2, vision_hidden=32, vision_layers=2, vision_heads=2, max_image_tokens=64
)


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_it_has_the_size_that_was_asked_for_and_loads(tmp_path: Path) -> None:
    torchvision_ops.declare_missing()
    from transformers import Qwen2_5_VLForConditionalGeneration

    folder = build(tmp_path / "small", SMALL)
    model: Any = Qwen2_5_VLForConditionalGeneration.from_pretrained(str(folder))
    text = model.config.text_config
    assert (text.num_hidden_layers, text.hidden_size, text.num_key_value_heads) == (2, 64, 2)
    assert model.config.vision_config.depth == 2
    assert json.loads((folder / "preprocessor_config.json").read_text())["max_pixels"] == 64 * 28 * 28


def test_a_seed_gives_the_same_weights_and_another_seed_others(tmp_path: Path) -> None:
    one, again, other = (
        weights(build(tmp_path / name, CheckpointShape(layers=1, hidden=64, heads=4, kv_heads=2, seed=seed)))
        for name, seed in (("one", 1), ("again", 1), ("other", 2))
    )
    assert one == again
    assert one != other


def test_a_folder_of_that_shape_is_left_as_it_is_and_another_is_replaced(tmp_path: Path) -> None:
    folder = build(tmp_path / "model", SMALL)
    before = (folder / "model.safetensors").stat().st_mtime_ns
    build(folder, SMALL)
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    build(folder, CheckpointShape(layers=1, hidden=64, heads=4, kv_heads=2))
    with safe_open(str(folder / "model.safetensors"), "pt") as tensors:
        assert "model.layers.1.self_attn.q_proj.weight" not in tensors.keys()  # noqa: SIM118  it is no mapping


@pytest.mark.slow
def test_the_default_one_is_made_by_its_command(random_checkpoint: Path) -> None:
    assert json.loads((random_checkpoint / "config.json").read_text())["text_config"]["hidden_size"] == 256
    assert (random_checkpoint / "chat_template.jinja").is_file()
