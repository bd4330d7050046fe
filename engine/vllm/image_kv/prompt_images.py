"""The images of a prompt as the pool needs them: their names, and where they stand.

With M-RoPE an image takes as many positions as its longest side, and as many tokens as its sides multiplied.

Source: vLLM 0.32, vllm/model_executor/models/qwen2_5_vl.py::get_mrope_input_positions and the same of qwen2_vl.py,
qwen3_vl.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, cast

from engine.vllm.image_kv.messages import ImageName

# Families of which this release knows how images stand on M-RoPE's axes.
MROPE_FAMILIES = (
    "Qwen2VLForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
    "Qwen3VLForConditionalGeneration",
    "Qwen3VLMoeForConditionalGeneration",
)
OPT_IN = "stillframe"
MODE = "position_independent"


@dataclass(frozen=True, slots=True)
class PromptImage:
    """Tokens [first, end) of a prompt; `position` is where the first of them stands for the rotary embedding."""

    name: ImageName
    first: int
    tokens: int
    position: int

    @property
    def end(self) -> int:
        """One behind its last token."""
        return self.first + self.tokens


def images_of(request: Any, merge: int | None) -> tuple[PromptImage, ...]:
    """The images of a request that the pool can keep and give, in their order.

    Left out are images whose embeddings are not their tokens one by one, and all of requests of adapters, of embeddings
    and of streamed input.

    Args:
        request: vLLM's.
        merge: patches of a side that make one token, for models with M-RoPE; None for others.
    """
    if request.prompt_embeds is not None or request.lora_request is not None or request.resumable:
        return ()
    tenant = request.cache_salt or ""
    images: list[PromptImage] = []
    saved = 0
    for feature in request.mm_features:
        place = feature.mm_position
        first, tokens = int(place.offset), int(place.length)
        grid = (1, 1, tokens) if merge is None else _grid(feature, merge)
        if merge is not None and (grid is None or prod(grid) != tokens):
            # Where images behind a video stand is not known here.
            break
        if grid is not None and feature.modality == "image" and int(place.get_num_embeds()) == tokens:
            images.append(PromptImage(ImageName(tenant, feature.identifier, grid), first, tokens, first - saved))
        if merge is not None and grid is not None:
            saved += tokens - max(grid)
    return tuple(images)


def _grid(feature: Any, merge: int) -> tuple[int, int, int] | None:
    if feature.modality != "image" or feature.data is None or "image_grid_thw" not in feature.data:
        return None
    frames, rows, columns = (int(side) for side in feature.data["image_grid_thw"].data.flatten())
    return frames, rows // merge, columns // merge


def wants_profile(request: Any) -> bool:
    """Whether the ratio that a request wants is a mean over the layers: `"profile": true` beside it."""
    asked = cast("Mapping[str, Any]", request.kv_transfer_params or {}).get(OPT_IN)
    return isinstance(asked, Mapping) and cast("Mapping[str, Any]", asked).get("profile") is True


def wanted_ratio(request: Any) -> float | None:
    """The share of each image's tokens that a request wants computed; None when it wants all.

    A request asks by its transfer parameters: `{"stillframe": {"mode": "position_independent", "ratio": 0.05}}`.
    """
    params = cast("Mapping[str, Any]", request.kv_transfer_params or {})
    asked = params.get(OPT_IN)
    if not isinstance(asked, Mapping) or cast("Mapping[str, Any]", asked).get("mode") != MODE:
        return None
    ratio = cast("Mapping[str, Any]", asked).get("ratio")
    sampling = request.sampling_params
    # Log-probabilities of tokens that are not computed cannot be told.
    if sampling is None or sampling.prompt_logprobs is not None or request.pooling_params is not None:
        return None
    return float(ratio) if isinstance(ratio, (int, float)) and 0 <= ratio < 1 else None
