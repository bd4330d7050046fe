"""vLLM's options in the layers of the settings: each has two spellings, and those of ours have values to be checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from context.errors import ConfigError


def respell(into: dict[str, Any], layer: Mapping[str, Any], where: str) -> None:
    """Take away what a layer gives anew in another spelling: the environment has `_` alone, a file may have `-`.

    Raises:
        ConfigError: the layer itself gives an option in two spellings.
    """
    if not layer:
        return
    # Here, since most starts set none.
    from engine.vllm.options import by_long_name, long_name

    try:
        given = by_long_name({str(key): value for key, value in layer.items()})
    except ConfigError as error:
        raise ConfigError(where, error.key, error.reason) from error
    for name in [name for name in into if long_name(name) in given and name not in layer]:
        del into[name]


def check_options(options: Mapping[str, Any], origin: Mapping[str, str]) -> None:
    """Refuse values that those of ours cannot have.

    Args:
        options: of `engine.vllm`, from all layers.
        origin: which layer each of them is from.

    Raises:
        ConfigError: names the layer, the key and what it takes.
    """
    if not options:
        return
    from engine.vllm.options import long_name
    from engine.vllm.own_options import check_values

    try:
        check_values(options)
    except ConfigError as error:
        name = long_name(error.key.removeprefix("engine.vllm.").partition(".")[0])
        where = next((where for key, where in origin.items() if key in options and long_name(key) == name), error.where)
        raise ConfigError(where, error.key, error.reason) from error
