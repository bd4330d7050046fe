"""How a training begins: weights that match words with pictures before anything was learned."""

# torch leaves much of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine.demo_model.training.batches import TARGET_SIZES, TARGET_WORDS, Encoder
from engine.demo_model.training.losses import Heads
from engine.reference.qwen2_5_vl import Model, Shape


@torch.no_grad()
def align_words(model: Model, heads: Heads, encoder: Encoder) -> None:
    """Give words the directions in which the vision tower says what they name.

    A decoder then starts with words and pictures that match: the query for a red thing is near its image token, and
    what that token says is near the answer's word.
    """
    length = float(model.embed.weight.norm(dim=-1).mean())
    parts = heads.cells.weight.split(TARGET_SIZES)
    for part, names in zip(parts, TARGET_WORDS, strict=True):
        centred = part - part.mean(0)
        for word in dict.fromkeys(word for name in names for word in name.split()):
            rows = [row for row, name in zip(centred[-len(names) :], names, strict=True) if word in name.split()]
            direction = torch.stack(rows).mean(0)
            for token in encoder.word(word):
                model.embed.weight[token] = direction / direction.norm() * length


def initialize(model: Model) -> None:
    """Random weights, small where a layer adds to what it was given."""
    for name, parameter in model.named_parameters():
        if name == "embed.weight":
            nn.init.normal_(parameter, std=0.1)
        elif parameter.ndim == 2:
            nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
            if name.startswith("blocks") and name.endswith("qkv.weight"):
                _match_keys(parameter, model.shape)
            if name.endswith(("proj.weight", "down.weight")):
                parameter.data *= 0.3
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)


def _match_keys(parameter: Tensor, shape: Shape) -> None:
    """Let each key look for what its queries are: a token attends to alike ones before anything was learned."""
    queries, keys = shape.heads * shape.head, shape.kv_heads * shape.head
    per_key = shape.heads // shape.kv_heads
    heads = parameter.data[:queries].view(shape.heads, shape.head, -1)
    parameter.data[queries : queries + keys] = heads[::per_key].reshape(keys, -1)
