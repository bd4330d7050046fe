"""What a turn costs, by a table of prices."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass

from metrics.usage import Usage

_PER = 1_000_000
_MOST_MODEL_CHARACTERS = 512


@dataclass(frozen=True, slots=True)
class Price:
    """Prices of one kind of model, for a million tokens each, in whatever currency.

    Attributes:
        model: a glob of its name (`qwen*`).
        input: prompt tokens that were neither read nor loaded nor written.
        cached_input: those that were read from the cache, or loaded from a pool of images' KV.
        cache_write: those that were written to it.
        output: generated tokens.
    """

    model: str
    input: float
    cached_input: float
    cache_write: float
    output: float


class Prices:
    """A table of prices; the first that fits a model counts."""

    def __init__(self, prices: Sequence[Price] = ()) -> None:
        self._prices = [(re.compile(fnmatch.translate(price.model)), price) for price in prices]
        self._known: dict[str, Price | None] = {}

    def cost(self, model: str, usage: Usage) -> float | None:
        """What a turn costs; None where no price fits, or where the engine did not report what it depends on."""
        price = self._price(model)
        if price is None or usage.prompt_tokens is None or usage.completion_tokens is None:
            return None
        output = usage.completion_tokens * price.output
        if price.input == price.cached_input == price.cache_write:
            return (usage.prompt_tokens * price.input + output) / _PER
        if usage.read_tokens is None or usage.write_tokens is None or usage.uncached_tokens is None:
            return None
        read = (usage.read_tokens + (usage.loaded_tokens or 0)) * price.cached_input
        write = usage.write_tokens * price.cache_write
        return (read + write + usage.uncached_tokens * price.input + output) / _PER

    def of_reading(self, model: str) -> float | None:
        """What a token less costs that is read instead of computed; None where no price fits."""
        price = self._price(model)
        return None if price is None else (price.input - price.cached_input) / _PER

    def _price(self, model: str) -> Price | None:
        if not self._prices or len(model) > _MOST_MODEL_CHARACTERS:
            return None
        if model not in self._known:
            if len(self._known) > _MOST_MODEL_CHARACTERS:
                self._known.clear()
            self._known[model] = next((price for glob, price in self._prices if glob.match(model)), None)
        return self._known[model]
