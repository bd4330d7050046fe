"""What a training asks of the model: replies, where the answer is seen, and what image tokens know."""

# torch leaves much of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.demo_model.training.batches import TARGET_SIZES, Batch, image_groups, join_patches
from engine.reference.qwen2_5_vl import Model, Trace

MOST_PATCHES = 12_000


class Heads(nn.Module):
    """Targets that only training has: what an image token knows, and which image of its chat it belongs to."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.cells = nn.Linear(hidden, sum(TARGET_SIZES))
        self.number = nn.Linear(hidden, 4)


def embed_images(model: Model, batch: Batch) -> Tensor:
    """Features of every image token of a batch, in order: (image tokens, hidden)."""
    found: list[Tensor | None] = [None] * len(batch.scenes)
    for group in image_groups(batch.scenes, MOST_PATCHES):
        scenes = [batch.scenes[number] for number in group]
        features = model.vision(*join_patches(scenes))
        for number, part in zip(group, features.split([scene.tokens for scene in scenes]), strict=True):
            found[number] = part
    return torch.cat([part for part in found if part is not None])


def forward(model: Model, batch: Batch, features: Tensor, trace: Trace | None = None) -> Tensor:
    """Hidden states where an answer's tokens are predicted: (answer tokens, hidden). `trace` is filled."""
    x = model.embed(batch.ids).to(features.dtype)
    x = x.flatten(0, 1).index_copy(0, batch.image_at, features).view(x.shape)
    return model.decode(x, batch.positions, trace).flatten(0, 1)[batch.answer_at]


def look_loss(trace: Trace, batch: Batch) -> Tensor:
    """How little of the first head's attention goes from where an answer begins to the tokens that show it, in nats.

    Attention that must be found by chance takes most of a training; shown where to look, a small model finds the rest.
    """
    assert trace.queries is not None
    assert trace.keys is not None
    rows, tokens = batch.looks_from.unbind(1)
    queries, keys = trace.queries[rows, 0, tokens].float(), trace.keys[rows, 0].float()
    scores = torch.einsum("nd,ntd->nt", queries, keys) * queries.shape[-1] ** -0.5
    scores = scores.masked_fill(torch.arange(scores.shape[1]) > tokens[:, None], float("-inf"))
    wanted = scores.masked_fill(~batch.looks_at, float("-inf"))
    return (scores.logsumexp(-1) - wanted.logsumexp(-1)).sum() / max(1, len(rows))


def cell_loss(heads: Heads, features: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, float]]:
    """How badly image tokens say what stands in their cell, and figures about it. `targets` are `cell_targets`."""
    parts = heads.cells(features).split(TARGET_SIZES, -1)
    centre = targets[:, 0] > 0
    figures: dict[str, float] = {}
    total = features.new_zeros(())
    for name, logits, target in zip(("thing", "colour", "quarter", "ground"), parts, targets.T, strict=True):
        losses = F.cross_entropy(logits, target, reduction="none")
        total = total + losses.mean() + losses[centre].mean()
        figures[name] = float((logits[centre].argmax(-1) == target[centre]).float().mean())
    figures["false"] = float((parts[0][~centre].argmax(-1) > 0).float().sum() / centre.sum())
    figures["loss"] = float(total.detach())
    return total, figures


def right_answers(logits: Tensor, batch: Batch) -> list[float]:
    """For each question 1.0 where every token of its answer is the most likely one, else 0.0."""
    wrong = torch.zeros(len(batch.kinds)).index_add_(0, batch.answer_of, (logits.argmax(-1) != batch.answers).float())
    return (wrong == 0).float().tolist()
