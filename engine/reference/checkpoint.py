"""A checkpoint's folder as the plain PyTorch model, in single precision."""

# torch leaves much of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from context.errors import ConfigError
from engine.reference.hugging_face import from_hugging_face
from engine.reference.qwen2_5_vl import MERGE, PATCH, Model, Shape

_PLAIN = ("default", "mrope")


def load_model(folder: Path) -> Model:
    """The model of a folder that transformers wrote, ready to be asked.

    Raises:
        ConfigError: the folder holds no Qwen2.5-VL, one with features that are not here, or weights that do not fit.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    shape = read_shape(folder)
    file = folder / "model.safetensors"
    try:
        weights = load_file(str(file))
        model = from_hugging_face({name: tensor.float() for name, tensor in weights.items()}, shape)
    except FileNotFoundError as error:
        reason = "is not there; the plain model reads a checkpoint of one file, at most a few GB"
        raise ConfigError(str(folder), file.name, reason) from error
    except (OSError, SafetensorError) as error:
        raise ConfigError(str(folder), file.name, "cannot be read; write or copy the checkpoint anew") from error
    except (KeyError, RuntimeError) as error:
        reason = "does not hold the weights that config.json describes; both must be of one model"
        raise ConfigError(str(folder), file.name, reason) from error
    return model.eval().requires_grad_(False)


def read_shape(folder: Path) -> Shape:
    """What `config.json` says of a Qwen2.5-VL.

    Raises:
        ConfigError: it is of another architecture, incomplete, or has features that the plain model lacks.
    """
    try:
        config: Any = json.loads((folder / "config.json").read_text())
        text, vision = config["text_config"], config["vision_config"]
        _refuse_unknown(folder, config, text, vision)
        return Shape(
            vocabulary=int(text["vocab_size"]),
            hidden=int(text["hidden_size"]),
            layers=int(text["num_hidden_layers"]),
            heads=int(text["num_attention_heads"]),
            kv_heads=int(text["num_key_value_heads"]),
            intermediate=int(text["intermediate_size"]),
            rope_theta=float(text["rope_parameters"]["rope_theta"]),
            rope_sections=cast("tuple[int, int, int]", tuple(map(int, text["rope_parameters"]["mrope_section"]))),
            epsilon=float(text["rms_norm_eps"]),
            vision_hidden=int(vision["hidden_size"]),
            vision_layers=int(vision["depth"]),
            vision_heads=int(vision["num_heads"]),
            vision_intermediate=int(vision["intermediate_size"]),
            window=int(vision["window_size"]),
            full_attention=tuple(map(int, vision["fullatt_block_indexes"])),
        )
    except FileNotFoundError as error:
        raise ConfigError(str(folder), "config.json", "is not there; name the folder of a checkpoint") from error
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = "is not the configuration of a Qwen2.5-VL as transformers 5 writes it"
        raise ConfigError(str(folder), "config.json", reason) from error


def _refuse_unknown(folder: Path, config: Any, text: Any, vision: Any) -> None:
    reasons = {
        "model_type": (config["model_type"] == "qwen2_5_vl", "must be qwen2_5_vl"),
        "text_config.rope_parameters": (
            text["rope_parameters"]["rope_type"] in _PLAIN and len(text["rope_parameters"]["mrope_section"]) == 3,
            "must be M-RoPE without scaling",
        ),
        "text_config.use_sliding_window": (not text.get("use_sliding_window"), "must be false"),
        "tie_word_embeddings": (bool(config.get("tie_word_embeddings")), "must be true"),
        "vision_config": (
            vision["patch_size"] == PATCH and vision["spatial_merge_size"] == MERGE,
            f"must have patches of {PATCH} pixels, merged {MERGE} by {MERGE}",
        ),
    }
    for key, (is_met, reason) in reasons.items():
        if not is_met:
            raise ConfigError(str(folder / "config.json"), key, f"{reason} for the plain model")
