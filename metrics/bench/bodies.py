"""The requests that a benchmark sends: a short text, a picture seen before, large fresh pictures."""

from __future__ import annotations

import base64
import io
import random
from functools import lru_cache
from typing import Any, Literal

from PIL import Image
from pydantic_core import to_json

from metrics.bench.load import http_request

CHAT = "/v1/chat/completions"
_MEGAPIXELS_12 = (4000, 3000)


def chat(
    model: str, text: str, *images: bytes, max_tokens: int = 1, stream: bool = False, uuid: str | None = None
) -> bytes:
    """A chat request on the wire. `images` are data URLs; `uuid` names them, and an empty one goes by it alone."""
    parts: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": f"<{number}>"} if url else None} for number, url in enumerate(images)
    ]
    for part in parts if uuid else ():
        part["uuid"] = uuid
    content = [*parts, {"type": "text", "text": text}] if parts else text
    body = {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": max_tokens}
    text_of_body = to_json(body | {"stream": stream, "temperature": 0})
    for number, url in enumerate(images):
        # Megabytes of base64 need no escaping, and do not pass through the JSON encoder.
        text_of_body = text_of_body.replace(b"<%d>" % number, url, 1)
    return http_request("POST", CHAT, text_of_body)


def noise_png(payload_bytes: int, seed: int) -> bytes:
    """A PNG of noise with about `payload_bytes`, as a data URL. Another seed is another picture."""
    side = round((payload_bytes / 3) ** 0.5)
    pixels = seed.to_bytes(8, "big") + _noise(side * side * 3 - 8)
    # Noise does not compress: trying to would only take the measuring process's time.
    return _data_url(Image.frombytes("RGB", (side, side), pixels), "png", compress_level=0)


@lru_cache(maxsize=4)
def _noise(size_bytes: int) -> bytes:
    return random.Random(size_bytes).randbytes(size_bytes)  # noqa: S311  a picture, not a secret


def large_pictures(count: int, seed: int) -> list[bytes]:
    """Data URLs of 12-megapixel pictures, each with pixels of its own: three JPEGs of noise to one PNG of soft noise.

    Pure noise as a PNG would be 36 MB, which no gateway takes; a few bits of it keep a PNG under ten.
    """
    noise = Image.effect_noise(_MEGAPIXELS_12, 40)
    soft = noise.point([value & 0xF0 for value in range(256)])
    source = random.Random(seed)  # noqa: S311  pictures, not secrets
    made: list[bytes] = []
    for number in range(count):
        base, kind = (soft, "png") if number % 4 == 3 else (noise, "jpeg")
        picture = Image.merge("RGB", (base, base, base))
        patch = Image.frombytes("RGB", (64, 64), source.randbytes(64 * 64 * 3))
        picture.paste(patch, (source.randrange(3900), source.randrange(2900)))
        made.append(_data_url(picture, kind, compress_level=1))
    return made


def _data_url(picture: Image.Image, kind: Literal["png", "jpeg"], *, compress_level: int) -> bytes:
    buffer = io.BytesIO()
    if kind == "png":
        picture.save(buffer, "PNG", compress_level=compress_level)
    else:
        picture.save(buffer, "JPEG", quality=75)
    return f"data:image/{kind};base64,".encode() + base64.b64encode(buffer.getvalue())
