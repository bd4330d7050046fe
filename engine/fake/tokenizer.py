"""Text to token ids and back, without a vocabulary file, or with a checkpoint's.

The built-in tokenizer cuts text into short pieces (about four characters, a leading space with its word, newlines and
digits apart) whose ids hold their bytes: it needs no table, it is exact both ways, and equal text always gives equal
ids.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, cast

from tokenizers import Tokenizer as TokenizerFile
from tokenizers.decoders import DecodeStream

from context.errors import ConfigError

IMAGE_PAD = "<|image_pad|>"
END_OF_TURN = "<|im_end|>"
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    END_OF_TURN,
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    IMAGE_PAD,
    "<|video_pad|>",
)
_SPECIAL_IDS = {text: number for number, text in enumerate(SPECIAL_TOKENS, start=1)}
_SPECIAL_TEXTS = {number: text for text, number in _SPECIAL_IDS.items()}
_SPLIT = re.compile("(" + "|".join(map(re.escape, SPECIAL_TOKENS)) + ")")
_PIECE = re.compile(r" ?[^\W\d_]{1,4}| ?\d{1,3}|\n+| ?[^\w\s]{1,2}|.", re.DOTALL)
_PIECE_BYTES = 5
_CACHED_TEXT_CHARACTERS = 32 * 1024


class Tokenizer(Protocol):
    """What the fake engine needs of a tokenizer."""

    @property
    def image_token(self) -> int: ...

    @property
    def end_token(self) -> int: ...

    def encode(self, text: str) -> list[int]:
        """Token ids of a rendered prompt; special tokens in the text become theirs."""
        ...

    def decode_each(self, ids: Sequence[int]) -> list[str]:
        """The text that each token adds to the ones before it. Special tokens add none."""
        ...


class BuiltinTokenizer:
    """The tokenizer without a file. Ids below 256 are special tokens; above, a leading 1 and then the piece's bytes."""

    image_token = _SPECIAL_IDS[IMAGE_PAD]
    end_token = _SPECIAL_IDS[END_OF_TURN]

    def encode(self, text: str) -> list[int]:
        """See `Tokenizer.encode`."""
        ids: list[int] = []
        for part in _SPLIT.split(text):
            if not part:
                continue
            if (special := _SPECIAL_IDS.get(part)) is not None:
                ids.append(special)
            else:
                # A conversation repeats its messages every turn: most parts were cut before.
                ids.extend(_cut(part) if len(part) > _CACHED_TEXT_CHARACTERS else _cut_cached(part))
        return ids

    def decode_each(self, ids: Sequence[int]) -> list[str]:
        """See `Tokenizer.decode_each`."""
        texts: list[str] = []
        pending = b""
        for number in ids:
            if number < 256:
                texts.append("")
                continue
            pending += number.to_bytes(_PIECE_BYTES + 1, "big").lstrip(b"\0")[1:]
            try:
                texts.append(pending.decode())
                pending = b""
            except UnicodeDecodeError:
                # A character of several bytes may be cut in two: its text comes with its last byte.
                texts.append("")
        return texts


@lru_cache(maxsize=1024)
def _cut_cached(text: str) -> tuple[int, ...]:
    return _cut(text)


def _cut(text: str) -> tuple[int, ...]:
    return tuple(number for piece in _PIECE.findall(text) for number in _piece_ids(piece))


@lru_cache(maxsize=65_536)
def _piece_ids(piece: str) -> tuple[int, ...]:
    data = piece.encode("utf-8", "replace")
    cuts = (data[at : at + _PIECE_BYTES] for at in range(0, len(data), _PIECE_BYTES))
    return tuple(int.from_bytes(b"\1" + cut, "big") for cut in cuts)


class CheckpointTokenizer:
    """A Hugging Face checkpoint's `tokenizer.json`.

    Raises:
        ConfigError: the folder has none, or it lacks the image placeholder or the end of turn.
    """

    def __init__(self, folder: Path) -> None:
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise ConfigError("fake engine", "checkpoint", "the folder holds no tokenizer.json")
        self._tokenizer = TokenizerFile.from_file(str(file))
        self.image_token = self._id(IMAGE_PAD)
        self.end_token = self._id(_end_token(folder))

    def encode(self, text: str) -> list[int]:
        """See `Tokenizer.encode`."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode_each(self, ids: Sequence[int]) -> list[str]:
        """See `Tokenizer.decode_each`."""
        stream = DecodeStream(skip_special_tokens=True)
        return [stream.step(self._tokenizer, number) or "" for number in ids]

    def _id(self, token: str) -> int:
        number = self._tokenizer.token_to_id(token)
        if number is None:
            raise ConfigError("fake engine", "checkpoint", f"its tokenizer has no token {token}")
        return number


def _end_token(folder: Path) -> str:
    settings = folder / "tokenizer_config.json"
    token: Any = json.loads(settings.read_text()).get("eos_token") if settings.is_file() else None
    token = cast("dict[str, Any]", token).get("content") if isinstance(token, dict) else token
    if not isinstance(token, str):
        raise ConfigError("fake engine", "checkpoint", "its tokenizer_config.json names no eos_token")
    return token
