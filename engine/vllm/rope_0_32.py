"""Names of vLLM 0.32's rotary embeddings, for keys that are moved: `image_kv/rotation.py`.

They are apart from those of `core_0_32.py` because only a worker that has a model needs them. Like there, what moved is
said at start: of the module by `check`, and of the model's own embedding when it is tried.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers import rotary_embedding
from vllm.model_executor.layers.rotary_embedding import get_rope
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding
from vllm.model_executor.layers.rotary_embedding.llama3_rope import Llama3RotaryEmbedding
from vllm.model_executor.layers.rotary_embedding.mrope import MRotaryEmbedding
from vllm.model_executor.layers.rotary_embedding.yarn_scaling_rope import YaRNScalingRotaryEmbedding

from context.errors import ConfigError
from engine.vllm.core_0_32 import refuse_moved
from engine.vllm.image_kv.rotation import RopeTable, rotate

__all__ = ["MRotaryEmbedding", "RotaryEmbedding", "check", "get_rope", "rope_table", "rotary_embeddings"]

_ONE_TABLE = (RotaryEmbedding, MRotaryEmbedding, YaRNScalingRotaryEmbedding, Llama3RotaryEmbedding)
_PARTS = ("cos_sin_cache", "rotary_dim", "head_size", "is_neox_style", "forward_native")
_PROBED_TOKENS = 8
# In steps of the dtype: the table, the key in the cache, the moved key and the one it is compared with are rounded.
_ROUNDINGS = 8.0


def check() -> None:
    """Say what of vLLM's rotary embeddings is not as moving keys expects.

    Raises:
        ConfigError: where the embeddings of a loaded model are kept has moved.
    """
    if not isinstance(getattr(rotary_embedding, "_ROPE_DICT", None), dict):
        refuse_moved(["rotary_embedding._ROPE_DICT"], "turn reuse off")


def rotary_embeddings() -> list[Any]:
    """Those that the loaded model made, its vision tower's among them."""
    return list(rotary_embedding._ROPE_DICT.values())  # pyright: ignore[reportPrivateUsage]


def rope_table(module: Any) -> RopeTable:
    """The table of a model's rotary embedding, after a trial that keys turned by it are the embedding's own.

    Raises:
        ConfigError: the embedding is none whose keys can be turned, or vLLM's is not as it was; says which.
    """
    name = type(module).__name__
    missing = [part for part in _PARTS if not hasattr(module, part)]
    # A subclass may read another table, or more than one.
    if type(module) not in _ONE_TABLE or missing:
        reason = f"lacks {missing}" if missing else "is not one that this release knows"
        raise _refused(f"the model's rotary embedding {name} {reason}")
    sections = getattr(module, "mrope_section", None)
    table = RopeTable(
        module.cos_sin_cache,
        None if sections is None else (int(sections[0]), int(sections[1]), int(sections[2])),
        bool(getattr(module, "mrope_interleaved", False)),
        bool(module.is_neox_style),
    )
    if not _turns(module, table):
        raise _refused(f"the model's rotary embedding {name} gives other keys than its table")
    return table


def _turns(module: Any, table: RopeTable) -> bool:
    device, dtype = table.cos_sin.device, table.cos_sin.dtype
    size = int(module.head_size)
    keys = torch.linspace(-1, 1, _PROBED_TOKENS * size, device=device).to(dtype).view(_PROBED_TOKENS, size)
    places = torch.arange(_PROBED_TOKENS, device=device)
    positions = places if table.sections is None else torch.stack([places * 0, places // 3, places % 3])
    delta = len(table.cos_sin) - _PROBED_TOKENS
    here, there = (
        # Some embeddings write in place.
        module.forward_native(at, torch.zeros_like(keys), keys.clone())[1].view(_PROBED_TOKENS, 1, size)
        for at in (positions, positions + delta)
    )
    # A magnitude of the table is one of the keys too.
    allowed = _ROUNDINGS * torch.finfo(dtype).eps * max(1.0, float(there.abs().max()))
    return float((rotate(here, positions, delta, table) - there).abs().max()) <= allowed


def _refused(reason: str) -> ConfigError:
    return ConfigError("settings", "engine.vllm.model", f"{reason}; its images' KV cannot be moved, so turn reuse off")
