"""The bundled demo model: a tiny Qwen2.5-VL trained on procedural pictures, and what it was made with."""

from __future__ import annotations

from pathlib import Path


def bundled_folder() -> Path:
    """The checkpoint's folder, as transformers and vLLM load it."""
    return Path(__file__).parent / "checkpoint"
