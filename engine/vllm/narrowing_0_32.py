"""Names of vLLM 0.32's attention on a CPU, for layers that compute fewer rows: `image_kv/narrowing.py`.

They are apart from those of `core_0_32.py` because only an engine with a profile of ratios by layer needs them. Like
there, what moved is said at start.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor
from vllm import _custom_ops, envs
from vllm.forward_context import get_forward_context

from engine.vllm.core_0_32 import missing_of, refuse_moved

__all__ = ["attention_as", "attention_of", "check", "narrowed"]

# All that vLLM's attention on a CPU is told of a batch, and what it wants for its own planning.
_CPU_ATTENTION = {
    "num_actual_tokens",
    "max_query_len",
    "query_start_loc",
    "max_seq_len",
    "seq_lens",
    "block_table",
    "slot_mapping",
    "scheduler_metadata",
    "causal",
    "dynamic_causal",
    "use_sdpa_prefill",
    "num_decode_tokens",
    "sdpa_attn_masks",
    "sdpa_start_loc",
    "encoder_cache",
}
_CPU_SCHEDULING = {
    "num_reqs",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "seq_lens",
    "dtype",
    "query_start_loc",
    "causal",
    "sliding_window_size",
    "isa",
    "enable_kv_split",
    "dynamic_causal",
    "kv_cache_dtype",
}
# Of an attention layer that has its cache.
_OF_A_LAYER = (
    "layer_name",
    "num_heads",
    "num_kv_heads",
    "head_size",
    "kv_cache.dtype",
    "kv_cache_dtype",
    "isa",
    "impl.sliding_window",
)


def check(layers: Sequence[Any]) -> None:
    """Say what of vLLM's attention on a CPU is not as layers that drop rows expect.

    Args:
        layers: attention layers of the loaded model, with their cache.

    Raises:
        ConfigError: a name or a parameter moved, came or went; names all of them.
    """
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadata

    known = {field.name for field in dataclasses.fields(CPUAttentionMetadata)}
    moved = [f"CPUAttentionMetadata.{name}" for name in sorted(known ^ _CPU_ATTENTION)]
    scheduling = set(inspect.signature(_custom_ops.cpu_attn_get_scheduler_metadata).parameters)
    moved += [f"cpu_attn_get_scheduler_metadata({name})" for name in sorted(scheduling ^ _CPU_SCHEDULING)]
    moved += sorted({f"Attention.{part}" for layer in layers for part in missing_of(layer, _OF_A_LAYER)})
    refuse_moved(moved, "remove profile")


def attention_of(layer: Any) -> tuple[Any, Tensor]:
    """What an attention layer is told of the forward pass that runs: its metadata, and the slots of all rows."""
    context = get_forward_context()
    metadata, slots = cast("Any", context.attn_metadata), cast("Any", context.slot_mapping)
    return metadata[layer.layer_name], slots[layer.layer_name]


@contextmanager
def attention_as(layer: Any, metadata: Any, slots: Tensor) -> Generator[None]:
    """Within it an attention layer is told this."""
    context, name = get_forward_context(), layer.layer_name
    told, place = cast("Any", context.attn_metadata), cast("Any", context.slot_mapping)
    before = told[name], place[name]
    told[name], place[name] = metadata, slots
    try:
        yield
    finally:
        told[name], place[name] = before


def narrowed(layer: Any, metadata: Any, slots: Tensor, dropped: Sequence[int]) -> Any:
    """Attention's metadata on a CPU without the last rows of some requests.

    As `CPUAttentionMetadataBuilder.build` makes it. Requests without a row are left out.

    Args:
        layer: vLLM's attention layer.
        metadata: with all rows.
        slots: of the rows that are left.
        dropped: for each request how many of its rows are not.
    """
    gone = torch.tensor(dropped, dtype=metadata.seq_lens.dtype)
    requests = len(dropped)
    counts = metadata.query_start_loc[1 : requests + 1] - metadata.query_start_loc[:requests] - gone
    stays = counts > 0
    starts = torch.cat((counts.new_zeros(1), counts[stays].cumsum(0, dtype=counts.dtype)))
    lengths = (metadata.seq_lens[:requests] - gone)[stays]
    if not len(lengths):
        return None
    scheduling = _custom_ops.cpu_attn_get_scheduler_metadata(
        num_reqs=len(lengths),
        num_heads=layer.num_heads,
        num_kv_heads=layer.num_kv_heads,
        head_dim=layer.head_size,
        seq_lens=lengths,
        dtype=layer.kv_cache.dtype,
        query_start_loc=starts,
        causal=metadata.causal,
        sliding_window_size=layer.impl.sliding_window,
        isa=layer.isa,
        enable_kv_split=envs.VLLM_CPU_ATTN_SPLIT_KV,
        kv_cache_dtype=layer.kv_cache_dtype,
    )
    return dataclasses.replace(
        metadata,
        num_actual_tokens=len(slots),
        max_query_len=int(counts.max()),
        query_start_loc=starts,
        max_seq_len=int(lengths.max()),
        seq_lens=lengths,
        block_table=metadata.block_table[:requests][stays],
        slot_mapping=slots,
        scheduler_metadata=scheduling,
    )
