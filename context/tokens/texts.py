"""Counting texts on the event loop: what was counted is remembered, long texts are sampled, a budget is kept."""

from __future__ import annotations

from context.tokens.vocabulary import Vocabulary

# Above it a text is read in pieces that make up as much. A text without a place to cut, such as one letter again and
# again, takes tiktoken more than linear time.
_WHOLE_CHARS = 4096
_PIECES = 16
_PIECE_CHARS = _WHOLE_CHARS // _PIECES
_MEMO_ENTRIES = 32_768
# Until something was counted.
_BYTES_PER_TOKEN = 4.0
# Old texts weigh half from then on.
_RATE_BYTES = 1 << 20


class Budget:
    """How many characters may still be counted."""

    __slots__ = ("chars",)

    def __init__(self, chars: int) -> None:
        self.chars = chars


class TextCounter:
    """Tokens of texts by one vocabulary. Called from one thread; holds no text.

    A text of over 4,096 characters is extrapolated from 16 pieces of 256, spread evenly.
    """

    def __init__(self, vocabulary: Vocabulary, memo_entries: int = _MEMO_ENTRIES) -> None:
        """`memo_entries` bounds what is remembered, about 100 bytes each."""
        self._vocabulary = vocabulary
        # By hash: 64 bits that no client can foresee, and that Python keeps with each text. Two generations make an
        # LRU that costs one look-up.
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}
        self._half = max(1, memo_entries // 2)
        self._bytes, self._tokens = _BYTES_PER_TOKEN, 1.0

    def budget(self) -> Budget:
        """What one request may have counted."""
        return Budget(self._vocabulary.budget_chars)

    def tokens(self, text: str, budget: Budget | None = None) -> int:
        """A text's tokens. With a budget that is used up, by the texts counted so far: tokens for each byte."""
        key = hash(text)
        if (known := self._young.get(key)) is not None:
            return known
        if (known := self._old.get(key)) is None:
            if budget is not None:
                if budget.chars <= 0:
                    return round(_size(text) * self._tokens / self._bytes)
                budget.chars -= min(len(text), _WHOLE_CHARS)
            known = self._count(text)
        if len(self._young) >= self._half:
            self._old, self._young = self._young, {}
        self._young[key] = known
        return known

    def _count(self, text: str) -> int:
        count = self._vocabulary.count
        if len(text) <= _WHOLE_CHARS:
            size, tokens = _size(text), count(text)
            found = tokens
        else:
            step = (len(text) - _PIECE_CHARS) / (_PIECES - 1)
            pieces = [text[round(at * step) :][:_PIECE_CHARS] for at in range(_PIECES)]
            size, tokens = sum(map(_size, pieces)), sum(map(count, pieces))
            # A cut through a word makes two tokens of one, at one end of a piece and sometimes at both.
            found = round(_size(text) * (tokens - _PIECES / 2) / size)
        self._bytes, self._tokens = self._bytes + size, self._tokens + tokens
        if self._bytes > _RATE_BYTES:
            self._bytes, self._tokens = self._bytes / 2, self._tokens / 2
        return found


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
