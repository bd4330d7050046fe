"""A model folder's own tokenizer, for counting.

Most are byte-level BPE with one pattern that cuts a text into words: those are rebuilt as a tiktoken encoding, which
counts ten times as fast as `tokenizers` does. Whether the rebuilt one counts the same is tried on a few texts; where it
does not, and for all other kinds, `tokenizers` counts, on a smaller budget.
"""

# tokenizers leaves much of its types open.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic_core import from_json

from context.tokens.vocabulary import Vocabulary, by_ranks

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Some four milliseconds of the event loop.
_SLOW_CHARS = 4096
# Source: tokenizers 0.23, pre_tokenizers/byte_level.rs::RE, the pattern of GPT-2.
_BYTE_LEVEL_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_TRIED = (
    "The quick brown fox doesn't jump over 13 lazy dogs; it's 12:45, and THEY'RE asleep.\n\n  - Done?  Yes!",
    'def f(x: int) -> dict[str, int]:\n\treturn {"key": x ** 2}  # "naïve"\r\n\n\n    print(f(0x1F))',
    '{"name": "click", "arguments": {"x": 1024, "y": 768.5, "text": "\\u00e9"}}',
    "今天天气很好，我们去公园吧。東京は夜の七時。Быстрая лиса. Ärger über Öl 🙂🇩🇪",
)
# Control characters, space, 0x7f to 0xa0 and the soft hyphen are shown as characters from U+0100 on.
_SHOWN = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))


def of_folder(folder: Path) -> Vocabulary | None:
    """The vocabulary of the `tokenizer.json` in a folder; None where there is none that can be read.

    Takes up to two seconds for a large one; call it off the event loop.
    """
    file = folder / "tokenizer.json"
    if not file.is_file():
        return None
    try:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(file))
        # Settings for training and for fixed shapes: a prompt is neither cut nor filled.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        wanted = [_count(tokenizer, text) for text in _TRIED]
    except Exception:
        # The library raises bare exceptions. An engine that cannot read the file either says so itself.
        return None
    try:
        fast = _rebuilt(from_json(file.read_bytes()))
        if fast is not None and [fast.count(text) for text in _TRIED] == wanted:
            return fast
    except Exception:
        # A file of another shape than expected, or a pattern that tiktoken does not know.
        return Vocabulary(lambda text: _count(tokenizer, text), _SLOW_CHARS)
    return Vocabulary(lambda text: _count(tokenizer, text), _SLOW_CHARS)


def _rebuilt(data: Any) -> Vocabulary | None:
    """A byte-level BPE tokenizer as a tiktoken encoding; None where it is of another kind."""
    pattern = _pattern(data["pre_tokenizer"])
    if data["model"]["type"] != "BPE" or pattern is None:
        return None
    shown = {chr(byte): byte for byte in _SHOWN}
    shown |= {chr(0x100 + at): byte for at, byte in enumerate(sorted(set(range(256)) - set(_SHOWN)))}
    ranks = {bytes((byte,)): byte for byte in range(256)}
    for merge in data["model"]["merges"]:
        pair: list[str] = merge.split(" ") if isinstance(merge, str) else merge
        ranks.setdefault(bytes(shown[char] for char in "".join(pair)), len(ranks))
    return by_ranks(ranks, pattern)


def _pattern(pre_tokenizer: dict[str, Any]) -> str | None:
    """The one pattern that cuts a text into words before its bytes are merged."""
    steps = cast("list[dict[str, Any]]", pre_tokenizer.get("pretokenizers", [pre_tokenizer]))
    last = steps[-1]
    if last["type"] != "ByteLevel" or last["add_prefix_space"]:
        return None
    if len(steps) == 1:
        return _BYTE_LEVEL_PATTERN if last.get("use_regex", True) else None
    first = steps[0]
    whole = first["type"] == "Split" and first["behavior"] == "Isolated" and not first["invert"]
    return first["pattern"].get("Regex") if whole and len(steps) == 2 and not last.get("use_regex", True) else None


def _count(tokenizer: Tokenizer, text: str) -> int:
    try:
        return len(tokenizer.encode(text, add_special_tokens=False).ids)
    except (TypeError, UnicodeEncodeError):
        # Half of a surrogate pair, which JSON can hold and UTF-8 cannot.
        return len(tokenizer.encode(text.encode("utf-8", "replace").decode(), add_special_tokens=False).ids)
