"""The image corpus as tests use it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pybase64

from context.images.base import ImageLimits, ImageSource
from context.images.decode import Canonical, canonicalize
from context.images.sniff import sniff

FOLDER = Path(__file__).parents[2] / "data" / "images"
MANIFEST: dict[str, Any] = json.loads((FOLDER / "manifest.json").read_text())
LIMITS = ImageLimits()
PLACE = "messages[2].content[0]"


def read(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


def canonical(data: bytes, limits: ImageLimits = LIMITS) -> Canonical:
    return canonicalize(data, sniff(data, limits), limits)


def image_id(name: str, limits: ImageLimits = LIMITS) -> str:
    return canonical(read(name), limits).image_id


def text_of(source: ImageSource) -> str:
    """A source's text, where it is one."""
    assert isinstance(source.value, str)
    return source.value


def data_source(data: bytes, media_type: str = "image/png", place: str = PLACE) -> ImageSource:
    return ImageSource("data", f"data:{media_type};base64,{pybase64.b64encode_as_string(data)}", place)
