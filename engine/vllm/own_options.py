"""Our settings among vLLM's options, before anything is started: whether they can be what they are, and what they
switch on in one line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from context.errors import ConfigError
from context.files import expanded
from engine.reference.profile import read_profile
from engine.vllm.block_tiers.settings import SETTING as BLOCK_TIERS
from engine.vllm.features import OWN, block_tiers_of, eviction_of, feature_options, image_kv_of, refuse_replicas
from engine.vllm.image_kv.settings import BUNDLED
from engine.vllm.image_kv.settings import SETTING as IMAGE_KV
from engine.vllm.options import by_long_name
from engine.vllm.private_folder import make_private

# How like one of ours a name is that is taken for a slip; none of vLLM's options is.
_ALIKE = 0.8


def check_values(options: Mapping[str, Any]) -> None:
    """Refuse values that cannot be, and options that stand against each other. Looks at no file.

    Args:
        options: of `engine.vllm`, as they are written.

    Raises:
        ConfigError: names the key and what it takes.
    """
    given = by_long_name(options)
    for name in given:
        # vLLM would say it too, after a minute and without the remedy.
        if name not in OWN and (meant := get_close_matches(name, OWN, 1, _ALIKE)):
            key, own = (one.replace("-", "_") for one in (name, meant[0]))
            raise ConfigError("settings", f"engine.vllm.{key}", f"is no option; do you mean engine.vllm.{own}?")
    refuse_replicas(given.get("data-parallel-size"))
    feature_options(given, "")


def check_machine(options: Mapping[str, Any]) -> None:
    """Refuse what this machine cannot give: folders that cannot be used for KV, profiles that cannot be read, more
    memory than it has. Makes nothing.

    Raises:
        ConfigError: names the setting and the remedy; as `check_values`.
    """
    given = by_long_name(options)
    if (image_kv := image_kv_of(given)) is not None:
        _check_memory(image_kv.memory_gib, f"{IMAGE_KV}.memory_gib")
        if image_kv.folder_path is not None:
            _check_folder(image_kv.folder_path, f"{IMAGE_KV}.folder")
        if image_kv.profile_file is not None:
            try:
                read_profile(image_kv.profile_file)
            except ConfigError as error:
                raise ConfigError("settings", f"{IMAGE_KV}.profile", str(error)) from error
    if (tiers := block_tiers_of(given)) is not None and tiers.folder:
        _check_folder(expanded(tiers.folder, f"{BLOCK_TIERS}.folder"), f"{BLOCK_TIERS}.folder")


def told(options: Mapping[str, Any]) -> str:
    """What is switched on, for the log: bounds, and no paths.

    Raises:
        ConfigError: as `check_values`.
    """
    given = by_long_name(options)
    image_kv, tiers = image_kv_of(given), block_tiers_of(given)
    parts = ["image KV pool off", "block tiers off", f"eviction {eviction_of(given)}"]
    if image_kv is not None:
        profile = {"": "none", BUNDLED: BUNDLED}.get(image_kv.profile, "from a file")
        bounds = _bounds(image_kv.memory_gib, image_kv.folder, image_kv.folder_gib)
        parts[0] = f"image KV pool {bounds}, profile of layers {profile}"
    if tiers is not None:
        parts[1] = f"block tiers {_bounds(tiers.memory_gib, tiers.folder, tiers.folder_gib)}"
    return "; ".join(parts)


def _bounds(memory_gib: float, folder: str, folder_gib: float) -> str:
    return f"{memory_gib:g} GiB in memory, " + (f"{folder_gib:g} GiB in files" if folder else "no files")


def _check_memory(gib: float, key: str) -> None:
    """Of block tiers the engine's start asks for more: they lie in memory that processes share."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3
    if gib >= there:
        reason = f"is more than this machine's memory, {there:.1f} GiB; lower it, what does not fit can lie in files"
        raise ConfigError("settings", key, reason)


def _check_folder(folder: Path, key: str) -> None:
    # What cannot be looked at is told where it is used.
    with suppress(OSError):
        if "\0" in str(folder):
            raise ConfigError("settings", key, "is no name that a folder can have")
        there = next(one for one in (folder, *folder.absolute().parents) if one.exists())
        if not there.is_dir():
            where = "is a file" if there == folder else f"lies below {there}, which is a file"
            raise ConfigError("settings", key, f"{where}; name a folder, which may be one that is not there yet")
        if there == folder:
            make_private(folder, key)
