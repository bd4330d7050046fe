"""What of the gateway's own runs inside of the engine, as options of vLLM: which classes, and what they are told."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

from context.errors import ConfigError
from context.reuse import Reuse
from engine.vllm.block_tiers import settings as block_tiers
from engine.vllm.image_kv.prompt_images import MODE, OPT_IN
from engine.vllm.image_kv.settings import SETTING, ImageKvSettings
from engine.vllm.private_folder import make_private

# Settings of ours that stand among vLLM's options.
OWN = ("image-kv", "block-tiers", "eviction")
_IMAGE_KV_SETS = ("kv-transfer-config", "ec-transfer-config", "scheduler-cls", "worker-extension-cls")
# Of `image_kv/extension.py`, which is not imported here: it needs vLLM.
_EXTENSION = "engine.vllm.image_kv.extension.ImageKvExtension"
ATTACH, CLEAR_IMAGES, IMAGE_POOL = "stillframe_attach", "stillframe_clear_images", "stillframe_image_pool"


def image_kv_of(options: Mapping[str, Any]) -> ImageKvSettings | None:
    """The pool of images' KV, as it is set; None where it is off.

    Raises:
        ConfigError: a value is none that can be set, or an option is set that the pool needs for itself.
    """
    given = options.get("image-kv")
    if given is None:
        return None
    settings = ImageKvSettings.of(given)
    for name in _IMAGE_KV_SETS:
        if name in options:
            reason = f"is set by Stillframe itself where {SETTING} is; remove one of both"
            raise ConfigError("settings", f"engine.vllm.{name}", reason)
    return settings


def block_tiers_of(options: Mapping[str, Any]) -> block_tiers.BlockTierSettings | None:
    """The tiers below the prefix cache, as they are set; None where there are none.

    Raises:
        ConfigError: a value is none that can be set, or an option is set that the tiers need for themselves.
    """
    given = options.get("block-tiers")
    if given is None:
        return None
    settings = block_tiers.BlockTierSettings.of(given)
    if options.get("image-kv") is not None:
        reason = f"cannot be used beside {SETTING}: vLLM takes one of both as its connector; remove one"
        raise ConfigError("settings", block_tiers.SETTING, reason)
    for name in ("kv-transfer-config", "scheduler-cls"):
        if name in options:
            reason = f"is set by Stillframe itself where {block_tiers.SETTING} is; remove one of both"
            raise ConfigError("settings", f"engine.vllm.{name}", reason)
    return settings


def eviction_of(options: Mapping[str, Any]) -> str:
    """What goes first from the engine's caches: `lru`, vLLM's own order, or `modality`.

    Raises:
        ConfigError: it is neither, or an option is set that `modality` needs for itself.
    """
    eviction = options.get("eviction", "lru")
    if eviction not in ("lru", "modality"):
        raise ConfigError("settings", "engine.vllm.eviction", "takes lru or modality")
    if eviction == "modality" and "scheduler-cls" in options:
        reason = "is set by Stillframe itself where engine.vllm.eviction is modality; remove one of both"
        raise ConfigError("settings", "engine.vllm.scheduler-cls", reason)
    return str(eviction)


def refuse_replicas(size: object) -> None:
    """Refuse an engine that is several: where its events go over a local socket, vLLM starts the first one alone.

    Args:
        size: `data-parallel-size`, as it is written.

    Raises:
        ConfigError: it is above 1.

    Source: vLLM 0.32, vllm/distributed/kv_events.py::ZmqEventPublisher.offset_endpoint_port.
    """
    try:
        replicas = int(str(size))
    except ValueError:
        # vLLM says what it takes.
        return
    if replicas > 1:
        reason = (
            "can only be 1, for a gateway has one engine in it. Remove it, start each replica as an engine or a "
            "gateway of its own, and name all of them as upstream of a gateway over them: --upstream URL"
        )
        raise ConfigError("settings", "engine.vllm.data-parallel-size", reason)


def feature_options(options: Mapping[str, Any], image_endpoint: str) -> dict[str, Any]:
    """vLLM's options for what is switched on; none where nothing is.

    Args:
        options: from the settings, by their long names with `-`.
        image_endpoint: where the pool tells what it does.

    Raises:
        ConfigError: as `image_kv_of`; `additional-config` has a part of ours.
    """
    made: dict[str, Any] = {}
    ours: dict[str, Any] = {}
    if (image_kv := image_kv_of(options)) is not None:
        ours["image_kv"] = {**image_kv.values(), "endpoint": image_endpoint}
        made["kv-transfer-config"] = {
            "kv_connector": "ImageKvConnector",
            "kv_connector_module_path": "engine.vllm.image_kv.connector",
            "kv_role": "kv_both",
        }
        made["ec-transfer-config"] = {
            "ec_connector": "PooledEncoderConnector",
            "ec_connector_module_path": "engine.vllm.image_kv.encoder",
            "ec_role": "ec_consumer",
        }
        made["worker-extension-cls"] = _EXTENSION
    if (tiers := block_tiers_of(options)) is not None:
        ours["block_tiers"] = tiers.values()
        made["kv-transfer-config"] = tiers.transfer(image_endpoint)
    if (eviction := eviction_of(options)) != "lru":
        ours["blocks"] = {"eviction": eviction}
    if not ours:
        return {}
    given: object = options.get("additional-config") or {}
    if not isinstance(given, Mapping):
        raise ConfigError("settings", "engine.vllm.additional-config", "must be a mapping, such as {key: value}")
    given = cast("Mapping[str, Any]", given)
    if "stillframe" in given:
        raise ConfigError("settings", "engine.vllm.additional-config", "may not have the part stillframe; remove it")
    return {
        **made,
        # embedded.py takes the one that schedules ahead where vLLM does.
        "scheduler-cls": "engine.vllm.scheduler.StillframeScheduler",
        "additional-config": {**given, "stillframe": ours},
    }


def reuse_parameters(reuse: Reuse) -> dict[str, Any]:
    """What a chat body says so that its images' KV may be used again: see `image_kv/prompt_images.py::wanted_ratio`."""
    return {"kv_transfer_params": {OPT_IN: {"mode": MODE, "ratio": reuse.ratio, "profile": reuse.profile}}}


