"""The KV of a prompt's images, taken from other contexts and put where they stand in the prompt."""

# torch leaves much of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from torch import Tensor

from engine.reference.qwen2_5_vl import Model
from engine.reference.reuse import KeysValues, exact
from engine.vllm.image_kv.rotation import RopeTable, rotate, shift_between
from metrics.eval.cases import Prompt


@dataclass(frozen=True, slots=True)
class Context:
    """A context that was prefilled: its prompt up to the end of its last image, and the KV of that."""

    prompt: Prompt
    cache: KeysValues


def prefill_context(model: Model, prompt: Prompt, features: Sequence[Tensor]) -> Context:
    """Prefill a donor, exactly. What stands after its last image does not change the KV of its images."""
    tokens = prompt.images[-1][1]
    cut = Prompt(prompt.ids[:tokens], prompt.positions[:, :tokens], prompt.images, prompt.pictures)
    return Context(cut, exact(model, cut.embedded(model, features), cut.positions).cache)


def place(prompt: Prompt, tokens: int, contexts: Sequence[Context], table: RopeTable | None) -> KeysValues:
    """KV [layers, 1, KV heads, tokens, head] with the rows of all images in place and zero elsewhere.

    Args:
        prompt: where its images stand.
        tokens: of what is made, the prompt's at least.
        contexts: hold each image once; other images of theirs do not matter.
        table: turns keys to where they stand; None leaves them as they were.
    """
    layers, _, heads, _, head = contexts[0].cache.keys.shape
    keys = contexts[0].cache.keys.new_zeros(layers, 1, heads, tokens, head)
    values = keys.clone()
    places = dict(zip(prompt.pictures, prompt.images, strict=True))
    for context in contexts:
        for picture, (first, end) in zip(context.prompt.pictures, context.prompt.images, strict=True):
            if picture not in places:
                continue
            to_first, to_end = places[picture]
            old, new = context.prompt.positions[:, first:end], prompt.positions[:, to_first:to_end]
            delta = shift_between(old, new)
            assert delta is not None, "an image keeps its grid wherever it stands"
            taken = context.cache.keys[..., first:end, :]
            if table is not None:
                taken = rotate(taken.transpose(-3, -2), old, delta, table).transpose(-3, -2)
            keys[..., to_first:to_end, :] = taken
            values[..., to_first:to_end, :] = context.cache.values[..., first:end, :]
    return KeysValues(keys, values)


def common_prefix(prompt: Prompt, other: Prompt) -> int:
    """Tokens from the start on that both prompts share, with the same pictures: what a prefix cache could read."""
    same = int((prompt.ids[: len(other.ids)] == other.ids[: len(prompt.ids)]).int().cumprod(0).sum())
    ours = zip(prompt.images, prompt.pictures, strict=True)
    theirs = zip(other.images, other.pictures, strict=True)
    equal = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False)))
    # A picture that is another one, or of another size, ends it where it begins.
    unequal = prompt.images[equal][0] if equal < len(prompt.images) else len(prompt.ids)
    return min(same, unequal)


def with_prefix(prefix: int, tokens: int, cache: KeysValues) -> KeysValues:
    """The KV of a prefix, zero after it, for `tokens` tokens."""
    layers, _, heads, _, head = cache.keys.shape
    keys = cache.keys.new_zeros(layers, 1, heads, tokens, head)
    values = keys.clone()
    keys[..., :prefix, :] = cache.keys[..., :prefix, :]
    values[..., :prefix, :] = cache.values[..., :prefix, :]
    return KeysValues(keys, values)
