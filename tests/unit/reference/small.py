"""A small random model, and prompts of text and images for it."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from engine.reference.qwen2_5_vl import Model, Shape
from engine.reference.reuse import KeysValues
from engine.reference.selection import Layout

SHAPE = Shape(
    vocabulary=64,
    hidden=64,
    layers=4,
    heads=4,
    kv_heads=2,
    intermediate=48,
    rope_sections=(2, 3, 3),
    rope_theta=10_000.0,
    vision_hidden=16,
    vision_layers=1,
    vision_heads=2,
    vision_intermediate=8,
    full_attention=(0,),
)


def small_model() -> Model:
    """Seeded, with no weight at zero and attention that is not flat."""
    torch.manual_seed(7)
    made = Model(SHAPE)
    for name, parameter in made.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=0.2)
        elif parameter.ndim == 1:
            nn.init.normal_(parameter, 0.5, 0.3)
        else:
            nn.init.normal_(parameter, std=1.5 * parameter.shape[-1] ** -0.5)
    # With weights of one sign a token is the most likely one after itself.
    nn.init.normal_(made.norm.weight)
    return made.eval().requires_grad_(False)


@contextmanager
def one_torch_thread() -> Generator[None]:
    """Several threads on such small matrices wait for each other most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass(frozen=True, slots=True)
class SmallPrompt:
    """An embedded prompt."""

    x: Tensor
    positions: Tensor
    layout: Layout


def small_prompt(seed: int, parts: Sequence[int | tuple[int, int, int]]) -> SmallPrompt:
    """A prompt of parts: so many tokens of text, or (rows, columns, seed) of an image that has features by its seed."""
    texts = torch.Generator().manual_seed(seed)
    x: list[Tensor] = []
    positions: list[Tensor] = []
    images: list[tuple[int, int]] = []
    at = tokens = 0
    for part in parts:
        if isinstance(part, int):
            x.append(torch.randn(part, SHAPE.hidden, generator=texts))
            positions.append((at + torch.arange(part)).expand(3, -1))
            at, tokens = at + part, tokens + part
            continue
        rows, columns, picture = part
        x.append(torch.randn(rows * columns, SHAPE.hidden, generator=torch.Generator().manual_seed(picture)))
        row = torch.arange(rows).repeat_interleave(columns)
        positions.append(at + torch.stack((torch.zeros_like(row), row, torch.arange(columns).repeat(rows))))
        images.append((tokens, tokens + rows * columns))
        at, tokens = at + max(rows, columns), tokens + rows * columns
    return SmallPrompt(torch.cat(x), torch.cat(positions, 1), Layout(tokens, tuple(images)))


def nothing_held(prompt: SmallPrompt) -> KeysValues:
    """Keys and values that spoil whatever reads them."""
    empty = torch.full((SHAPE.layers, 1, SHAPE.kv_heads, prompt.layout.tokens, SHAPE.head), 1e3)
    return KeysValues(empty, empty.clone())
