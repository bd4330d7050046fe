"""Turns as token ids with tags, for analysers of prefix caches such as prefixlens.

All images have the same placeholder token, so ids alone would make different pictures equal. In `token_ids` an image's
tokens are therefore one number made from its image_id, from 2**31 up, where no vocabulary reaches; `spans` says where,
and which token stood there.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from blake3 import blake3

from metrics.exports.tokens import PromptTokens
from metrics.exports.turns import ExportedTurn

_IMAGES = 2**31
_FOLDED = 2**30


def token_line(turn: ExportedTurn, prompt: PromptTokens) -> dict[str, Any]:
    """One turn. `spans` covers the prompt without gaps; it is null where the images' places cannot be told, and their
    tokens then stand as the engine has them."""
    record = turn.record
    tags = {"policy": turn.policy, "conversation": turn.conversation, "turn": str(turn.number), "part": "prompt"}
    return {
        "request_id": turn.request_id,
        "timestamp": turn.milliseconds,
        "tenant": turn.tenant,
        "model": "" if record is None else record.model,
        "tags": tags,
        "input_length": len(prompt.ids),
        "output_length": None if record is None else record.completion_tokens,
        "token_ids": content_ids(prompt),
        "spans": _spans(prompt),
    }


def reply_line(turn: ExportedTurn, whole: PromptTokens) -> dict[str, Any]:
    """What the engine's cache holds once it has answered: the prompt, and the reply behind it. Nobody asked for it, so
    it has a tag of its own, and only `part=prompt` is to be compared with what an engine reports."""
    line = token_line(turn, whole)
    return {**line, "request_id": f"{turn.request_id}-reply", "tags": {**line["tags"], "part": "reply"}}


def content_ids(prompt: PromptTokens) -> list[int]:
    """Ids that are equal where the prompt is: a number for each image in place of the placeholders. All fit 32 bits."""
    ids = prompt.ids if max(prompt.ids, default=0) < _FOLDED else [_fold(id) for id in prompt.ids]
    ids = list(ids)
    for image in prompt.images or ():
        ids[image.start : image.start + image.tokens] = [image_number(image.image_id)] * image.tokens
    return ids


@lru_cache(maxsize=4096)
def image_number(image_id: str) -> int:
    """The number that stands for an image's tokens."""
    return _IMAGES + int(image_id, 16) % _IMAGES


@lru_cache(maxsize=65_536)
def _fold(id: int) -> int:
    """The fake engine's own tokenizer has ids of up to 48 bits; other programs take 32."""
    return id if id < _FOLDED else _FOLDED + int.from_bytes(blake3(id.to_bytes(8, "big")).digest()[:4]) % _FOLDED


def _spans(prompt: PromptTokens) -> list[dict[str, Any]] | None:
    if prompt.images is None:
        return None
    spans: list[dict[str, Any]] = []
    at = 0
    for image in prompt.images:
        if image.start > at:
            spans.append({"type": "text", "start": at, "end": image.start})
        at = image.start + image.tokens
        placeholder = prompt.ids[image.start]
        spans.append(
            {"type": "image", "start": image.start, "end": at, "image_id": image.image_id, "placeholder": placeholder}
        )
    if at < len(prompt.ids):
        spans.append({"type": "text", "start": at, "end": len(prompt.ids)})
    return spans


class BlockIds:
    """Blocks of prompts as small numbers: equal where the block and everything before it are equal, and only within
    one tenant and model, as in the engine's prefix cache.

    Args:
        block_tokens: tokens in a block; the last one of a prompt may hold fewer.
    """

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._numbers: dict[bytes, int] = {}

    def of(self, salt: str, ids: Sequence[int]) -> list[int]:
        """The numbers of a prompt's blocks. `salt`: what is never shared with others."""
        digest, numbers = blake3(salt.encode()).digest(), list[int]()
        for start in range(0, len(ids), self.block_tokens):
            digest = blake3(digest + array("Q", ids[start : start + self.block_tokens]).tobytes()).digest()
            numbers.append(self._numbers.setdefault(digest, len(self._numbers)))
        return numbers
