"""Runs at the start of every child process of the embedded engine; see `engine/torchvision_ops.py`.

It waits for the import of torchvision, so that a process which does not need it does not pay for importing torch.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import threading
import time
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType


class _DeclareFirst:
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            source = Path(__file__).parents[2] / "torchvision_ops.py"
            spec = importlib.util.spec_from_file_location("stillframe_torchvision_ops", source)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            module.declare()
        return None


if os.environ.get("STILLFRAME_DECLARE_TORCHVISION_OPERATORS") == "1":
    sys.meta_path.insert(0, _DeclareFirst())


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


# A gateway that is killed can tell nobody: vLLM's engine core would outlive it. The process that cleans up what the
# others leave behind has to.
if os.environ.get("STILLFRAME_END_WITH_PARENT") == "1" and "resource_tracker" not in " ".join(sys.orig_argv):
    # A terminal's interrupt goes to all of its foreground group; the gateway alone decides when the engine ends.
    with contextlib.suppress(OSError):
        os.setpgrp()
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True, name="end-with-parent").start()

# This file hides another sitecustomize further down the path; run that one too.
_elsewhere = PathFinder.find_spec(
    "sitecustomize", [path for path in sys.path if Path(path or ".").resolve() != Path(__file__).parent.resolve()]
)
if _elsewhere is not None and _elsewhere.loader is not None:
    _elsewhere.loader.exec_module(importlib.util.module_from_spec(_elsewhere))
