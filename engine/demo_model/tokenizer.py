"""The demo model's tokenizer: byte-level BPE, so that any text is accepted, and a chat template that only appends."""

# tokenizers leaves much of its types open.
# pyright: reportUnknownMemberType=false, reportArgumentType=false

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)


def train_tokenizer(lines: Iterable[str], vocabulary: int) -> Tokenizer:
    """A tokenizer of at most `vocabulary` tokens, its special tokens last. The same lines give the same one."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return tokenizer


def corpus_lines() -> list[str]:
    """The sentences that a tokenizer is made from."""
    return _file("corpus.txt").splitlines()


def write_tokenizer(folder: Path, tokenizer: Tokenizer, *, max_tokens: int) -> None:
    """Write a tokenizer as Hugging Face reads it, with the chat template."""
    tokenizer.save(str(folder / "tokenizer.json"))
    template = _file("chat_template.jinja")
    (folder / "chat_template.jinja").write_text(template)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_tokens,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": False,
        "chat_template": template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write_preprocessor(folder: Path, *, max_image_tokens: int) -> None:
    """Write how images are prepared; an image larger than `max_image_tokens` is made smaller."""
    settings = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2_5_VLProcessor",
        "patch_size": 14,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "size": {"shortest_edge": 56 * 56, "longest_edge": max_image_tokens * 28 * 28},
        "min_pixels": 56 * 56,
        "max_pixels": max_image_tokens * 28 * 28,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))


def _file(name: str) -> str:
    return resources.files("engine.demo_model").joinpath(name).read_text()
