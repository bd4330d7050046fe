"""What is said where approximate KV of images is allowed, and the engine keeps none."""

from __future__ import annotations

from collections.abc import Sequence

from context.policies.choice import Policies
from engine.base import EngineInfo

_SETTING = "engine.vllm.image_kv"
HEADER_SETTING = "reuse_header"


def remedy(info: EngineInfo) -> str:
    """How an engine that keeps no KV of images may come to keep it, as an order."""
    if info.kind == "remote":
        return f"serve the model with the embedded engine and {_SETTING}, not by an upstream"
    return f"set {_SETTING}"


def warnings(policies: Policies, info: EngineInfo, *, header: bool) -> Sequence[str]:
    """What is allowed and comes to nothing, each with the setting that allows it and the remedy.

    Args:
        policies: those that may be in force.
        info: of the engine, when it has started.
        header: whether clients may ask for it.
    """
    if info.reuses_images:
        if not policies.profiled or info.has_layer_profile:
            return []
        names = ", ".join(policies.profiled)
        return [f"it has no profile of its layers, so that {names} has all compute the same; set {_SETTING}.profile"]
    found: list[str] = []
    if policies.reusing:
        names = ", ".join(policies.reusing)
        found.append(f"it keeps no KV of images, so that {names} computes all; {remedy(info)}")
    if header:
        words = "it keeps no KV of images, so that x-stillframe-reuse is refused"
        found.append(f"{HEADER_SETTING} is on, but {words}; {remedy(info)}, or switch {HEADER_SETTING} off")
    return found
