"""The demo model's tokenizer, made from its corpus and from its own questions."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from engine.demo_model.chats import HINTS, ChatLimits, draw_chat, rng_for
from engine.demo_model.questions import KINDS
from engine.demo_model.tokenizer import corpus_lines, train_tokenizer

VOCABULARY = 2048
_CHATS = 1500


def demo_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a training: made when it begins and kept in its folder, because weights go with its ids."""
    file = folder / "tokenizer.json"
    if file.is_file():
        return Tokenizer.from_file(str(file))
    made = _make()
    made.save(str(file))
    return made


def _make() -> Tokenizer:
    limits = ChatLimits(dict.fromkeys(KINDS, 1.0), filler=0.0)
    rng = rng_for("train", 0)
    lines = list(corpus_lines())
    lines += [hint for hints in HINTS.values() for hint in hints] * 20
    lines += ["system", "user", "assistant", "tool"] * 50
    for _ in range(_CHATS):
        for turn in draw_chat(rng, "train", limits).turns:
            # Answers stand at the start of a line and, in questions, after a space.
            lines += [turn.after, turn.reply, f" {turn.reply}"]
    return train_tokenizer(lines, VOCABULARY)
