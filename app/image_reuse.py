"""Approximate KV of images: what a client asks for by header, what the engine makes of it, and what is said where it
keeps none."""

from __future__ import annotations

import re
from collections.abc import Sequence

from context.errors import RequestError
from context.policies.choice import Policies
from context.reuse import Reuse
from engine.base import EngineInfo

REUSE_HEADER = "x-stillframe-reuse"
_SETTING = "engine.vllm.image_kv"
_HEADER_SETTING = "reuse_header"
_SHARE = re.compile(r"0(\.[0-9]{1,6})?|1(\.0{1,6})?")


def told_reuse(reuse: Reuse) -> str:
    """What a response says of approximate KV of images, as the engine honours it."""
    return f"position_independent; ratio={reuse.spelled}"


def honoured(reuse: Reuse, info: EngineInfo) -> Reuse | None:
    """What the engine makes of it: None where all is exact."""
    if not reuse.approximate or not info.reuses_images:
        return None
    return reuse if info.has_layer_profile or not reuse.profile else Reuse(reuse.ratio)


def asked_reuse(header: str, info: EngineInfo | None, *, allowed: bool) -> Reuse:
    """What a client says about approximate KV of its images, a ratio of 1 for `off`.

    Args:
        header: what it says.
        info: of the engine; None while that is not known, which then refuses the request itself.
        allowed: whether it may say it.

    Raises:
        RequestError: it may not say it, says something else, or wants what the engine cannot: to use images' KV again,
            or ratios by layer.
    """
    keeps = info is None or info.reuses_images
    if not allowed:
        also = "" if info is None or keeps else f" and {remedy(info)}"
        reason = f"{REUSE_HEADER} may not be sent here. Leave it out, or switch {_HEADER_SETTING} on{also}."
        raise RequestError(reason, code="reuse_not_allowed", param=REUSE_HEADER)
    if header.strip() == "off":
        return Reuse(1.0)
    share, parted, wish = (part.strip() for part in header.partition(";"))
    if not _SHARE.fullmatch(share) or (parted and wish != "profile"):
        reason = (
            f"{REUSE_HEADER} takes the share of each image's tokens that is computed, such as 0.05; '0.05; profile' "
            "for a mean over the layers; or off."
        )
        raise RequestError(reason, code="invalid_reuse", param=REUSE_HEADER)
    asked = Reuse(float(share), bool(parted))
    if info is not None and not keeps and asked.approximate:
        reason = f"{REUSE_HEADER}: the engine keeps no KV of images. Leave it out, or {remedy(info)}."
        raise RequestError(reason, code="no_image_kv", param=REUSE_HEADER)
    if parted and info is not None and not info.has_layer_profile:
        reason = f"{REUSE_HEADER}: the engine has no profile of its layers. Leave '; profile' out."
        raise RequestError(reason, code="no_reuse_profile", param=REUSE_HEADER)
    return asked


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
        words = f"it keeps no KV of images, so that {REUSE_HEADER} is refused"
        found.append(f"{_HEADER_SETTING} is on, but {words}; {remedy(info)}, or switch {_HEADER_SETTING} off")
    return found
