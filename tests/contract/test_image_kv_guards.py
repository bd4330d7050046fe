"""What images' KV cannot be used again with is refused before the engine starts, each with its reason."""

# vLLM leaves much of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from context.errors import ConfigError

pytestmark = pytest.mark.vllm


class Changed:
    """A configuration with other values here and there, by their dotted names."""

    def __init__(self, real: Any, values: dict[str, Any]) -> None:
        self._real, self._values = real, values

    def __getattr__(self, name: str) -> Any:
        if name in self._values:
            return self._values[name]
        inner = {
            key.removeprefix(f"{name}."): value for key, value in self._values.items() if key.startswith(f"{name}.")
        }
        found = getattr(self._real, name)
        return Changed(found, inner) if inner else found


@pytest.fixture(scope="module")
def config(demo_checkpoint: Path) -> Any:
    """vLLM's configuration of the demo model, as the embedded engine makes it."""
    from engine import torchvision_ops
    from engine.vllm.environment import set_environment

    set_environment(offline=True, kv_cache_gib=1, log_level="ERROR")
    torchvision_ops.declare_missing()
    from vllm.engine.arg_utils import EngineArgs

    return EngineArgs(str(demo_checkpoint), dtype="float32", block_size=32).create_engine_config()


def test_the_demo_model_is_not_refused(config: Any) -> None:
    from engine.vllm.image_kv.families import check

    check(config)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("model_config.is_multimodal_model", False, "takes no images"),
        ("model_config.is_encoder_decoder", True, "cross-attention"),
        ("model_config.is_hybrid", True, "recurrent"),
        ("model_config.is_attention_free", True, "recurrent"),
        ("model_config.use_mla", True, "MLA"),
        ("model_config.is_mm_prefix_lm", True, "both sides"),
        ("model_config.get_sliding_window", lambda: 4096, "sliding window"),
        ("model_config.hf_text_config.layer_types", ["full_attention", "linear_attention"], "full attention"),
        ("model_config.hf_text_config.num_kv_shared_layers", 2, "share their KV"),
        ("model_config.hf_text_config.rope_parameters", {"rope_type": "dynamic"}, "'dynamic'"),
        ("model_config.architectures", ["Glm4vForConditionalGeneration"], "M-RoPE's axes"),
        ("model_config.multimodal_config.mm_processor_cache_type", "shm", "shm"),
        ("cache_config.cache_dtype", "fp8", "kv-cache-dtype fp8"),
        ("cache_config.cache_dtype", "bfloat16", "kv-cache-dtype bfloat16"),
        ("cache_config.kv_sharing_fast_prefill", True, "kv-sharing-fast-prefill"),
        ("speculative_config", SimpleNamespace(), "speculative decoding"),
        ("parallel_config.pipeline_parallel_size", 2, "pipeline parallelism"),
        ("parallel_config.decode_context_parallel_size", 2, "context parallelism"),
        ("use_v2_model_runner", True, "VLLM_USE_V2_MODEL_RUNNER=0"),
        ("scheduler_config.enable_chunked_prefill", False, "chunked prefill"),
        ("scheduler_config.disable_chunked_mm_input", True, "disable-chunked-mm-input"),
    ],
)
def test_it_is_refused_with_the_reason_and_the_remedy(config: Any, name: str, value: Any, reason: str) -> None:
    from engine.vllm.image_kv.families import check

    with pytest.raises(ConfigError) as caught:
        check(Changed(config, {name: value}))
    assert caught.value.key == "engine.vllm.image_kv"
    assert reason in caught.value.reason
    assert "Remove engine.vllm.image_kv" in caught.value.reason
    # One thing alone stands against it.
    assert ";" not in caught.value.reason


EAGER = {"model_config.enforce_eager": True}


def test_ratios_by_layer_of_this_model_are_taken(config: Any, demo_checkpoint: Path) -> None:
    from engine.vllm.image_kv.families import check_profile

    check_profile(Changed(config, EAGER), demo_checkpoint.parent / "reuse_profile.json")


