"""The one error of a benchmark."""

from __future__ import annotations

from context.errors import StillframeError


class BenchError(StillframeError):
    """A measurement could not be made: a process did not start, or answered with something else than success."""
