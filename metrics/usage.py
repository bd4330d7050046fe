"""An engine's usage, read exactly: null is unreported, 0 is 0.

Engines name the same figures differently, and some name one figure twice. Each dialect below reads the names that it
knows; where two give the same figure and differ, that figure is none. A streamed answer and a whole one carry the same
object, so the figures are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from context.frozen import frozen

# More is no count of tokens, and no file holds it.
_MOST_TOKENS = 2**53


@frozen
class Usage:
    """Tokens of one turn. `None` means that the engine did not report it.

    `prompt_tokens = read_tokens + write_tokens + uncached_tokens` whenever `read_tokens` is known; a read figure above
    the prompt's, or without one, is none. `write_derived` says that the engine did not report a write figure that can
    be: all that was not read is counted as written. `loaded_tokens` came from a pool of images' KV and were not
    computed: they are a fourth part of the prompt where the engine has said so (`with_loaded`).
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    read_tokens: int | None = None
    write_tokens: int | None = None
    uncached_tokens: int | None = None
    write_derived: bool = False
    visual_tokens: int | None = None
    loaded_tokens: int | None = None


@frozen
class Figures:
    """What one dialect finds. `missed` is what was not read, where an engine says that instead of the prompt."""

    prompt: int | None = None
    completion: int | None = None
    read: int | None = None
    write: int | None = None
    missed: int | None = None
    visual: int | None = None


@dataclass(frozen=True, slots=True)
class Dialect:
    """A way to write usage: spoken where one of `keys` is there, and read by `read`."""

    keys: frozenset[str]
    read: Callable[[Mapping[str, Any]], Figures]


def read_usage(usage: Mapping[str, Any] | None) -> Usage:
    """Read a usage object in whatever dialects it is written in. Never fails, whatever the engine says."""
    if not usage:
        return Usage()
    keys, figures = usage.keys(), _NOTHING
    found = [dialect.read(usage) for dialect in DIALECTS.values() if not dialect.keys.isdisjoint(keys)]
    if found:
        figures = found[0] if len(found) == 1 else _merged(found)
    prompt, read, write = figures.prompt, figures.read, figures.write
    if prompt is None and read is not None and figures.missed is not None:
        prompt = read + figures.missed
    if prompt is None or read is None or _contradicts(prompt, read, figures.missed):
        # Figures that contradict each other are as good as none.
        return Usage(prompt, figures.completion, visual_tokens=figures.visual)
    derived = write is None or write > prompt - read
    write = prompt - read if derived or write is None else write
    return Usage(prompt, figures.completion, read, write, prompt - read - write, derived, figures.visual)


def with_loaded(usage: Usage, tokens: int) -> Usage:
    """A usage in which so many tokens are loaded ones, that stood among those that were neither read nor written, or
    among all that was not read where the engine did not tell these apart."""
    if usage.read_tokens is None or usage.write_tokens is None or usage.uncached_tokens is None:
        return usage
    from_uncached = min(tokens, usage.uncached_tokens)
    from_write = min(tokens - from_uncached, usage.write_tokens) if usage.write_derived else 0
    return replace(
        usage,
        write_tokens=usage.write_tokens - from_write,
        uncached_tokens=usage.uncached_tokens - from_uncached,
        loaded_tokens=from_uncached + from_write,
    )


