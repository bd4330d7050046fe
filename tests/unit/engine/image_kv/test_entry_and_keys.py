"""What an entry holds, and what keeps one model's or tenant's entries from another's."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.vllm.image_kv.entry import Entry, Layout
from engine.vllm.image_kv.keys import Computation, EntryKey, Model, sampled_digest

ROPE = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12]}
COMPUTATION = Computation("bfloat16", "", {"text_config": {"rope_parameters": ROPE}}, {"max_pixels": 1_003_520})
MODEL = Model(
    name="demo",
    weights="0" * 64,
    computation=COMPUTATION,
    kv_dtype="auto",
    layers=6,
    kv_heads=2,
    head_size=64,
    blocks="32 tokens, cpu",
    engine="vllm 0.32.0",
)


def configured(rope: dict[str, object]) -> Computation:
    return replace(COMPUTATION, configuration={"text_config": {"rope_parameters": rope}})


@pytest.mark.parametrize(("tokens", "width", "dtype"), [(1, 0, "float32"), (5, 7, "bfloat16"), (391, 256, "float16")])
def test_the_tensors_of_an_entry_share_its_memory_and_not_with_each_other(tokens: int, width: int, dtype: str) -> None:
    layout = Layout(2, 3, 8, dtype, encoder_width=width)
    entry = Entry.empty(layout, tokens, 0, 1.0)
    entry.memory.zero_()
    entry.keys.fill_(1)
    entry.values.fill_(2)
    encoder = entry.encoder
    assert entry.keys.shape == entry.values.shape == (2, tokens, 3, 8)
    assert bool((entry.keys == 1).all())
    if width:
        assert encoder is not None
        encoder.fill_(3)
        assert encoder.shape == (tokens, width)
        assert bool((entry.values == 2).all())
    else:
        assert encoder is None
    assert entry.bytes == layout.bytes(tokens)
    item = entry.keys.element_size()
    assert 0 <= entry.bytes - 2 * 2 * tokens * 3 * 8 * item - 2 * tokens * width < 128


def test_a_dtype_that_cannot_be_turned_is_refused() -> None:
    with pytest.raises(ValueError, match="would have to be converted"):
        Layout(1, 1, 8, "float8_e4m3fn")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "other"),
        ("weights", "1" * 64),
        ("computation", replace(COMPUTATION, dtype="float16")),
        ("computation", replace(COMPUTATION, quantization="awq")),
        ("computation", replace(COMPUTATION, processor={"max_pixels": 501_760})),
        ("computation", configured({**ROPE, "rope_theta": 1e4})),
        ("computation", configured({**ROPE, "mrope_section": [12, 8, 12]})),
        ("kv_dtype", "fp8"),
        ("layers", 7),
        ("kv_heads", 4),
        ("head_size", 128),
        ("blocks", "16 tokens, cpu"),
        ("engine", "vllm 0.33.0"),
        ("rank", 1),
        ("ranks", 2),
    ],
)
def test_whatever_changes_the_numbers_changes_the_fingerprint(field: str, value: Any) -> None:
    other = replace(MODEL, **{field: value})
    assert other.fingerprint != MODEL.fingerprint
    assert replace(other, **{field: getattr(MODEL, field)}).fingerprint == MODEL.fingerprint


def test_each_part_of_a_key_makes_another_entry_and_tenant_and_image_another_group() -> None:
    one = EntryKey("f" * 64, "salt", "image", (1, 8, 8))
    others = [
        replace(one, fingerprint="e" * 64),
        replace(one, grid=(1, 16, 4)),
        replace(one, lora="adapter"),
        replace(one, tenant="another salt"),
        replace(one, image="another image"),
    ]
    assert len({key.digest for key in (one, *others)}) == 6
    assert [key.group == one.group for key in others] == [True, True, True, False, False]
    # The border between two parts is a part of the key.
    assert replace(one, tenant="sal", image="timage").digest != one.digest


def test_other_weights_of_the_same_shape_are_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    for size in (1000, 3_000_000):
        content = bytearray(os.urandom(size))
        file.write_bytes(content)
        os.utime(file, ns=(1, 1))
        first = sampled_digest(tmp_path)
        os.utime(file, ns=(1, 2))
        assert sampled_digest(tmp_path) != first
        for at in (0, size // 63 * 31, size - 1):
            content[at] ^= 1
            file.write_bytes(content)
            os.utime(file, ns=(1, 1))
            assert (sampled_digest(tmp_path) != first) or size > 64 * 4096
            content[at] ^= 1
        file.write_bytes(bytes(byte ^ 1 for byte in content))
        os.utime(file, ns=(1, 1))
        assert sampled_digest(tmp_path) != first
        file.write_bytes(content)
        os.utime(file, ns=(1, 1))
        assert sampled_digest(tmp_path) == first


def test_an_entry_keeps_what_is_written_to_it() -> None:
    entry = Entry.empty(Layout(2, 1, 4, "float32"), 3, 5, 2.0)
    keys = torch.arange(24, dtype=torch.float32).view(2, 3, 1, 4)
    entry.keys.copy_(keys)
    assert torch.equal(entry.keys, keys)
