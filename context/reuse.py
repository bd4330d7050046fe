"""What a request allows of approximate KV of its images."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reuse:
    """The share of each image's tokens that is computed although its KV is kept, 0 to 1; 1: all, exactly.

    `profile`: the share is a mean over the model's layers, which compute as much of it as the engine's profile of them
    says. An engine without one has all layers compute the same.
    """

    ratio: float
    profile: bool = False

    @property
    def approximate(self) -> bool:
        """Whether anything is taken from elsewhere."""
        return self.ratio < 1

    @property
    def spelled(self) -> str:
        """As a client asks for it: `0.05`, or `0.05; profile`."""
        return f"{self.ratio:g}{'; profile' if self.profile else ''}"
