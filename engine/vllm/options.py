"""From settings to vLLM's own parsed arguments.

Every option of `vllm serve` can be set under `engine.vllm` in the configuration, by its long name with `-` or `_`:
a boolean becomes `--name` or `--no-name`, a list is repeated after the name, a mapping goes as JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from context.errors import ConfigError
from engine.vllm.features import OWN


@dataclass(frozen=True, slots=True)
class VllmSettings:
    """What the embedded engine is started with.

    `model` is a folder or a Hugging Face id, `served_name` the name that clients see. `kv_cache_gib` is GiB of KV
    memory on a CPU build. `offline` forbids any contact with a model hub. `options` are vLLM's own, by long name.
    """

    model: str
    served_name: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    kv_cache_gib: int = 2
    offline: bool = True
    start_timeout_seconds: float = 900.0
    stop_timeout_seconds: float = 10.0
    restart_on_crash: bool = True
    max_restarts: int = 5
    log_level: str = "ERROR"


# What makes the engine tell what its caches did. A user's own value for one of these wins, except for the last three:
# without them the gateway could not do its work.
_DEFAULTS: dict[str, Any] = {
    "enable-prefix-caching": True,
    "mm-processor-cache-gb": 1,
    "disable-uvicorn-access-log": True,
    "disable-fastapi-docs": True,
    "generation-config": "vllm",
    "use-tqdm-on-load": False,
}
_REQUIRED = ("enable-prompt-tokens-details", "kv-events-config", "ec-manager-config")


def arguments(settings: VllmSettings, *, cpu: bool, required: Mapping[str, Any]) -> list[str]:
    """The command line that `vllm serve` would take for these settings.

    Args:
        settings: from the configuration.
        cpu: whether vLLM is its CPU build; the KV block is 32 tokens there (its attention wants multiples of 32).
        required: options that the gateway sets itself (`kv-events-config`, ...).

    Raises:
        ConfigError: an option is set that the gateway sets itself.
    """
    own = {name: value for name, value in by_long_name(settings.options).items() if name not in OWN}
    for name in (*_REQUIRED, "model", "served-model-name", "host", "port", "api-key", "root-path"):
        if name in own:
            raise ConfigError("settings", f"engine.vllm.{name}", "is set by Stillframe itself; remove it")
    merged: dict[str, Any] = {
        **_DEFAULTS,
        **({"block-size": 32} if cpu else {}),
        **own,
        "model": settings.model,
        "served-model-name": settings.served_name,
        "enable-prompt-tokens-details": True,
        **required,
    }
    return [word for name, value in merged.items() for word in _words(name, value)]


def by_long_name(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by their long names with `-` and nothing before them, however they are written.

    Raises:
        ConfigError: one is given in two spellings.
    """
    names: dict[str, str] = {}
    for name in options:
        other = names.setdefault(long_name(name), name)
        if other != name:
            reason = f"is given twice, as {other} and as {name}; remove one of both"
            raise ConfigError("settings", f"engine.vllm.{other}", reason)
    return {long_name(name): value for name, value in options.items()}


def long_name(name: str) -> str:
    """An option's long name with `-` and nothing before it."""
    return name.replace("_", "-").lstrip("-")


def _words(name: str, value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, Mapping):
        return [f"--{name}", json.dumps(value)]
    if isinstance(value, (list, tuple)):
        return [f"--{name}", *(str(item) for item in value)]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return [f"--{name}", str(value)]


def parse(words: list[str]) -> Namespace:
    """vLLM's own parser and validation.

    Raises:
        ConfigError: vLLM does not know an option or does not take its value; says which.
    """
    from engine.vllm import v0_32 as vllm_api

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parsed = cast("Namespace", vllm_api.make_parser().parse_args(words))
            vllm_api.validate_parsed_serve_args(parsed)
    except SystemExit as error:
        reason = said.getvalue().strip().rpartition("error: ")[2] or "not accepted by vLLM"
        raise ConfigError("settings", "engine.vllm", reason) from error
    except (TypeError, ValueError) as error:
        raise ConfigError("settings", "engine.vllm", "a value was not accepted by vLLM") from error
    return parsed
