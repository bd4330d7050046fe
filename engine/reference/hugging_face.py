"""The reference model's parameters under Hugging Face's names, and back."""

# torch leaves much of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from engine.reference.qwen2_5_vl import CHANNELS, MERGE, PATCH, TEMPORAL, Model, Shape

_TEXT = (
    ("input_layernorm.weight", "norm1.weight"),
    ("post_attention_layernorm.weight", "norm2.weight"),
    ("self_attn.o_proj.weight", "proj.weight"),
    ("mlp.down_proj.weight", "down.weight"),
)
_VISION = (
    ("norm1.weight", "norm1.weight"),
    ("norm2.weight", "norm2.weight"),
    ("attn.qkv.weight", "qkv.weight"),
    ("attn.qkv.bias", "qkv.bias"),
    ("attn.proj.weight", "proj.weight"),
    ("attn.proj.bias", "proj.bias"),
    ("mlp.down_proj.weight", "down.weight"),
    ("mlp.down_proj.bias", "down.bias"),
)
_WHOLE = (
    ("model.embed_tokens.weight", "embed.weight"),
    ("model.norm.weight", "norm.weight"),
    ("visual.merger.ln_q.weight", "vision.norm.weight"),
    ("visual.merger.mlp.0.weight", "vision.merge1.weight"),
    ("visual.merger.mlp.0.bias", "vision.merge1.bias"),
    ("visual.merger.mlp.2.weight", "vision.merge2.weight"),
    ("visual.merger.mlp.2.bias", "vision.merge2.bias"),
)


def to_hugging_face(model: Model) -> dict[str, Tensor]:
    """The state of `Qwen2_5_VLForConditionalGeneration` with the same weights."""
    own, shape = model.state_dict(), model.shape
    state = {theirs: own[ours] for theirs, ours in _WHOLE}
    patch = own["vision.patch.weight"].view(shape.vision_hidden, CHANNELS, 1, PATCH, PATCH)
    state["visual.patch_embed.proj.weight"] = (patch / TEMPORAL).expand(-1, -1, TEMPORAL, -1, -1).contiguous()
    for layer in range(shape.vision_layers):
        here, there = f"vision.blocks.{layer}.", f"visual.blocks.{layer}."
        state |= {there + theirs: own[here + ours] for theirs, ours in _VISION}
        for part in ("weight", "bias"):
            gate, up = own[f"{here}gate_up.{part}"].chunk(2)
            state |= {f"{there}mlp.gate_proj.{part}": gate, f"{there}mlp.up_proj.{part}": up}
    for layer in range(shape.layers):
        here, there = f"blocks.{layer}.", f"model.layers.{layer}."
        state |= {there + theirs: own[here + ours] for theirs, ours in _TEXT}
        gate, up = own[f"{here}gate_up.weight"].chunk(2)
        state |= {f"{there}mlp.gate_proj.weight": gate, f"{there}mlp.up_proj.weight": up}
        for part in ("weight", "bias"):
            sizes = [shape.heads * shape.head, shape.kv_heads * shape.head, shape.kv_heads * shape.head]
            for name, piece in zip("qkv", own[f"{here}qkv.{part}"].split(sizes), strict=True):
                state[f"{there}self_attn.{name}_proj.{part}"] = piece
    return {name: tensor.detach().clone().contiguous() for name, tensor in state.items()}


def from_hugging_face(state: Mapping[str, Tensor], shape: Shape) -> Model:
    """A model with a checkpoint's weights.

    Raises:
        KeyError: the checkpoint lacks a weight.
    """
    own = {ours: state[theirs] for theirs, ours in _WHOLE}
    own["vision.patch.weight"] = state["visual.patch_embed.proj.weight"].float().sum(2).flatten(1)
    for layer in range(shape.vision_layers):
        here, there = f"vision.blocks.{layer}.", f"visual.blocks.{layer}."
        own |= {here + ours: state[there + theirs] for theirs, ours in _VISION}
        for part in ("weight", "bias"):
            own[f"{here}gate_up.{part}"] = torch.cat(
                (state[f"{there}mlp.gate_proj.{part}"], state[f"{there}mlp.up_proj.{part}"])
            )
    for layer in range(shape.layers):
        here, there = f"blocks.{layer}.", f"model.layers.{layer}."
        own |= {here + ours: state[there + theirs] for theirs, ours in _TEXT}
        own[f"{here}gate_up.weight"] = torch.cat(
            (state[f"{there}mlp.gate_proj.weight"], state[f"{there}mlp.up_proj.weight"])
        )
        for part in ("weight", "bias"):
            own[f"{here}qkv.{part}"] = torch.cat([state[f"{there}self_attn.{name}_proj.{part}"] for name in "qkv"])
    model = Model(shape)
    model.load_state_dict(own)
    return model


def config_of(shape: Shape, ids: Mapping[str, int], *, max_position_tokens: int) -> dict[str, Any]:
    """Arguments of `Qwen2_5_VLConfig` for a shape. `ids` are the special tokens' ids."""
    return {
        "text_config": {
            "vocab_size": shape.vocabulary,
            "hidden_size": shape.hidden,
            "intermediate_size": shape.intermediate,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "max_position_embeddings": max_position_tokens,
            "rms_norm_eps": shape.epsilon,
            "rope_theta": shape.rope_theta,
            "rope_scaling": {"type": "mrope", "rope_type": "default", "mrope_section": list(shape.rope_sections)},
            "tie_word_embeddings": True,
            "bos_token_id": ids["<|endoftext|>"],
            "eos_token_id": ids["<|im_end|>"],
        },
        "vision_config": {
            "depth": shape.vision_layers,
            "hidden_size": shape.vision_hidden,
            "intermediate_size": shape.vision_intermediate,
            "num_heads": shape.vision_heads,
            "out_hidden_size": shape.hidden,
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": TEMPORAL,
            "window_size": shape.window,
            "fullatt_block_indexes": list(shape.full_attention),
        },
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "tie_word_embeddings": True,
    }
