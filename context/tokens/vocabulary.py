"""What counts a text's tokens: the shipped vocabulary, through tiktoken.

The shipped vocabulary is Qwen's, 151,643 byte-level BPE tokens, which Qwen2-VL, Qwen2.5-VL and Qwen3-VL share; where it
comes from is told in `NOTICE` beside it, and why it was chosen in docs/adr/0010-token-estimates.md. tiktoken would
download its own vocabularies on first use; nothing is downloaded here.

    qwen.bpe.xz   xz of: one byte a token with its length, then all tokens, both by rank

`python -m context.tokens.vocabulary FILE.tiktoken` writes it anew.
"""

from __future__ import annotations

import base64
import lzma
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path

QWEN_FILE = "qwen.bpe.xz"
QWEN_TOKENS = 151_643
# Source: dashscope 2.0.2, tokenizers/qwen_tokenizer.py::PAT_STR; Qwen's tokenizer.json has the same one.
_QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Some four milliseconds of the event loop.
_FAST_CHARS = 32_768


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A vocabulary that counts.

    Attributes:
        count: tokens of a text. What looks like a special token may count as the text that it is.
        budget_chars: how much of text a request may have counted, so that the event loop is not held up.
    """

    count: Callable[[str], int]
    budget_chars: int = _FAST_CHARS


@lru_cache(maxsize=1)
def shipped() -> Vocabulary:
    """The shipped vocabulary. The first call takes about a third of a second; make it off the event loop."""
    tokens = unpack(resources.files("context.tokens").joinpath(QWEN_FILE).read_bytes(), QWEN_TOKENS)
    return by_ranks({token: rank for rank, token in enumerate(tokens)}, _QWEN_PATTERN)


def by_ranks(ranks: Mapping[bytes, int], pattern: str) -> Vocabulary:
    """A byte-level BPE vocabulary: tokens by rank, and the pattern that cuts a text into words.

    Raises:
        Exception: tiktoken's own, where the pattern or the ranks cannot be used.
    """
    from tiktoken import Encoding

    encode = Encoding("stillframe", pat_str=pattern, mergeable_ranks=dict(ranks), special_tokens={}).encode_ordinary
    return Vocabulary(lambda text: len(encode(text)))


def pack(lines: Iterable[bytes]) -> bytes:
    """The shipped form of a `.tiktoken` file, given as its lines: a token in base64 and its rank.

    Raises:
        ValueError: ranks are not 0, 1, 2, ... in order, or a token is longer than 255 bytes.
    """
    tokens: list[bytes] = []
    for line in lines:
        if fields := line.split():
            if int(fields[1]) != len(tokens):
                raise ValueError(f"rank {len(tokens)} is missing")
            tokens.append(base64.b64decode(fields[0], validate=True))
    return lzma.compress(bytes(len(token) for token in tokens) + b"".join(tokens), preset=9 | lzma.PRESET_EXTREME)


def unpack(packed: bytes, count: int) -> list[bytes]:
    """The tokens of `pack`, by rank."""
    data = lzma.decompress(packed)
    tokens: list[bytes] = []
    at = count
    for length in data[:count]:
        tokens.append(data[at : at + length])
        at += length
    return tokens


if __name__ == "__main__":
    import sys

    with open(sys.argv[1], "rb") as given:
        Path(__file__).with_name(QWEN_FILE).write_bytes(pack(given))
