"""Every private name of vLLM 0.32 that the gateway's process uses, in one place.

Each version of vLLM has a few such modules, by what they load and for whom: this one for the gateway's process,
`core_0_32.py` for the engine core and its workers, `narrowing_0_32.py` for layers that compute fewer rows, and
`tiers_0_32.py` for the tiers below the prefix cache.

Importing this module imports vLLM. `check()` says at start what moved, so that another version of vLLM fails with a
sentence and not in the middle of a request.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateImportUsage=false, reportUntypedBaseClass=false

from __future__ import annotations

from typing import Any

import vllm
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.platforms import current_platform
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.engine.async_llm import AsyncLLM

from context.errors import ConfigError

__all__ = [
    "AllBlocksCleared",
    "AsyncEngineArgs",
    "AsyncLLM",
    "BlockRemoved",
    "BlockStored",
    "EncoderCacheManager",
    "KVEventBatch",
    "UsageContext",
    "build_app",
    "check",
    "init_app_state",
    "is_cpu",
    "make_parser",
    "validate_parsed_serve_args",
]

VERSION = "0.32"
_NEEDED: dict[str, tuple[Any, tuple[str, ...]]] = {
    "EncoderCacheManager": (
        EncoderCacheManager,
        ("create_manager", "check_and_update_cache", "can_allocate", "allocate", "free", "reset"),
    ),
    "AsyncLLM": (
        AsyncLLM,
        (
            "from_vllm_config",
            "errored",
            "shutdown",
            "reset_prefix_cache",
            "reset_mm_cache",
            "reset_encoder_cache",
            "collective_rpc",
            "get_supported_tasks",
        ),
    ),
}


def check() -> None:
    """Say what of vLLM is not as this module expects.

    Raises:
        ConfigError: another version of vLLM is installed, or a name moved.
    """
    version = str(vllm.__version__)
    # What `AsyncLLM` is derived from has some of them as well, without anything in them.
    moved = [f"{name}.{part}" for name, (owner, parts) in _NEEDED.items() for part in parts if part not in vars(owner)]
    if not version.startswith(VERSION + ".") or moved:
        reason = f"Stillframe embeds vLLM {VERSION}, found {version}" + (f"; missing {moved}" if moved else "")
        raise ConfigError("environment", "", f"{reason}. Install the pinned requirements.")


def make_parser() -> FlexibleArgumentParser:
    """The argument parser of `vllm serve`."""
    return make_arg_parser(FlexibleArgumentParser(prog="engine.vllm"))


def is_cpu() -> bool:
    """Whether vLLM runs its CPU build."""
    return bool(current_platform.is_cpu())
