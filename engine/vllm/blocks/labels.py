"""What the tokens of a block are: text, an image's, or both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

Modality = Literal["text", "image", "mixed"]


class Label(NamedTuple):
    """What a block holds.

    Attributes:
        modality: what its tokens are.
        image: identifier of the image that most of its image tokens belong to; None where it holds text alone.
        offset: which of that image's tokens is the block's first one of it, from 0.
        image_tokens: how many of its tokens belong to images, of whichever.
    """

    modality: Modality
    image: str | None
    offset: int
    image_tokens: int


TEXT = Label("text", None, 0, 0)


def labels_of(features: Sequence[Any], first_block: int, last_block: int, block_tokens: int) -> Iterator[Label]:
    """The labels of blocks of a request, `last_block` not among them.

    Args:
        features: vLLM's `Request.mm_features`, in the order of their places. Tokens between an image's embeddings
            (separators of rows) count as the image's.
        first_block: counted from the start of the request.
        last_block: one behind the last.
        block_tokens: tokens in a block.
    """
    at, count = 0, len(features)
    for start in range(first_block * block_tokens, last_block * block_tokens, block_tokens):
        end = start + block_tokens
        # Behind this one no block reaches into it.
        while at < count and _end(features[at]) <= start:
            at += 1
        if at == count or features[at].mm_position.offset >= end:
            yield TEXT
        else:
            yield _label(features, at, start, end)


def _label(features: Sequence[Any], at: int, start: int, end: int) -> Label:
    total = most = offset = 0
    image: str | None = None
    for feature in features[at:]:
        begin = feature.mm_position.offset
        if begin >= end:
            break
        tokens = min(end, _end(feature)) - max(start, begin)
        total += tokens
        if tokens > most:
            most, image, offset = tokens, feature.identifier, max(0, start - begin)
    return Label("image" if total == end - start else "mixed", image, offset, total)


def _end(feature: Any) -> int:
    place = feature.mm_position
    return int(place.offset) + int(place.length)
