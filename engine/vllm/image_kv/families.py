"""Which models' images the pool can keep, as far as their configuration tells; what it cannot is refused at the start.

What only shows inside of a worker, the model's own rotary embedding, is tried there (`rope_0_32.py::rope_table`).
"""

# vLLM leaves much of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from context.errors import ConfigError
from engine.reference.profile import read_profile, weights_sha256
from engine.vllm.image_kv.prompt_images import MROPE_FAMILIES
from engine.vllm.image_kv.settings import SETTING

_ROPES = ("default", "mrope", "yarn", "llama3")
_KV_DTYPES = ("auto", "float32", "float16", "bfloat16")


def check(config: Any) -> None:
    """Refuse what cannot be.

    Args:
        config: vLLM's own, made.

    Raises:
        ConfigError: says all that stands against it, and the remedy.
    """
    if reasons := list(reasons_against(config)):
        remedy = "Remove engine.vllm.image_kv, or change what stands against it"
        raise ConfigError("settings", SETTING, f"images' KV cannot be used again here: {'; '.join(reasons)}. {remedy}.")


def check_profile(config: Any, file: Path) -> None:
    """Refuse ratios by layer where layers cannot compute different rows, or where they are another model's.

    Raises:
        ConfigError: says what stands against it, or what of the file is wrong, and the remedy.
    """
    from engine.vllm import core_0_32 as core
    from engine.vllm import v0_32

    reasons: list[str] = []
    if not config.model_config.enforce_eager:
        reasons.append("the model is compiled (set enforce-eager: true)")
    if not v0_32.is_cpu():
        reasons.append("the engine does not run on a CPU")
    if reasons:
        reason = f"layers cannot compute different rows of an image here: {'; '.join(reasons)}. Or remove profile."
        raise ConfigError("settings", f"{SETTING}.profile", reason)
    profile = read_profile(file)
    layers = int(config.model_config.hf_text_config.num_hidden_layers)
    profile.check(weights_sha256(core.model_folder(config.model_config)), layers, file)


def reasons_against(config: Any) -> Iterator[str]:
    """What stands against it, each in a few words."""
    yield from _against_model(config.model_config)
    yield from _against_options(config)


def _against_model(model: Any) -> Iterator[str]:
    text = model.hf_text_config
    if not model.is_multimodal_model:
        yield "the model takes no images"
    if model.is_encoder_decoder:
        yield "the model has cross-attention"
    if model.is_hybrid or model.is_attention_free:
        yield "the model has recurrent layers"
    if model.use_mla:
        yield "the model's attention is latent (MLA)"
    if model.is_mm_prefix_lm:
        yield "the model attends to an image from both sides"
    if (model.get_sliding_window() is not None and not model.disable_sliding_window) or any(
        kind != "full_attention" for kind in getattr(text, "layer_types", None) or ()
    ):
        yield "the model has layers of a sliding window, or others without full attention"
    if getattr(text, "num_kv_shared_layers", 0):
        yield "layers of the model share their KV"
    rope = (getattr(text, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope not in _ROPES:
        yield f"the model's rotary embedding is of the kind {rope!r}, known are {', '.join(_ROPES)}"
    if model.uses_mrope and not set(model.architectures) & set(MROPE_FAMILIES):
        yield f"where the model's images stand on M-RoPE's axes is known of {', '.join(MROPE_FAMILIES)} alone"


def _against_options(config: Any) -> Iterator[str]:
    parallel, cache, scheduler = config.parallel_config, config.cache_config, config.scheduler_config
    own = str(config.model_config.dtype).removeprefix("torch.")
    if cache.cache_dtype not in _KV_DTYPES or cache.cache_dtype not in ("auto", own):
        yield f"kv-cache-dtype {cache.cache_dtype} would have to be converted"
    if cache.kv_sharing_fast_prefill:
        yield "kv-sharing-fast-prefill does not compute all layers"
    if config.speculative_config is not None:
        yield "speculative decoding has a cache of its own"
    if parallel.pipeline_parallel_size > 1:
        yield "pipeline parallelism parts the layers"
    if parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1:
        yield "context parallelism parts the tokens"
    if config.use_v2_model_runner:
        yield "the V2 model runner does not follow a jump (set VLLM_USE_V2_MODEL_RUNNER=0)"
    if not scheduler.enable_chunked_prefill:
        yield "chunked prefill is off"
    if scheduler.disable_chunked_mm_input:
        yield "disable-chunked-mm-input keeps an image in one chunk"
    if config.model_config.multimodal_config is not None and (
        config.model_config.multimodal_config.mm_processor_cache_type == "shm"
    ):
        yield "mm-processor-cache-type shm hides the sizes of images"