def usage_of(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The usage of a whole answer or of a stream's event; None where it has none.

    Some engines put it into the choice instead of beside it when they stream (Moonshot), or call it by Gemini's name.
    """
    for value in (body.get("usage"), body.get("usageMetadata")):
        if isinstance(value, dict):
            return cast("dict[str, Any]", value)
    choices = body.get("choices")
    if isinstance(choices, list) and choices:
        return _object(_object(cast("list[Any]", choices)[0]).get("usage")) or None
    return None


def _openai(usage: Mapping[str, Any]) -> Figures:
    """OpenAI's chat completions, and what writes as it does (LiteLLM, OpenRouter, SGLang); in their details, vLLM's
    own figures.

    Source: openai-python, types/completion_usage.py::CompletionUsage; vLLM 0.32,
    entrypoints/openai/engine/protocol.py::UsageInfo with --enable-prompt-tokens-details.
    """
    details = _object(usage.get("prompt_tokens_details"))
    read = None if _is_silent_sglang(usage, details) else details.get("cached_tokens")
    return Figures(
        _count(usage.get("prompt_tokens")),
        _count(usage.get("completion_tokens")),
        _count(read),
        _same(details.get("created_cache_tokens"), details.get("cache_write_tokens")),
        None,
        _same(_object(details.get("multimodal_tokens")).get("image"), details.get("image_tokens")),
    )


def _is_silent_sglang(usage: Mapping[str, Any], details: Mapping[str, Any]) -> bool:
    """Whether `cached_tokens` is 0 only because SGLang counted the image tokens beside it.

    Without --enable-cache-report it leaves out the details of a prompt of text, and of one with images gives them with
    a 0 that nobody has counted; with it, a 0 alone leaves them out too. It alone has `reasoning_tokens` at the top.

    Source: SGLang, entrypoints/openai/usage_processor.py::UsageProcessor.calculate_token_usage.
    """
    return details.get("cached_tokens") == 0 and "image_tokens" in details and "reasoning_tokens" in usage


def _responses(usage: Mapping[str, Any]) -> Figures:
    """OpenAI's responses, whose `input_tokens` contains what was read.

    Source: openai-python, types/responses/response_usage.py::ResponseUsage.
    """
    if any(name in usage for name in _ANTHROPIC):
        return Figures()
    details = _object(usage.get("input_tokens_details"))
    return Figures(
        prompt=_count(usage.get("input_tokens")),
        completion=_count(usage.get("output_tokens")),
        read=_count(details.get("cached_tokens")),
        write=_count(details.get("cache_write_tokens")),
    )


_ANTHROPIC = ("cache_read_input_tokens", "cache_creation_input_tokens")


def _anthropic(usage: Mapping[str, Any]) -> Figures:
    """Anthropic's names. Its `input_tokens` is only what was neither read nor written; where the prompt is given as
    OpenAI does, as proxies write it, that one contains all.

    Source: anthropic-sdk-python, types/usage.py::Usage.
    """
    read, write = (_count(usage.get(name)) for name in _ANTHROPIC)
    rest, prompt = _count(usage.get("input_tokens")), None
    if "prompt_tokens" not in usage and rest is not None and read is not None and write is not None:
        prompt = rest + read + write
    return Figures(prompt=prompt, completion=_count(usage.get("output_tokens")), read=read, write=write)


def _deepseek(usage: Mapping[str, Any]) -> Figures:
    """Source: DeepSeek's API reference, `usage` of a chat completion."""
    return Figures(
        read=_count(usage.get("prompt_cache_hit_tokens")), missed=_count(usage.get("prompt_cache_miss_tokens"))
    )


def _gemini(usage: Mapping[str, Any]) -> Figures:
    """Gemini's own names, as some gateways hand them on. What was thought is generated, too.

    Source: Gemini's API reference, `UsageMetadata`.
    """
    said, thought = _count(usage.get("candidatesTokenCount")), _count(usage.get("thoughtsTokenCount"))
    return Figures(
        prompt=_count(usage.get("promptTokenCount")),
        completion=None if said is None else said + (thought or 0),
        read=_count(usage.get("cachedContentTokenCount")),
        visual=_gemini_images(usage.get("promptTokensDetails")),
    )


def _gemini_images(details: Any) -> int | None:
    listed = cast("list[Any]", details) if isinstance(details, list) else []
    counts = [_count(one.get("tokenCount")) for one in map(_object, listed) if one.get("modality") == "IMAGE"]
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


_FLAT = ("cached_tokens", "num_cached_tokens")


def _flat(usage: Mapping[str, Any]) -> Figures:
    """The read figure beside the prompt's: `cached_tokens` (Moonshot, vLLM's completions), `num_cached_tokens`."""
    return Figures(read=_agreed([_count(usage.get(name)) for name in _FLAT]))


DIALECTS: Mapping[str, Dialect] = {
    "openai": Dialect(frozenset(("prompt_tokens", "prompt_tokens_details")), _openai),
    "responses": Dialect(frozenset(("input_tokens", "input_tokens_details")), _responses),
    "anthropic": Dialect(frozenset(_ANTHROPIC), _anthropic),
    "deepseek": Dialect(frozenset(("prompt_cache_hit_tokens", "prompt_cache_miss_tokens")), _deepseek),
    "gemini": Dialect(frozenset(("promptTokenCount",)), _gemini),
    "flat": Dialect(frozenset(_FLAT), _flat),
}
_NOTHING = Figures()


def _merged(found: Sequence[Figures]) -> Figures:
    return Figures(
        _agreed([one.prompt for one in found]),
        _agreed([one.completion for one in found]),
        _agreed([one.read for one in found]),
        _agreed([one.write for one in found]),
        _agreed([one.missed for one in found]),
        _agreed([one.visual for one in found]),
    )


def _contradicts(prompt: int, read: int, missed: int | None) -> bool:
    return read > prompt or (missed is not None and read + missed != prompt)


def _agreed(values: Sequence[int | None]) -> int | None:
    """The one value that is given; None where there is none, or where there are several."""
    given = {value for value in values if value is not None}
    return given.pop() if len(given) == 1 else None


def _same(one: Any, other: Any) -> int | None:
    """What two names of one figure say; None where they differ."""
    if other is None:
        return _count(one)
    return _agreed([_count(one), _count(other)])


def _object(value: Any) -> Mapping[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_TOKENS else None
