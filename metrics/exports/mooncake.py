"""Turns as a trace of block hashes, as Mooncake published its own and simulators read them (kvcache-simulator).

Source: kvcache-ai/Mooncake, FAST25-release: `timestamp` in milliseconds from the first request on, `hash_ids` the same
number for a block of `block_size` tokens that is equal with everything before it; the last block may not be full.
"""

from __future__ import annotations

from typing import Any

from metrics.exports.token_ids import BlockIds, content_ids
from metrics.exports.tokens import PromptTokens
from metrics.exports.turns import ExportedTurn

# What Mooncake's own traces have.
BLOCK_TOKENS = 512


class MooncakeTrace:
    """Makes the lines of one trace, in the order of the turns.

    Args:
        block_tokens: tokens in a block: the engine's own (16) is exact, 512 is what Mooncake's traces have.
    """

    def __init__(self, block_tokens: int = BLOCK_TOKENS) -> None:
        self._blocks = BlockIds(block_tokens)
        self._first: int | None = None

    def line(
        self, turn: ExportedTurn, prompt: PromptTokens, output_tokens: int, whole: PromptTokens | None = None
    ) -> dict[str, Any]:
        """One turn.

        Args:
            turn, prompt: which one.
            output_tokens: of its reply.
            whole: the prompt and the reply behind it: `hash_ids` then goes on over the reply's full blocks, behind
                those of `input_length`, for they are in the engine's cache when the next turn comes. The block in which
                the reply begins is named with what it holds then.
        """
        if self._first is None:
            self._first = turn.milliseconds
        size = self._blocks.block_tokens
        salt = f"{turn.tenant}\0{turn.record.model if turn.record is not None else ''}"
        numbers = self._blocks.of(salt, content_ids(prompt))
        if whole is not None:
            replied = self._blocks.of(salt, content_ids(whole)[: len(whole.ids) // size * size])
            numbers = replied if len(replied) >= len(numbers) else numbers
        return {
            "timestamp": max(0, turn.milliseconds - self._first),
            "input_length": len(prompt.ids),
            "output_length": output_tokens,
            "hash_ids": numbers,
            "block_size": size,
        }
