"""A checkpoint's folder as the plain model: the same logits as transformers, or a refusal that names the place."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer

from context.errors import ConfigError
from engine import torchvision_ops
from engine.demo_model import bundled_folder
from engine.demo_model.scenes import render
from engine.demo_model.training.batches import Encoder
from engine.reference.checkpoint import load_model, read_shape
from engine.reference.reuse import exact
from metrics.eval.cases import draw_cases
from tests.unit.reference.small import one_torch_thread


def test_the_bundled_models_logits_are_those_of_transformers() -> None:
    torchvision_ops.declare_missing()
    from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration

    folder = bundled_folder()
    network: Any = Qwen2_5_VLForConditionalGeneration.from_pretrained(str(folder), dtype=torch.float32)
    processor: Any = AutoProcessor.from_pretrained(str(folder))
    model = load_model(folder)
    for case in draw_cases(Encoder(Tokenizer.from_file(str(folder / "tokenizer.json"))), 2, (5,)):
        images = [Image.fromarray(render(case.scenes[picture])) for picture in case.prompt.pictures]
        pixels = processor.image_processor(images, return_tensors="pt")
        with torch.inference_mode(), one_torch_thread():
            expected = network(
                input_ids=case.prompt.ids[None],
                position_ids=case.prompt.positions[:, None],
                mm_token_type_ids=(case.prompt.ids == network.config.image_token_id).int()[None],
                **pixels,
            ).logits[0]
            x = case.prompt.embedded(model, case.features(model))
            got = exact(model, x, case.prompt.positions, len(x)).logits[0]
        assert float(expected.abs().max()) > 10
        # An epsilon of 1e-6 in the norms, where the checkpoint has 1e-5, is 4e-3 off.
        assert float((got - expected).abs().max()) < 5e-4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The bundled model's configuration, without its weights."""
    shutil.copy(bundled_folder() / "config.json", tmp_path / "config.json")
    return tmp_path


@pytest.mark.parametrize(
    ("place", "value", "key"),
    [
        (("model_type",), "qwen3_vl", "model_type"),
        (("tie_word_embeddings",), False, "tie_word_embeddings"),
        (("text_config", "use_sliding_window"), True, "text_config.use_sliding_window"),
        (("text_config", "rope_parameters", "rope_type"), "yarn", "text_config.rope_parameters"),
        (("vision_config", "patch_size"), 16, "vision_config"),
        (("text_config",), None, "config.json"),
        (("text_config", "hidden_size"), "many", "config.json"),
    ],
)
def test_a_model_that_the_plain_one_is_not_is_refused(
    folder: Path, place: tuple[str, ...], value: Any, key: str
) -> None:
    file = folder / "config.json"
    config: Any = json.loads(file.read_text())
    assert read_shape(folder).layers == 6
    at = config
    for name in place[:-1]:
        at = at[name]
    at[place[-1]] = value
    file.write_text(json.dumps(config))
    with pytest.raises(ConfigError) as raised:
        load_model(folder)
    assert raised.value.key == key


@pytest.mark.parametrize(
    ("weights", "said"), [(None, "is not there"), (b"short", "cannot be read"), (b"other", "does not hold the weights")]
)
def test_weights_that_do_not_fit_are_refused(folder: Path, weights: bytes | None, said: str) -> None:
    from safetensors.torch import save

    if weights == b"other":
        weights = save({"some.weight": torch.zeros(2)})
    if weights is not None:
        (folder / "model.safetensors").write_bytes(weights)
    with pytest.raises(ConfigError, match=said) as raised:
        load_model(folder)
    assert raised.value.key == "model.safetensors"


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json: is not there"):
        load_model(tmp_path / "none")
