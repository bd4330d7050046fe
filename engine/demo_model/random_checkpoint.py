"""A seeded Qwen2.5-VL checkpoint with random weights: any size, no download, no meaning.

It makes the engine's caches measurable on any machine: token counts, blocks, encoder runs and speed are those of a
real vision-language model of that shape. Its answers are noise.

    python -m engine.demo_model.random_checkpoint FOLDER [--layers 4 --hidden 256 ...]
"""

# torch, transformers and tokenizers leave much of their types open.
# pyright: reportUnknownMemberType=false, reportArgumentType=false

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from engine.demo_model.tokenizer import corpus_lines, train_tokenizer, write_preprocessor, write_tokenizer

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class CheckpointShape:
    """Size of the checkpoint. `max_image_tokens` bounds the visual tokens of one image (28x28 pixels each)."""

    layers: int = 4
    hidden: int = 256
    heads: int = 8
    kv_heads: int = 4
    vision_hidden: int = 128
    vision_layers: int = 4
    vision_heads: int = 4
    vocabulary: int = 1024
    max_position_tokens: int = 32_768
    max_image_tokens: int = 1280
    seed: int = 0


def build(folder: Path, shape: CheckpointShape | None = None) -> Path:
    """Make the checkpoint in `folder` and return it. A folder that already holds this very shape is left as it is.

    The folder appears whole or not at all: another process may build the same one at the same time.

    Raises:
        OSError: the folder cannot be written.
    """
    shape = shape or CheckpointShape()
    marker = folder / "stillframe.json"
    wanted = {"format": FORMAT_VERSION, **asdict(shape)}
    if marker.is_file() and json.loads(marker.read_text()) == wanted:
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        write_tokenizer(
            building, train_tokenizer(corpus_lines(), shape.vocabulary), max_tokens=shape.max_position_tokens
        )
        write_preprocessor(building, max_image_tokens=shape.max_image_tokens)
        _write_weights(building, shape)
        (building / "stillframe.json").write_text(json.dumps(wanted))
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(building, folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return folder


def _write_weights(folder: Path, shape: CheckpointShape) -> None:
    import torch

    from engine import torchvision_ops

    torchvision_ops.declare_missing()
    from tokenizers import Tokenizer
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    from engine.reference.hugging_face import config_of
    from engine.reference.qwen2_5_vl import Shape

    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()
    sizes = Shape(
        vocabulary=-(-len(ids) // 64) * 64,
        hidden=shape.hidden,
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        intermediate=shape.hidden * 3,
        rope_sections=_mrope_section(shape.hidden // shape.heads),
        vision_hidden=shape.vision_hidden,
        vision_layers=shape.vision_layers,
        vision_heads=shape.vision_heads,
        vision_intermediate=shape.vision_hidden * 2,
        full_attention=(shape.vision_layers - 1,),
    )
    config = Qwen2_5_VLConfig(**config_of(sizes, ids, max_position_tokens=shape.max_position_tokens))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(shape.seed)
        model = Qwen2_5_VLForConditionalGeneration(config).to(torch.bfloat16)
    model.generation_config.eos_token_id = ids["<|im_end|>"]
    model.generation_config.pad_token_id = ids["<|endoftext|>"]
    model.save_pretrained(folder)


def _mrope_section(head: int) -> tuple[int, int, int]:
    """Split half of a head's dimensions between time, height and width as Qwen2.5-VL does (16:24:24 of 64)."""
    half = head // 2
    time = half // 4
    height = (half - time) // 2
    return time, height, half - time - height


def main(arguments: list[str] | None = None) -> None:
    """Command line of the module."""
    parser = argparse.ArgumentParser(prog="python -m engine.demo_model.random_checkpoint", description=__doc__)
    parser.add_argument("folder", type=Path)
    for name, value in asdict(CheckpointShape()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value, help=f"default {value}")
    options = vars(parser.parse_args(arguments))
    folder = options.pop("folder")
    print(build(folder, CheckpointShape(**options)))


if __name__ == "__main__":
    main()
