"""Which model the embedded engine loads: the bundled demo model, a random one, a folder, or a Hugging Face id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from app.settings import Settings
from context.errors import ConfigError
from context.files import expanded
from engine.demo_model import bundled_folder

DEMO = "demo"
# The same architecture with seeded random weights, whose answers are noise.
RANDOM = "random"
# Both are small; these keep their start short and their memory low. A value in engine.vllm wins.
_DEMO_OPTIONS: dict[str, Any] = {
    "max-model-len": 16_384,
    "enforce-eager": True,
    "max-num-seqs": 32,
    "enable-auto-tool-choice": True,
    "tool-call-parser": "hermes",
}


def resolve_model(settings: Settings) -> tuple[str, dict[str, Any]]:
    """The folder or id to load, and vLLM's options for it.

    Raises:
        ConfigError: the folder holds no model, or the random model cannot be made.
    """
    if settings.model in (DEMO, RANDOM):
        small = bundled_folder() if settings.model == DEMO else random_folder(settings.data_path)
        return str(small), {**_DEMO_OPTIONS, **_dashed(settings.engine.vllm)}
    folder = expanded(settings.model, "model")
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ConfigError("settings", "model", f"{folder} holds no model: there is no config.json in it")
        return str(folder), dict(settings.engine.vllm)
    if settings.model.startswith((".", "/", "~")):
        raise ConfigError("settings", "model", f"{folder} is not a folder")
    if settings.engine.offline and not _in_hub_cache(settings.model):
        reason = (
            f"{settings.model!r} is not on this machine and nothing is downloaded by default; give a folder, or set "
            "engine.offline: false to allow the download"
        )
        raise ConfigError("settings", "model", reason)
    return settings.model, dict(settings.engine.vllm)


def random_folder(data: Path) -> Path:
    """The random model's folder, made on first use.

    Raises:
        ConfigError: it cannot be written.
    """
    from engine.demo_model.random_checkpoint import build

    try:
        return build(data / "models" / "random")
    except OSError as error:
        reason = f"cannot make the random model in {data} ({error.strerror}); free some space or choose another folder"
        raise ConfigError("settings", "data_dir", reason) from error


def _in_hub_cache(name: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    try:
        return isinstance(try_to_load_from_cache(name, "config.json"), str)
    except ValueError:
        return False


def _dashed(options: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "-"): value for name, value in options.items()}
