"""An engine's usage, read exactly: null is unreported, 0 is 0.

Source: vLLM 0.32, vllm/entrypoints/openai/engine/protocol.py::UsageInfo with --enable-prompt-tokens-details.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one turn. `None` means that the engine did not report it.

    `prompt_tokens = read_tokens + write_tokens + uncached_tokens` whenever `read_tokens` is known; a read figure above
    the prompt's is none. `write_derived` says that the engine did not report a write figure that can be: all that was
    not read is counted as written.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    read_tokens: int | None = None
    write_tokens: int | None = None
    uncached_tokens: int | None = None
    write_derived: bool = False
    visual_tokens: int | None = None


def read_usage(usage: Mapping[str, Any] | None) -> Usage:
    """Read OpenAI's usage object, with vLLM's details where they are."""
    if not usage:
        return Usage()
    details = _object(usage.get("prompt_tokens_details"))
    prompt, read = _count(usage.get("prompt_tokens")), _count(details.get("cached_tokens"))
    write = _count(details.get("created_cache_tokens"))
    uncached: int | None = None
    derived = False
    if prompt is not None and read is not None and read > prompt:
        # Figures that contradict each other are as good as none.
        read = write = None
    elif prompt is not None and read is not None:
        derived = write is None or write > prompt - read
        write = prompt - read if derived or write is None else write
        uncached = prompt - read - write
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=_count(usage.get("completion_tokens")),
        read_tokens=read,
        write_tokens=write,
        uncached_tokens=uncached,
        write_derived=derived,
        visual_tokens=_count(_object(details.get("multimodal_tokens")).get("image")),
    )


def _object(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
