"""About how many prompt tokens a message takes, without a vocabulary: text by its bytes, images by Qwen-VL's rule.

For simulations, and for a gateway's first moments; what it then goes by is `context/tokens/`. Data of images is never
counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json

from context.transcript import ImagePart, parts_of
from context.visual_tokens import MAX_ASPECT_RATIO, QWEN2_5_VL, VisualShape, visual_tokens

# English prose has about four bytes a token in the usual vocabularies; a template adds a few for each message.
_BYTES_PER_TOKEN = 4
_MESSAGE_TOKENS = 4
# What a template may say of a message besides its content and its calls.
SAID_KEYS = ("name", "reasoning_content", "reasoning")


def message_tokens(wire: Mapping[str, Any], shape: VisualShape = QWEN2_5_VL) -> int:
    """An estimate of a message's prompt tokens: text by its length, images by their size."""
    total = _MESSAGE_TOKENS
    for part in parts_of(wire):
        if isinstance(part, ImagePart):
            total += _image_tokens(part, shape)
        else:
            total += sum(text_tokens(value) for key, value in part.items() if key != "type" and isinstance(value, str))
    total += sum(text_tokens(text) for key in SAID_KEYS if isinstance(text := wire.get(key), str))
    if calls := wire.get("tool_calls"):
        total += math.ceil(len(to_json(calls)) / _BYTES_PER_TOKEN)
    return total


def text_tokens(text: str) -> int:
    """An estimate of a text's tokens."""
    return math.ceil(len(text.encode("utf-8", "surrogatepass")) / _BYTES_PER_TOKEN)


def _image_tokens(part: ImagePart, shape: VisualShape) -> int:
    width, height = part.ref.width, part.ref.height
    # The processor takes no longer image; an engine that takes it counts in a way of its own.
    longest = min(width, height) * MAX_ASPECT_RATIO
    return visual_tokens(min(width, longest), min(height, longest), shape)
