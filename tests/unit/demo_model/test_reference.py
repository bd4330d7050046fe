"""The plain PyTorch model is transformers' Qwen2.5-VL, and what is trained is what the engine gets to see."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer
from torch import nn

from engine import torchvision_ops
from engine.demo_model import bundled_folder
from engine.demo_model.chats import ChatLimits, draw_chat, rng_for
from engine.demo_model.questions import KINDS
from engine.demo_model.scenes import render
from engine.demo_model.training.batches import Encoder, patches_of
from engine.demo_model.training.export import export
from engine.demo_model.training.losses import embed_images, forward
from engine.reference.hugging_face import from_hugging_face, to_hugging_face
from engine.reference.qwen2_5_vl import Model, Shape

LIMITS = ChatLimits(dict.fromkeys(KINDS, 1.0), questions=(2, 3))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(bundled_folder() / "tokenizer.json"))


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> Model:
    """Small and random, with no weight at zero, and other sizes than the bundled one's."""
    torch.manual_seed(1)
    made = Model(
        Shape(
            vocabulary=-(-tokenizer.get_vocab_size() // 64) * 64,
            hidden=128,
            layers=2,
            heads=4,
            kv_heads=2,
            intermediate=96,
            rope_sections=(4, 5, 7),
            vision_hidden=64,
            vision_layers=3,
            vision_heads=2,
            vision_intermediate=80,
            full_attention=(1,),
        )
    )
    for parameter in made.parameters():
        if parameter.ndim == 1:
            nn.init.normal_(parameter, 0.5, 0.3)
        else:
            nn.init.normal_(parameter, std=2 * parameter.shape[-1] ** -0.5)
    return made.bfloat16().float().eval()


@pytest.fixture(scope="module")
def theirs(model: Model, tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """The same weights in transformers, and its processor, by way of the exported folder."""
    torchvision_ops.declare_missing()
    from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration

    folder: Path = tmp_path_factory.mktemp("exported")
    export(model, tokenizer, folder)
    loaded = Qwen2_5_VLForConditionalGeneration.from_pretrained(str(folder), dtype=torch.float32)
    return loaded, AutoProcessor.from_pretrained(str(folder))


@pytest.mark.parametrize("seed", range(4))
def test_tokens_positions_pixels_and_logits_are_those_of_transformers(
    seed: int, model: Model, tokenizer: Tokenizer, theirs: tuple[Any, Any]
) -> None:
    network, processor = theirs
    chat = draw_chat(rng_for("test", seed), "test", LIMITS)
    encoder = Encoder(tokenizer)
    encoded = encoder.encode(chat)
    batch = encoder.batch([encoded])

    text = processor.apply_chat_template(chat.messages(), tokenize=False)
    pictures = [render(scene) for scene in chat.scenes]
    inputs = processor(text=[text], images=[Image.fromarray(picture) for picture in pictures], return_tensors="pt")
    assert inputs["input_ids"][0].tolist() == encoded.ids
    pixels = inputs["pixel_values"].view(-1, 3, 2, 196)[:, :, 0].reshape(-1, 588)
    assert torch.equal(pixels, torch.from_numpy(np.concatenate([patches_of(picture) for picture in pictures])))

    with torch.inference_mode():
        positions, _ = network.model.get_rope_index(
            inputs["input_ids"],
            mm_token_type_ids=inputs["mm_token_type_ids"],
            image_grid_thw=inputs["image_grid_thw"],
            attention_mask=inputs["attention_mask"],
        )
        assert torch.equal(positions[:, 0], batch.positions[:, 0])
        expected = network(**inputs).logits[0, batch.answer_at]
        hidden = forward(model, batch, embed_images(model, batch))
        got = model.logits(hidden)
    assert float(expected.abs().max()) > 1
    assert torch.allclose(got, expected, atol=0.02 * float(expected.abs().max()), rtol=0)
    assert torch.equal(got.argmax(-1), expected.argmax(-1))


def test_a_batch_of_several_chats_gives_each_what_it_gets_alone(model: Model, tokenizer: Tokenizer) -> None:
    encoder = Encoder(tokenizer)
    rng = rng_for("test", 9)
    chats = [encoder.encode(draw_chat(rng, "test", LIMITS)) for _ in range(3)]
    with torch.inference_mode():
        together = encoder.batch(chats)
        hidden = forward(model, together, embed_images(model, together))
        alone = [encoder.batch([chat]) for chat in chats]
        parts = [forward(model, one, embed_images(model, one)) for one in alone]
    assert torch.allclose(hidden, torch.cat(parts), atol=1e-3)


def test_gradients_of_the_vision_tower_are_right(tokenizer: Tokenizer) -> None:
    torch.manual_seed(0)
    shape = Shape(
        vocabulary=64,
        hidden=16,
        vision_hidden=16,
        vision_layers=2,
        vision_heads=2,
        vision_intermediate=8,
        full_attention=(1,),
    )
    tower = Model(shape).vision.double()
    patches = torch.randn(8 * 10 + 4 * 8, 588, dtype=torch.double, requires_grad=True)
    weight = torch.randn(28, 16, dtype=torch.double)

    def value(x: torch.Tensor) -> torch.Tensor:
        return (tower(x, [(8, 10), (4, 8)]) * weight).sum()

    value(patches).backward()
    assert patches.grad is not None
    direction = torch.randn_like(patches)
    step = 1e-3
    with torch.no_grad():
        numeric = (value(patches + step * direction) - value(patches - step * direction)) / (2 * step)
    assert float((patches.grad * direction).sum()) == pytest.approx(float(numeric), rel=5e-3)


def test_the_weights_survive_the_way_to_hugging_face_and_back(model: Model) -> None:
    again = from_hugging_face(to_hugging_face(model), model.shape)
    for (name, before), after in zip(model.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.allclose(before, after, atol=1e-7), name
