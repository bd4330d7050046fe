"""Vocabularies: the shipped one is whole and is Qwen's; a folder's own counts as its tokenizer does."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from context.tokens.folder import of_folder
from context.tokens.vocabulary import QWEN_FILE, QWEN_TOKENS, pack, shipped, unpack

# Counted with the tokenizer.json of Qwen3.
QWEN_COUNTS = {
    "": 0,
    "The quick brown fox doesn't jump over 13 lazy dogs.": 14,
    '{"name": "click", "arguments": {"x": 1024}}': 18,
    "今天天气很好，我们去公园吧。": 9,
    "def f(x: int) -> dict[str, int]:\n\treturn {}\n": 14,
    "🙂": 1,
}
TEXTS = ["plain words, and 123 numbers", "naïve Ärger 中文 🙂\r\n\n  x\t", "for i in range(10):\n    print(i)"]


def test_the_shipped_vocabulary_is_whole() -> None:
    packed = resources.files("context.tokens").joinpath(QWEN_FILE).read_bytes()
    tokens = unpack(packed, QWEN_TOKENS)
    assert len(tokens) == len(set(tokens)) == QWEN_TOKENS
    assert set(tokens) >= {bytes((byte,)) for byte in range(256)}
    assert all(tokens)
    assert pack(base64.b64encode(token) + b" %d" % rank for rank, token in enumerate(tokens[:500])) != packed


@pytest.mark.parametrize("text", QWEN_COUNTS)
def test_the_shipped_vocabulary_counts_as_qwen_does(text: str) -> None:
    assert shipped().count(text) == QWEN_COUNTS[text]


def test_special_tokens_in_a_text_are_text_and_half_a_pair_is_something() -> None:
    assert shipped().count("<|im_end|>") > 1
    assert shipped().count("a\ud800b") > 1


def test_a_vocabulary_is_packed_and_unpacked() -> None:
    tokens = [bytes((byte,)) for byte in range(256)] + [b"ab", b"abc"]
    lines = [base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens)]
    assert unpack(pack(lines), len(tokens)) == tokens
    with pytest.raises(ValueError, match="rank 256 is missing"):
        pack([*lines[:256], lines[257]])


def _trained(tokenizer: Tokenizer, trainer: trainers.Trainer, folder: Path) -> Tokenizer:
    tokenizer.train_from_iterator(_sentences(), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def _sentences() -> Iterator[str]:
    for number in range(200):
        yield f"step {number}: the agent looks at the screen, clicks at {number * 7}, and waits for the window to open."


def test_a_byte_level_tokenizer_is_rebuilt_and_counts_the_same(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    _trained(tokenizer, trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False), tmp_path)
    made = of_folder(tmp_path)
    assert made is not None
    assert made.budget_chars == shipped().budget_chars
    for text in [*_sentences(), *TEXTS]:
        assert made.count(text) == len(tokenizer.encode(text, add_special_tokens=False).ids)


def test_another_kind_of_tokenizer_counts_itself_on_a_smaller_budget(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()  # type: ignore[assignment]
    trainer = trainers.UnigramTrainer(
        vocab_size=200,
        unk_token="<unk>",  # noqa: S106
        special_tokens=["<unk>"],
        show_progress=False,
    )
    _trained(tokenizer, trainer, tmp_path)
    made = of_folder(tmp_path)
    assert made is not None
    assert made.budget_chars < shipped().budget_chars
    for text in TEXTS:
        assert made.count(text) == len(tokenizer.encode(text, add_special_tokens=False).ids)
    assert made.count("a\ud800b") > 0


@pytest.mark.parametrize("text", [None, "", "{", "[]", json.dumps({"model": {"type": "BPE"}})])
def test_a_folder_without_a_tokenizer_that_can_be_read_has_none(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "tokenizer.json").write_text(text)
    assert of_folder(tmp_path) is None
