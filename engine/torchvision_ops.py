"""Make torchvision importable beside a build of torch that it was not compiled for.

torchvision 0.28.0 from PyPI is built against the CUDA build of torch. Beside the CPU build its compiled operators do
not load, and `import torchvision` fails because it registers fake kernels for two of them. No model served here calls
these operators; declaring their schemas is enough. It must happen in every process before torchvision is imported,
also in those that vLLM starts by itself: `engine/vllm/site/sitecustomize.py` does it there.
"""

from __future__ import annotations

import importlib
import os

_SCHEMAS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
SWITCH = "STILLFRAME_DECLARE_TORCHVISION_OPERATORS"


def declare_missing() -> None:
    """Declare the missing operators here and, with `engine/vllm/environment.py`, in child processes.

    Does nothing where torchvision loads as it is.
    """
    try:
        importlib.import_module("torchvision")  # one that works declares its own operators
    except RuntimeError:
        declare()
        os.environ[SWITCH] = "1"
    except ImportError:
        return


def declare() -> None:
    """Declare the operators that are not there."""
    import torch

    for name, schema in _SCHEMAS.items():
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", schema)
