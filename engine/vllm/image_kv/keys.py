"""What names an entry of the pool: which model computed it, for which tenant, of which image.

Two entries have one key only where their K/V would be equal but for what stood before the image. Whatever changes what
a model computes is in the fingerprint; a field that is missing there serves one model's KV to another.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import blake3

_SAMPLES, _SAMPLE_BYTES = 64, 4096


@dataclass(frozen=True, slots=True)
class Computation:
    """What a model computes with its weights, as its configuration in the engine says once all overrides are applied.

    `configuration` is the model's own, whole: which of it changes numbers is the model's affair. `processor` is what
    images are prepared with.
    """

    dtype: str
    quantization: str
    configuration: Mapping[str, object]
    processor: Mapping[str, object]

    @staticmethod
    def of(model: Any) -> Computation:
        """That of vLLM's `ModelConfig`."""
        multimodal = model.multimodal_config
        return Computation(
            str(model.dtype),
            str(model.quantization or ""),
            model.hf_config.to_dict(),
            dict(multimodal.mm_processor_kwargs or {}) if multimodal else {},
        )

    def values(self) -> dict[str, Any]:
        """For a digest."""
        return asdict(self)


@dataclass(frozen=True)
class Model:
    """One rank of one model in one engine, as far as it decides the numbers in its KV cache.

    `weights` is `sampled_digest` of the folder; `engine` is the name and version of what computes, `blocks` how its KV
    cache is laid out.
    """

    name: str
    weights: str
    computation: Computation
    kv_dtype: str
    layers: int
    kv_heads: int
    head_size: int
    blocks: str
    engine: str
    rank: int = 0
    ranks: int = 1

    @cached_property
    def fingerprint(self) -> str:
        """64 hex digits."""
        return _digest({"format": 2, **asdict(self)})


@dataclass(frozen=True)
class EntryKey:
    """The name of an entry.

    `fingerprint` is the model's. `tenant` is the tenant's cache salt and `image` the tenant's own name for the image's
    content (the engine's `identifier` of it): neither can be guessed, and no tenant has another's. `grid` is the image
    in tokens: frames, rows, columns. `lora` names the adapter that computed it.
    """

    fingerprint: str
    tenant: str
    image: str
    grid: tuple[int, int, int]
    lora: str = ""

    @cached_property
    def digest(self) -> str:
        """64 hex digits; names the entry's file."""
        return _digest(asdict(self))

    @cached_property
    def group(self) -> str:
        """What is evicted together: all that is held of one image of one tenant. 64 hex digits."""
        return _digest({"tenant": self.tenant, "image": self.image})


def sampled_digest(folder: Path) -> str:
    """Tells the weights of a model's folder from others, also from those of another training of the same shape.

    Hashing all bytes would take longer than the engine's start. Of each file its name, size, time of change, and 64
    samples over its length are read. Files that were copied and got a new time are taken for others, which costs a cold
    pool and never a wrong answer.

    Raises:
        OSError: the folder cannot be read.
    """
    hasher = blake3.blake3()
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        about = path.stat()
        hasher.update(json.dumps([path.name, about.st_size, about.st_mtime_ns]).encode())
        with path.open("rb") as file:
            for first, size in _samples(about.st_size):
                file.seek(first)
                hasher.update(file.read(size))
    return hasher.hexdigest()


def _samples(size: int) -> list[tuple[int, int]]:
    if size <= _SAMPLES * _SAMPLE_BYTES:
        return [(0, size)]
    last = size - _SAMPLE_BYTES
    return [(number * last // (_SAMPLES - 1), _SAMPLE_BYTES) for number in range(_SAMPLES)]


def _digest(value: Mapping[str, object]) -> str:
    written = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"), default=str)
    return blake3.blake3(written.encode()).hexdigest()
