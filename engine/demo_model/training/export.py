"""Trained weights as a checkpoint folder that transformers and vLLM load."""

# torch leaves much of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer

from engine import torchvision_ops
from engine.demo_model.tokenizer import write_preprocessor, write_tokenizer
from engine.reference.hugging_face import config_of, to_hugging_face
from engine.reference.qwen2_5_vl import Model

MAX_POSITION_TOKENS = 32_768
MAX_IMAGE_TOKENS = 1280


def export(model: Model, tokenizer: Tokenizer, folder: Path) -> Path:
    """Write the model in bfloat16 with its tokenizer, template and preprocessing; gives the weights' file."""
    torchvision_ops.declare_missing()
    from safetensors.torch import save_file
    from transformers import GenerationConfig, Qwen2_5_VLConfig

    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder, tokenizer, max_tokens=MAX_POSITION_TOKENS)
    write_preprocessor(folder, max_image_tokens=MAX_IMAGE_TOKENS)
    ids = tokenizer.get_vocab()
    config = Qwen2_5_VLConfig(**config_of(model.shape, ids, max_position_tokens=MAX_POSITION_TOKENS))
    config.architectures = ["Qwen2_5_VLForConditionalGeneration"]
    config.dtype = torch.bfloat16
    config.save_pretrained(folder)
    GenerationConfig(eos_token_id=ids["<|im_end|>"], pad_token_id=ids["<|endoftext|>"]).save_pretrained(folder)
    weights = folder / "model.safetensors"
    state = {name: tensor.to(torch.bfloat16) for name, tensor in to_hugging_face(model).items()}
    save_file(state, str(weights), metadata={"format": "pt"})
    # Whoever runs the gateway reads it, not only who trained it.
    weights.chmod(0o644)
    return weights
