"""Whether the engine keeps a prefix cache, and whether it tells what it reads from it: by its own word or a question at
the start, and from then on by its answers."""

from __future__ import annotations

from typing import Literal

from engine.base import EngineInfo
from metrics.usage import Usage, read_usage, usage_of

Told = Literal["yes", "no", "sometimes", "unknown"]
_NO_CACHE = (
    "it keeps no prefix cache, so that every prompt is computed whole; start it with prefix caching "
    "(enable-prefix-caching)"
)
SILENT = (
    "it does not report what it reads from its prefix cache, so that nothing can be said about it; "
    "start vLLM with --enable-prompt-tokens-details, SGLang with --enable-cache-report"
)


class CacheReporting:
    """What is known of one engine. Called from one event loop.

    `prefix_caching` is None where it is not known.
    """

    def __init__(self) -> None:
        self.prefix_caching: bool | None = None
        self._spoke = self._was_silent = False

    @property
    def reports(self) -> Told:
        """Whether it reports what it reads; `unknown` until it was asked or has answered once, `sometimes` where some
        answers tell and others do not, as those of several upstreams may."""
        if self._spoke:
            return "sometimes" if self._was_silent else "yes"
        return "no" if self._was_silent else "unknown"

    def learn(self, info: EngineInfo) -> None:
        """What the engine says of itself once it is ready, and what it answered when it was asked."""
        self.prefix_caching = info.caches_prefix
        if info.reports_read is not None:
            self._spoke, self._was_silent = self._spoke or info.reports_read, self._was_silent or not info.reports_read
        for answer in info.asked_answers:
            self.heed(read_usage(usage_of(answer)))

    def heed(self, usage: Usage) -> bool:
        """Heed a completed answer's usage. Whether it is the first of an engine that does not tell."""
        if usage.read_tokens is not None:
            self._spoke = True
            return False
        if usage.prompt_tokens is None:
            # It tells nothing at all, which is no word about the cache.
            return False
        is_first = not self._was_silent
        self._was_silent = True
        return is_first

    @property
    def warnings(self) -> tuple[str, ...]:
        """What somebody should know, with the remedy."""
        found = [_NO_CACHE] if self.prefix_caching is False else []
        if self.reports == "no":
            found.append(SILENT)
        return tuple(found)


def yes_or_no(answer: bool | None) -> Told:
    """An answer in the same words."""
    return "unknown" if answer is None else "yes" if answer else "no"