def set_feature_environment(options: Mapping[str, Any]) -> None:
    """Set what vLLM reads from the environment for what is switched on. A value that is already set wins.

    Raises:
        ConfigError: as `image_kv_of`.
    """
    if image_kv_of(options) is not None:
        # The second one reads its own copy of how far a request is, and would not follow a jump.
        os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")


def prepare(config: Any, args: Any) -> None:
    """Adapt vLLM's own configuration to what is switched on, once it is made.

    Raises:
        ConfigError: the model or an option stands against it; says why.
    """
    from engine.vllm.block_tiers import checks
    from engine.vllm.image_kv import families

    # By an option, the environment or a file of options.
    refuse_replicas(config.parallel_config.data_parallel_size)
    ours = cast("Mapping[str, Any]", config.additional_config or {}).get("stillframe", {})
    if ours and config.scheduler_config.async_scheduling:
        config.scheduler_config.scheduler_cls = "engine.vllm.scheduler.AsyncStillframeScheduler"
    if "image_kv" in ours:
        families.check(config)
        own = ImageKvSettings.of({key: value for key, value in ours["image_kv"].items() if key != "endpoint"})
        if own.profile_file is not None:
            families.check_profile(config, own.profile_file)
        if own.folder_path is not None:
            # The worker's file tier goes on in memory where a disk is at fault, and tells it.
            with suppress(OSError):
                make_private(own.folder_path, f"{SETTING}.folder")
    elif "block_tiers" in ours:
        checks.check(config, block_tiers.BlockTierSettings.of(ours["block_tiers"]))
    else:
        return
    # vLLM takes an engine with connectors for one whose images come from other engines, and would take embeddings for
    # images from whoever sends a request.
    if (multimodal := config.model_config.multimodal_config) is not None:
        multimodal.enable_mm_embeds = bool(args.enable_mm_embeds)
        multimodal.allow_missing_mm_embeddings = False
