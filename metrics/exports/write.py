"""Writes recorded turns to a file in one of the formats, a line for each turn."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from context.errors import ConfigError
from context.estimates import message_tokens
from context.store.turn_codec import value_bytes
from metrics.exports.jsonl import openai_line
from metrics.exports.mooncake import BLOCK_TOKENS, MooncakeTrace
from metrics.exports.token_ids import reply_line, token_line
from metrics.exports.tokens import PromptTokens, Tokens
from metrics.exports.turns import ExportedTurn

Format = Literal["openai", "token_ids", "mooncake"]
FORMATS: tuple[Format, ...] = ("openai", "token_ids", "mooncake")
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Written:
    """What was written: turns, and those of them whose images' places could not be told."""

    turns: int
    unplaced: int


async def write(
    turns: Iterable[ExportedTurn],
    format: Format,
    file: Path,
    tokens: Tokens | None,
    *,
    block_tokens: int = BLOCK_TOKENS,
    replies: bool = False,
    progress: Progress = lambda _: None,
) -> Written:
    """Write turns; the file is there once all are in it, and then for its owner alone.

    Args:
        turns: in the order of their time.
        format: of the lines.
        file: `-` for standard output.
        tokens: makes the token ids that `token_ids` and `mooncake` need.
        block_tokens: tokens in a block of `mooncake`.
        replies: what is in the engine's cache once it has answered is in those formats, too.
        progress: told how many turns are written.

    Raises:
        ConfigError: the file cannot be written, or a turn not be read.
        EngineUnavailable, TurnStoreError: on the way.
    """
    count = unplaced = 0
    trace = MooncakeTrace(block_tokens)
    with _Output(file) as output:
        for turn in turns:
            if format == "openai":
                output.line(value_bytes(openai_line(turn)))
            else:
                assert tokens is not None, "these need token ids"
                prompt = await tokens.prompt(turn)
                whole = await _replied(turn, prompt, tokens) if replies else None
                unplaced += prompt.images is None
                if format == "mooncake":
                    output.line(value_bytes(trace.line(turn, prompt, reply_tokens(turn), whole)))
                else:
                    output.line(value_bytes(token_line(turn, prompt)))
                    if whole is not None:
                        output.line(value_bytes(reply_line(turn, whole)))
            count += 1
            progress(count)
    return Written(count, unplaced)


async def _replied(turn: ExportedTurn, prompt: PromptTokens, tokens: Tokens) -> PromptTokens | None:
    """The prompt with its reply; None where there is none, or a template shows it otherwise than it was made."""
    if turn.reply is None:
        return None
    whole = await tokens.prompt(turn, replied=True)
    return whole if whole.ids[: len(prompt.ids)] == prompt.ids else None


def reply_tokens(turn: ExportedTurn) -> int:
    """Tokens of the reply: the engine's figure, an estimate where there is none, 0 where there was no reply."""
    if turn.record is not None and turn.record.completion_tokens is not None:
        return turn.record.completion_tokens
    return message_tokens(turn.reply) if turn.reply is not None else 0


class _Output:
    """A file that takes its name when all is written."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._part = file.with_name(f".{file.name}.part")
        self._is_stdout = str(file) == "-"

    def __enter__(self) -> _Output:
        if self._is_stdout:
            self._stream = sys.stdout.buffer
            return self
        try:
            # What people said stands in it: readable by its owner alone.
            self._stream = open(os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
        except OSError as error:
            raise self._failed(error) from error
        return self

    def line(self, data: bytes) -> None:
        try:
            self._stream.write(data + b"\n")
        except OSError as error:
            raise self._failed(error) from error

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._is_stdout:
            self._stream.flush()
            return
        try:
            self._stream.close()
            if kind is None:
                os.replace(self._part, self._file)
        except OSError as error:
            if kind is None:
                raise self._failed(error) from error
        finally:
            self._part.unlink(missing_ok=True)

    def _failed(self, error: OSError) -> ConfigError:
        return ConfigError("flag --out", str(self._file), f"cannot be written ({error.strerror}); name another file")
