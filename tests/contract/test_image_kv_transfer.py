"""What is written back to vLLM's paged cache is what its own update would have written there, whatever its layout."""

# torch and vLLM leave much of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from torch import Tensor

    from engine.vllm.image_kv.entry import Entry

pytestmark = pytest.mark.vllm

LAYERS, HEADS, SIZE, BLOCK_TOKENS, BLOCKS = 3, 2, 64, 32, 9
# Of the instruction sets that vLLM knows, the one that every machine has.
ISA = "vec"


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def layers(request: pytest.FixtureRequest, demo_checkpoint: Path) -> list[Any]:
    """vLLM's attention layers with their caches, as its CPU worker has them."""
    from engine import torchvision_ops
    from engine.vllm.environment import set_environment

    set_environment(offline=True, kv_cache_gib=1, log_level="ERROR")
    torchvision_ops.declare_missing()
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.layers.attention import Attention

    dtype, before = getattr(torch, request.param), torch.get_default_dtype()
    config = EngineArgs(str(demo_checkpoint), dtype=request.param, block_size=BLOCK_TOKENS).create_engine_config()
    torch.set_default_dtype(dtype)
    try:
        with set_current_vllm_config(config):
            made: list[Any] = [
                Attention(HEADS, SIZE, 1.0, num_kv_heads=HEADS, prefix=str(index)) for index in range(LAYERS)
            ]
    finally:
        torch.set_default_dtype(before)
    for layer in made:
        layer.kv_cache = empty_cache(dtype)
        # vLLM sets it where it makes what builds the metadata of its batches.
        layer.isa = ISA
    return made


def empty_cache(dtype: Any) -> Tensor:
    import torch

    return torch.zeros(BLOCKS, HEADS, BLOCK_TOKENS, 2 * SIZE, dtype=dtype)


def rows(count: int, dtype: Any, seed: int) -> tuple[Tensor, Tensor]:
    """Keys and values of `count` tokens in all layers."""
    import torch

    made = torch.randn(2, LAYERS, count, HEADS, SIZE, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return made[0], made[1]


def forward(layers: list[Any], keys: Tensor, values: Tensor, slots: Tensor) -> None:
    """What of a forward pass touches the cache."""
    for index, layer in enumerate(layers):
        layer.impl.do_kv_cache_update(layer, keys[index], values[index], layer.kv_cache, slots)


def entry_for(layers: list[Any], tokens: int) -> Entry:
    from engine.vllm.image_kv.entry import Entry, Layout

    dtype = str(layers[0].kv_cache.dtype).removeprefix("torch.")
    entry = Entry.empty(Layout(LAYERS, HEADS, SIZE, dtype), tokens, 0, 1.0)
    entry.memory.zero_()
    return entry


def test_slots_follow_the_blocks_of_a_request() -> None:
    from engine.vllm.image_kv.transfer import slots_of

    assert slots_of([7, 2, 5], BLOCK_TOKENS, 30, 4).tolist() == [7 * 32 + 30, 7 * 32 + 31, 2 * 32, 2 * 32 + 1]
    assert slots_of([7, 2, 5], BLOCK_TOKENS, 64, 1).tolist() == [5 * 32]
    with pytest.raises(IndexError):
        slots_of([7], BLOCK_TOKENS, 30, 4)


def test_a_donor_is_recorded_chunk_by_chunk_and_put_back_elsewhere_as_the_model_would_write_it(
    layers: list[Any],
) -> None:
    import torch

    from engine.vllm.image_kv.transfer import Recorder, Wanted, slots_of, write_back

    dtype = layers[0].kv_cache.dtype
    recorder = Recorder(layers)
    entry, (keys, values) = entry_for(layers, 50), rows(50, dtype, 1)
    for first, last in ((0, 23), (23, 50)):
        slots = slots_of([4, 1, 6], BLOCK_TOKENS, 10 + first, last - first)
        # Others stand before and behind it in the batch.
        others_keys, others_values = rows(5, dtype, 2)
        batch = torch.cat((torch.arange(5) + 8 * BLOCK_TOKENS, slots, torch.arange(5) + 7 * BLOCK_TOKENS))
        recorder.expect([Wanted(entry, first, slots)])
        forward(
            layers,
            torch.cat((others_keys, keys[:, first:last], others_keys), 1),
            torch.cat((others_values, values[:, first:last], others_values), 1),
            batch,
        )
        assert recorder.complete(LAYERS) == {0: True}
    assert torch.equal(entry.keys, keys)
    assert torch.equal(entry.values, values)

    recorder.expect([])
    slots = slots_of([3, 5, 2], BLOCK_TOKENS, 14, 47)
    for layer in layers:
        layer.kv_cache = empty_cache(dtype)
    write_back(layers, entry.keys[:, 3:], entry.values[:, 3:], slots)
    written = [layer.kv_cache.clone() for layer in layers]
    for layer in layers:
        layer.kv_cache = empty_cache(dtype)
    forward(layers, keys[:, 3:], values[:, 3:], slots)
    assert all(torch.equal(one, layer.kv_cache) for one, layer in zip(written, layers, strict=True))
    # All of it, no more, and not the same in all layers.
    assert [int((one != 0).sum()) for one in written] == [47 * HEADS * SIZE * 2] * LAYERS
    assert not torch.equal(written[0], written[1])


@pytest.mark.parametrize("fault", ["not in the batch", "not side by side", "a layer less"])
def test_an_entry_whose_rows_did_not_all_come_is_not_complete(layers: list[Any], fault: str) -> None:
    import torch

    from engine.vllm.image_kv.transfer import Recorder, Wanted, slots_of

    recorder = Recorder(layers)
    entry, (keys, values) = entry_for(layers, 8), rows(8, layers[0].kv_cache.dtype, 3)
    slots = slots_of([4], BLOCK_TOKENS, 3, 8)
    recorder.expect([Wanted(entry, 0, slots)])
    batch = slots if fault == "a layer less" else slots + 64 if fault == "not in the batch" else slots.flip(0)
    forward(layers[1:] if fault == "a layer less" else layers, keys, values, batch)
    assert recorder.complete(LAYERS) == {0: False}
    assert bool((entry.keys == 0).all()) == (fault != "a layer less")
    recorder.expect([Wanted(entry, 0, slots)])
    forward(layers, keys, values, slots)
    assert recorder.complete(LAYERS) == {0: True}
    assert torch.equal(entry.keys, keys)
