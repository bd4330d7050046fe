"""From vLLM's configuration and its loaded layers to what the pool needs: names, sizes, the rotary embedding."""

# vLLM leaves much of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from typing import Any

from context.errors import ConfigError
from engine.reference.profile import read_profile
from engine.vllm import core_0_32 as core
from engine.vllm import rope_0_32 as rope
from engine.vllm.image_kv.entry import Layout
from engine.vllm.image_kv.files import FileTier
from engine.vllm.image_kv.keys import Computation, Model, sampled_digest
from engine.vllm.image_kv.layers import LayerProfile
from engine.vllm.image_kv.narrowing import Narrowing
from engine.vllm.image_kv.pool import ImagePool
from engine.vllm.image_kv.rotation import RopeTable
from engine.vllm.image_kv.settings import SETTING, ImageKvSettings
from engine.vllm.image_kv.worker import Worker


def block_tokens_of(cache_config: Any) -> int:
    """Tokens in a block of the one group of layers that there is.

    Raises:
        ConfigError: layers are of more than one kind, or not of full attention.
    """
    groups = cache_config.kv_cache_groups
    if len(groups) != 1 or not core.is_full_attention(groups[0].kv_cache_spec):
        raise ConfigError("settings", SETTING, "not all layers have full attention; remove engine.vllm.image_kv")
    return int(groups[0].kv_cache_spec.block_size)


def merge_of(model: Any) -> int | None:
    """Patches of an image's side that make one token, for models with M-RoPE; None for others."""
    return int(model.hf_config.vision_config.spatial_merge_size) if model.uses_mrope else None


def worker_of(config: Any, cache_config: Any) -> Worker:
    """The worker's side of the pool, on the layers that vLLM has loaded.

    Raises:
        ConfigError: the layers or the rotary embedding are none whose KV can be moved; says why.
    """
    ours = _settings(config)
    named = set(cache_config.kv_cache_groups[0].layer_names)
    layers = [layer for name, layer in config.compilation_config.static_forward_context.items() if name in named]
    layout = _layout(config.model_config, layers)
    files = None if ours.folder_path is None else FileTier(ours.folder_path, ours.folder_bytes)
    return Worker(
        model_of(config, layout).fingerprint,
        layers,
        block_tokens_of(cache_config),
        ImagePool(layout, ours.memory_bytes, files),
        _rope_table(config.model_config, layout.head_size),
        ours.memory_bytes // 2,
        Narrowing(layers) if ours.profile else None,
        core.rank(config.parallel_config),
    )


def layer_profile_of(config: Any) -> LayerProfile | None:
    """What its layers compute under a budget; None where no profile is set. It has been checked at the start.

    Raises:
        ConfigError: it cannot be read any more.
    """
    file = _settings(config).profile_file
    return None if file is None else LayerProfile(read_profile(file))


def _settings(config: Any) -> ImageKvSettings:
    given = core.own_config(config, "image_kv")
    return ImageKvSettings.of({key: value for key, value in given.items() if key != "endpoint"})


def _layout(model: Any, layers: list[Any]) -> Layout:
    first, text = layers[0], model.hf_text_config
    kinds = {(int(layer.impl.num_kv_heads), int(layer.head_size), layer.kv_cache.dtype) for layer in layers}
    if len(kinds) != 1 or len(layers) != text.num_hidden_layers:
        raise ConfigError("settings", SETTING, "the model's layers differ from each other; remove engine.vllm.image_kv")
    # Qwen3-VL's encoder gives what deeper layers add beside what the first one reads.
    vision = getattr(model.hf_config, "vision_config", None)
    levels = 1 + len(getattr(vision, "deepstack_visual_indexes", None) or ())
    return Layout(
        len(layers),
        int(first.impl.num_kv_heads),
        int(first.head_size),
        str(first.kv_cache.dtype).removeprefix("torch."),
        int(text.hidden_size) * levels,
        str(model.dtype).removeprefix("torch."),
    )


def model_of(config: Any, layout: Layout) -> Model:
    """What names the model's entries."""
    model, parallel = config.model_config, config.parallel_config
    return Model(
        name=str(model.served_model_name or model.model),
        weights=sampled_digest(core.model_folder(model)),
        computation=Computation.of(model),
        kv_dtype=layout.dtype,
        layers=layout.layers,
        kv_heads=layout.kv_heads,
        head_size=layout.head_size,
        # Entries are rows of tokens; how they lie in blocks changes nothing in them.
        blocks="",
        engine=core.ENGINE,
        rank=core.rank(parallel),
        ranks=int(parallel.tensor_parallel_size),
    )


def _rope_table(model: Any, head_size: int) -> RopeTable:
    """The vision tower has rotary embeddings, too, which are told apart by what they are made for."""
    rope.check()
    longest = int(model.hf_text_config.max_position_embeddings)
    found = [
        module
        for module in rope.rotary_embeddings()
        if int(module.head_size) == head_size and isinstance(module, rope.MRotaryEmbedding) == model.uses_mrope
    ]
    if len(found) > 1:
        found = [module for module in found if int(module.max_position_embeddings) == longest]
    if len(found) != 1:
        reason = f"the model has {len(found)} rotary embeddings that may be its layers'; remove engine.vllm.image_kv"
        raise ConfigError("settings", SETTING, reason)
    return rope.rope_table(found[0])