def test_ratios_by_layer_are_refused_where_the_model_is_compiled_or_not_on_a_cpu(
    config: Any, demo_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.platforms import current_platform

    from engine.vllm.image_kv.families import check_profile

    file = demo_checkpoint.parent / "reuse_profile.json"
    with pytest.raises(ConfigError) as caught:
        check_profile(Changed(config, {"model_config.enforce_eager": False}), file)
    assert caught.value.key == "engine.vllm.image_kv.profile"
    assert "compiled (set enforce-eager: true)" in caught.value.reason
    assert "CPU" not in caught.value.reason

    # What vLLM says of another machine.
    def is_cpu(_: object) -> bool:
        return False

    monkeypatch.setattr(type(current_platform), "is_cpu", is_cpu)
    with pytest.raises(ConfigError) as caught:
        check_profile(Changed(config, EAGER), file)
    assert "does not run on a CPU" in caught.value.reason
    assert "compiled" not in caught.value.reason


def test_ratios_by_layer_of_another_model_are_refused(config: Any, demo_checkpoint: Path, tmp_path: Path) -> None:
    from engine.reference.profile import read_profile, write_profile
    from engine.vllm.image_kv.families import check_profile

    own = read_profile(demo_checkpoint.parent / "reuse_profile.json")
    other = tmp_path / "other.json"
    for changed in (replace(own, weights_sha256="0" * 64), replace(own, sensitivity=own.sensitivity[1:])):
        write_profile(other, changed)
        with pytest.raises(ConfigError, match="another model") as caught:
            check_profile(Changed(config, EAGER), other)
        assert "--calibrate" in caught.value.reason
    with pytest.raises(ConfigError, match="cannot be read"):
        check_profile(Changed(config, EAGER), tmp_path / "none.json")


def test_layers_of_more_than_one_kind_are_refused(config: Any) -> None:
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec

    from engine.vllm.image_kv.loaded_model import block_tokens_of

    sizes: Any = {"block_size": 32, "num_kv_heads": 1, "head_size": 64, "dtype": torch.float32}
    full = KVCacheGroupSpec(["a"], FullAttentionSpec(**sizes))
    window = KVCacheGroupSpec(["b"], SlidingWindowSpec(**sizes, sliding_window=64))
    assert block_tokens_of(KVCacheConfig(1, [], [full])) == 32
    for groups in ([full, window], [window]):
        with pytest.raises(ConfigError, match="full attention"):
            block_tokens_of(KVCacheConfig(1, [], groups))


def test_whatever_of_its_configuration_is_overridden_makes_another_model(demo_checkpoint: Path, config: Any) -> None:
    """Of the pool's entries and of the tiers' blocks: an epsilon is in no weight and in no rotary embedding."""
    from vllm.engine.arg_utils import EngineArgs

    from engine.vllm.block_tiers.connector import fingerprint_of
    from engine.vllm.image_kv.entry import Layout
    from engine.vllm.image_kv.loaded_model import model_of

    def made(**options: Any) -> Any:
        return EngineArgs(str(demo_checkpoint), dtype="float32", block_size=32, **options).create_engine_config()

    def names(of: Any) -> tuple[str, str]:
        return model_of(of, Layout(6, 1, 64, "float32")).fingerprint, fingerprint_of(of)

    plain = names(config)
    assert names(made()) == plain
    for overrides in ({"text_config": {"rms_norm_eps": 0.01}}, {"vision_config": {"hidden_act": "gelu"}}):
        other = names(made(hf_overrides=overrides))
        assert other[0] != plain[0]
        assert other[1] != plain[1]


def test_a_folder_that_others_may_write_stops_the_start(config: Any, tmp_path: Path) -> None:
    from engine.vllm.features import prepare

    folder = tmp_path / "pool"
    folder.mkdir()
    folder.chmod(0o777)
    settings = {"memory_gib": 1, "folder": str(folder), "endpoint": ""}
    changed = Changed(config, {"additional_config": {"stillframe": {"image_kv": settings}}})
    args = SimpleNamespace(enable_mm_embeds=False)
    with pytest.raises(ConfigError, match="chmod 700") as caught:
        prepare(changed, args)
    assert caught.value.key == "engine.vllm.image_kv.folder"
    folder.chmod(0o700)
    prepare(changed, args)


def test_several_replicas_are_refused_before_the_engine_starts_also_when_no_option_of_ours_asks_for_them(
    config: Any,
) -> None:
    from engine.vllm.features import prepare

    args = SimpleNamespace(enable_mm_embeds=False)
    prepare(config, args)
    with pytest.raises(ConfigError) as caught:
        prepare(Changed(config, {"parallel_config.data_parallel_size": 2}), args)
    assert caught.value.key == "engine.vllm.data-parallel-size"
