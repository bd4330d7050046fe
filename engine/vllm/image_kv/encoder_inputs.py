"""What the vision encoder has to do, or the pool to give, for several stretches of a prompt in one step."""

# vLLM leaves much of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import sys
from typing import Any


class EncoderInputs:
    """Adds up what vLLM says of each stretch. An image in two of them is needed once.

    Args:
        request: vLLM's.
        manager: of the encoder cache.
        budget: embeddings that may be computed.
    """

    def __init__(self, request: Any, manager: Any, budget: int) -> None:
        self._request, self._manager = request, manager
        self._seen: set[str] = set()
        self._whole = True
        self.budget = budget
        """What is left of it."""
        self.run: list[int] = []
        self.load: list[int] = []
        self.again: list[int] = []

    def add(self, wanted: int, run: list[int], tokens: int, budget: int, load: list[int], again: list[int]) -> None:
        """Add a stretch of `wanted` tokens, as `Scheduler._try_schedule_encoder_inputs` answers for it."""
        self._whole = self._whole and tokens == wanted
        self.budget = budget
        self.again += again
        for index in (*run, *load):
            image = self._request.mm_features[index].identifier
            into = self.again if image in self._seen else self.run if index in run else self.load
            into.append(index)
            self._seen.add(image)

    def fit(self) -> bool:
        """Whether all of it can be had in the step. The cache then has room for all together."""
        new = [*self.run, *self.load]
        if not self._whole or not new:
            return self._whole
        others = sum(self._request.get_num_encoder_embeds(index) for index in new[:-1])
        # Stretch by stretch each was promised the same room.
        return bool(self._manager.can_allocate(self._request, new[-1], sys.maxsize, others))
