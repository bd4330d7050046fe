"""What the engine's processes are started with, by environment: vLLM's switches and this package's own."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

# Its sitecustomize.py runs at the start of every child process of the engine.
SITE = Path(__file__).parent / "site"


def set_environment(*, offline: bool, kv_cache_gib: int, log_level: str) -> None:
    """Set what vLLM and its libraries read when they are first imported. A value that is already set wins."""
    values = {
        "VLLM_CPU_KVCACHE_SPACE": str(kv_cache_gib),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": log_level,
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        # Its workers do not end by themselves on CPU; the default makes every stop five seconds longer.
        "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": "1",
        "STILLFRAME_END_WITH_PARENT": "1",
    }
    if log_level in ("WARNING", "ERROR"):
        # Progress bars and warnings of the libraries below vLLM, which nobody who runs a gateway can act on.
        values |= {"TRANSFORMERS_VERBOSITY": "error", "PYTHONWARNINGS": "ignore", "TORCH_CPP_LOG_LEVEL": "ERROR"}
        warnings.filterwarnings("ignore", module=r"vllm\.|torch\.|transformers\.")
    if offline:
        values |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    for name, value in values.items():
        os.environ.setdefault(name, value)
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if str(SITE) not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(SITE), *paths])
