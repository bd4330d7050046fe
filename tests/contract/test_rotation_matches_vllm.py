"""Keys turned by `engine.vllm.image_kv.rotation` are those that vLLM's own rotary embeddings give at the new place."""

# torch and vLLM leave much of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from context.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

pytestmark = pytest.mark.vllm

HEADS, ROWS, COLUMNS = 2, 6, 5
MROPE = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12]}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768, "rope_theta": 1e6}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_theta": 5e5,
}
QWEN3_VL = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20], "mrope_interleaved": True}
# Each with the dimensions of a head.
ROPES: dict[str, tuple[dict[str, Any], int, bool]] = {
    "M-RoPE, Qwen2.5-VL": (MROPE, 64, True),
    "M-RoPE, interleaved, Qwen3-VL": (QWEN3_VL, 128, True),
    "M-RoPE, pairs side by side": (MROPE, 64, False),
    "M-RoPE with YaRN": (YARN | {"mrope_section": [8, 12, 12]}, 64, True),
    "plain": ({"rope_type": "default", "rope_theta": 1e4}, 64, True),
    "plain, pairs side by side": ({"rope_type": "default", "rope_theta": 1e4}, 64, False),
    "plain, half of a head": ({"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}, 64, True),
    "plain with YaRN": (YARN, 64, True),
    "plain, Llama 3": (LLAMA3, 64, True),
}
# From, and by how much: near, over the length of a chat, back to its start, far.
MOVES = ((10, 5), (700, 3_300), (30_000, -29_990), (3, 120_000))


@pytest.fixture(scope="module", autouse=True)
def vllm_config() -> Generator[None]:
    """vLLM's layers read a configuration when they are made."""
    from engine import torchvision_ops

    torchvision_ops.declare_missing()
    from vllm.config import VllmConfig, set_current_vllm_config

    with set_current_vllm_config(VllmConfig()):
        yield


def embedding(name: str, dtype: torch.dtype) -> Any:
    """vLLM's own, as a model gets it."""
    from engine.vllm.rope_0_32 import get_rope

    parameters, size, neox = ROPES[name]
    return get_rope(size, 131_072, is_neox_style=neox, rope_parameters=parameters, dtype=dtype)


def image_positions(module: Any, start: int) -> Tensor:
    """Where the tokens of an image stand that begins at `start`."""
    import torch

    places = torch.arange(ROWS * COLUMNS)
    if getattr(module, "mrope_section", None) is None:
        return start + places
    return start + torch.stack([places * 0, places // COLUMNS, places % COLUMNS])


def keys_at(module: Any, start: int, dtype: torch.dtype) -> Tensor:
    """Random keys, the same ones everywhere, after vLLM's rotary embedding: [layers, tokens, heads, dimensions]."""
    import torch

    size = int(module.head_size)
    raw = torch.randn(3, ROWS * COLUMNS, HEADS * size, generator=torch.Generator().manual_seed(1)).to(dtype)
    positions = image_positions(module, start)
    made = [module.forward_native(positions, torch.zeros_like(layer), layer.clone())[1] for layer in raw]
    return torch.stack(made).view(3, ROWS * COLUMNS, HEADS, size)


def furthest(one: Tensor, two: Tensor) -> float:
    return float((one.float() - two.float()).abs().max())


@pytest.mark.parametrize(("start", "delta"), MOVES)
@pytest.mark.parametrize("name", ROPES)
def test_in_single_precision_moved_keys_are_those_computed_there(name: str, start: int, delta: int) -> None:
    import torch

    from engine.vllm.image_kv.rotation import rotate
    from engine.vllm.rope_0_32 import rope_table

    module = embedding(name, torch.float32)
    table, positions = rope_table(module), image_positions(module, start)
    old, new = keys_at(module, start, torch.float32), keys_at(module, start + delta, torch.float32)
    before = old.clone()
    assert furthest(rotate(old, positions, delta, table), new) < 3e-6
    assert torch.equal(old, before)
    assert rotate(old, positions, 0, table) is old
    # The same check sees a wrong delta, no rotation, wrong axes and one wrong key.
    assert furthest(rotate(old, positions, delta + 1, table), new) > 0.1
    assert furthest(old, new) > 0.1
    corrupted = old.clone()
    corrupted[1, 7, 1, 3] += 0.01
    assert furthest(rotate(corrupted, positions, delta, table), new) > 3e-3


@pytest.mark.parametrize(("start", "delta"), MOVES)
@pytest.mark.parametrize("name", ROPES)
def test_in_bfloat16_moved_keys_differ_by_rounding(name: str, start: int, delta: int) -> None:
    """A key in the cache is rounded already, and the moved one is rounded again: two steps at most, one on average."""
    import torch

    from engine.vllm.image_kv.rotation import rotate
    from engine.vllm.rope_0_32 import rope_table

    module = embedding(name, torch.bfloat16)
    table, positions = rope_table(module), image_positions(module, start)
    old, new = keys_at(module, start, torch.bfloat16), keys_at(module, start + delta, torch.bfloat16)
    moved = rotate(old, positions, delta, table)
    assert moved.dtype == torch.bfloat16
    step = torch.finfo(torch.bfloat16).eps * float(new.float().abs().max())
    assert furthest(moved, new) <= 2 * step
    assert float((moved.float() - new.float()).square().mean().sqrt()) < 0.2 * step
    assert furthest(rotate(old, positions, delta + 1, table), new) > 10 * step


def test_the_axes_are_those_of_the_model() -> None:
    """Of an image whose height alone moves, only the pairs that read heights turn; both layouts say which."""
    import torch

    from engine.vllm.rope_0_32 import rope_table

    for name in ("M-RoPE, Qwen2.5-VL", "M-RoPE, interleaved, Qwen3-VL"):
        module = embedding(name, torch.float32)
        table = rope_table(module)
        size, here = int(module.head_size), torch.zeros(3, 1, dtype=torch.long)
        there = here.clone()
        there[1] = 9
        one = torch.ones(1, size)
        _, wanted = module.forward_native(there, torch.zeros_like(one), one.clone())
        cos, sin = table.at(there)
        half = size // 2
        assert torch.allclose(torch.cat((cos - sin, cos + sin), -1), wanted.view(1, size), atol=1e-6)
        assert int((wanted.view(1, size)[0, :half] != 1).sum()) == module.mrope_section[1]


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_an_image_moves_by_one_delta_that_is_not_the_one_of_its_tokens(family: str) -> None:
    """By vLLM's own positions: behind more text, and behind another image, which takes fewer positions than tokens."""
    from engine.vllm.image_kv.rotation import shift_between

    alone = _positions(family, [(20, 8, 12)], 60)[:, 20:44]
    for images, offset, delta in (
        ([(33, 8, 12)], 33, 13),
        # 64 tokens on 8 positions, 10 of text between them.
        ([(20, 16, 16), (94, 8, 12)], 94, 18),
        ([(7, 8, 12)], 7, -13),
    ):
        moved = _positions(family, images, offset + 40)[:, offset : offset + 24]
        assert shift_between(alone, moved) == delta
    other_grid = _positions(family, [(20, 12, 8)], 60)[:, 20:44]
    assert shift_between(alone, other_grid) is None
    assert shift_between(alone, alone[:, :-1]) is None


def _positions(family: str, images: list[tuple[int, int, int]], length: int) -> Tensor:
    """vLLM's positions [3, tokens] of a prompt with images at (token, rows, columns of patches)."""
    from types import SimpleNamespace

    import torch
    from vllm.model_executor.models.qwen2_5_vl import Qwen2_5_VLForConditionalGeneration
    from vllm.model_executor.models.qwen3_vl import Qwen3VLForConditionalGeneration
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange

    def spec(at: int, rows: int, columns: int) -> Any:
        data: Any = {"image_grid_thw": SimpleNamespace(data=torch.tensor([1, rows, columns]))}
        return MultiModalFeatureSpec(data, "image", "image", PlaceholderRange(offset=at, length=rows * columns // 4))

    kinds: dict[str, Any] = {
        "qwen2_5_vl": Qwen2_5_VLForConditionalGeneration,
        "qwen3_vl": Qwen3VLForConditionalGeneration,
    }
    model = object.__new__(kinds[family])
    vision = SimpleNamespace(spatial_merge_size=2, tokens_per_second=2)
    config = SimpleNamespace(vision_config=vision, video_token_id=1, vision_start_token_id=2, vision_end_token_id=3)
    object.__setattr__(model, "config", config)
    positions, _ = model.get_mrope_input_positions([0] * length, [spec(*image) for image in images])
    return positions


@pytest.mark.parametrize(
    "parameters",
    [
        {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4},
        {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4},
    ],
)
def test_an_embedding_that_is_not_known_is_refused_by_name(parameters: dict[str, Any]) -> None:
    import torch

    from engine.vllm.rope_0_32 import get_rope, rope_table

    module = get_rope(64, 4096, rope_parameters=parameters, dtype=torch.float32)
    with pytest.raises(ConfigError, match=type(module).__name__):
        rope_table(module)


def test_an_embedding_that_does_not_do_as_it_says_is_refused() -> None:
    import torch

    from engine.vllm.rope_0_32 import get_rope, rope_table

    module: Any = get_rope(64, 4097, rope_parameters=MROPE, dtype=torch.float32)
    assert rope_table(module)
    module.is_neox_style = False
    with pytest.raises(ConfigError, match="other keys than its table"):
        rope_table(module)


def test_what_is_needed_of_vllm_is_there_and_what_moved_is_named() -> None:
    from engine.vllm.core_0_32 import check, moved_of

    class Older:
        def schedule(self) -> None: ...

    check()
    assert moved_of(Older, {"schedule": ("throttle",), "_free": ("request",)}) == ["schedule(throttle)", "_free"]


def test_where_a_model_s_embeddings_are_kept_is_looked_for_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.model_executor.layers import rotary_embedding

    from engine.vllm.rope_0_32 import check

    check()
    monkeypatch.delattr(rotary_embedding, "_ROPE_DICT")
    with pytest.raises(ConfigError, match=r"rotary_embedding\._ROPE_DICT"):
        check()
