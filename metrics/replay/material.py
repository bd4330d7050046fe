"""What generated sessions are made of: words, pictures, and messages that know which picture they show.

Everything is seeded; the same seed gives the same bytes.
"""

from __future__ import annotations

import base64
import io
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from PIL import Image, ImageDraw
from PIL.PngImagePlugin import PngInfo

from context.transcript import arguments_value

# None has more than four letters: one token each in the usual vocabularies, and in the fake engine's.
_WORDS = (
    "page", "open", "list", "form", "name", "mail", "file", "save", "next", "back", "menu", "find", "text", "line",
    "word", "read", "view", "show", "hide", "move", "copy", "drag", "drop", "link", "icon", "card", "grid", "cell",
    "rows", "tabs", "zoom", "fit", "left", "side", "edge", "long", "wide", "blue", "gray", "dark", "bold", "main",
    "item", "user", "date", "time", "hour", "week", "year", "plan", "task", "step", "done", "wait", "load", "send",
    "post", "edit", "undo", "redo", "sort", "from", "with", "into", "over", "split",
)  # fmt: skip

# How the same picture is written. The first block keeps the pixels, the last changes them.
Form = Literal[
    "png", "png_stored", "png_note", "webp", "palette", "alpha", "gray16",
    "jpeg", "jpeg_note", "jpeg_o6", "cmyk", "gif", "animation", "lossy_webp", "jpeg_79",
]  # fmt: skip


_MEDIA_TYPES = {"webp": "image/webp", "lossy_webp": "image/webp", "gif": "image/gif", "animation": "image/gif"}


def words(count: int, *seed: object) -> str:
    """So many short words: about as many tokens."""
    chance = random.Random(repr(seed))  # noqa: S311 - the same words every time are the point
    return " ".join(chance.choices(_WORDS, k=max(1, count)))


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture by its pixels: `seed` and size decide them. `noisy` ones compress badly, as photos do."""

    seed: str
    width: int
    height: int
    noisy: bool = False


@dataclass(frozen=True, slots=True)
class Shown:
    """A picture in a message: how it is written. Parts that mean the same have the same `key`.

    `spelling` is of the part, not of the file: `url` or `object` for the two shapes of chat, `input_image`, `bare` for
    base64 alone, `lines` for base64 with line breaks. `note` goes into the file beside its pixels.
    """

    picture: Picture
    form: Form = "png"
    note: str = ""
    spelling: Literal["object", "url", "input_image", "bare", "lines"] = "object"

    @property
    def key(self) -> tuple[Any, ...]:
        """What it shows."""
        keeps = {"png", "png_stored", "png_note", "webp"}
        lossless = "png" if self.form in keeps else "jpeg" if self.form == "jpeg_note" else self.form
        return self.picture, lossless

    def part(self) -> dict[str, Any]:
        """The content part."""
        return _part(self.picture, self.form, self.note, self.spelling)


Part = str | Shown


@dataclass(frozen=True, slots=True)
class Draft:
    """A message before it is written. `content` of one text alone is written as a string. `extra` are its other keys;
    `step` is the turn that it belongs to, -1 for the head of the conversation."""

    role: str
    content: tuple[Part, ...]
    extra: dict[str, Any] = field(default_factory=dict[str, Any])
    step: int = -1

    @property
    def pictures(self) -> list[Shown]:
        """Its pictures in order."""
        return [part for part in self.content if isinstance(part, Shown)]

    def wire(self) -> dict[str, Any]:
        """The message as the client sends it."""
        if len(self.content) == 1 and isinstance(self.content[0], str):
            return {"role": self.role, "content": self.content[0], **self.extra}
        parts = [{"type": "text", "text": one} if isinstance(one, str) else one.part() for one in self.content]
        return {"role": self.role, "content": parts, **self.extra}

    def meaning(self) -> tuple[str, tuple[Any, ...], str]:
        """Equal for drafts that mean the same."""
        return (
            self.role,
            tuple(one.key if isinstance(one, Shown) else one for one in self.content),
            _calls(self.extra),
        )


def _calls(extra: Mapping[str, Any]) -> str:
    """A message's other keys, tool arguments by value."""
    calls = [
        {**call, "function": {**call["function"], "arguments": arguments_value(call["function"]["arguments"])}}
        for call in extra.get("tool_calls", ())
    ]
    return repr(sorted({**extra, "tool_calls": calls}.items()))


def first_difference(before: Sequence[Draft], now: Sequence[Draft]) -> dict[str, int | None] | None:
    """Message and part at which drafts stop extending others; None where they do not."""
    for at, one in enumerate(before):
        if at >= len(now):
            return {"message": at, "part": None}
        if one.meaning() == now[at].meaning():
            continue
        (role, old, calls), (new_role, new, new_calls) = one.meaning(), now[at].meaning()
        if role != new_role or calls != new_calls:
            return {"message": at, "part": None}
        shorter = min(len(old), len(new))
        return {"message": at, "part": next((part for part in range(shorter) if old[part] != new[part]), shorter)}
    return None


@lru_cache(maxsize=512)
def _file(picture: Picture, form: Form, note: str) -> tuple[bytes, str]:
    out = io.BytesIO()
    image = _pixels(picture)
    if form in ("png", "png_stored", "png_note"):
        info = PngInfo()
        if form == "png_note":
            info.add_text("Comment", note or "written again")
        image.save(out, "PNG", compress_level=0 if form == "png_stored" else 4, pnginfo=info)
    elif form in ("webp", "lossy_webp"):
        image.save(out, "WEBP", lossless=form == "webp", quality=80, method=0)
    elif form == "palette":
        image.quantize(32).save(out, "PNG")
    elif form in ("gif", "animation"):
        frames = [image.transpose(Image.Transpose.ROTATE_180)] if form == "animation" else []
        image.save(out, "GIF", save_all=bool(frames), append_images=frames)
    elif form == "alpha":
        clear = image.convert("RGBA")
        clear.putalpha(Image.linear_gradient("L").resize(clear.size))
        clear.save(out, "PNG", compress_level=4)
    elif form == "gray16":
        deep = np.asarray(image.convert("L"), dtype=np.uint16) * 257
        Image.fromarray(deep).save(out, "PNG", compress_level=4)
    else:
        return _jpeg(image, form, note), "image/jpeg"
    return out.getvalue(), _MEDIA_TYPES.get(form, "image/png")


def _jpeg(image: Image.Image, form: Form, note: str) -> bytes:
    out = io.BytesIO()
    exif = Image.Exif()
    if form == "jpeg_o6":
        exif[0x0112] = 6
    image = image.convert("CMYK") if form == "cmyk" else image
    image.save(out, "JPEG", quality=79 if form == "jpeg_79" else 80, exif=exif)
    data = out.getvalue()
    if form != "jpeg_note":
        return data
    comment = note.encode() or b"written again"
    # A comment segment behind the start of the file: other bytes, the same pixels.
    return data[:2] + b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big") + comment + data[2:]


@lru_cache(maxsize=64)
def _pixels(picture: Picture) -> Image.Image:
    chance = random.Random(picture.seed)  # noqa: S311 - the same picture every time is the point
    width, height = picture.width, picture.height
    image = Image.new("RGB", (width, height), tuple(chance.randrange(180, 256) for _ in range(3)))
    pen = ImageDraw.Draw(image)
    for _ in range(24):
        x, y = chance.randrange(width), chance.randrange(height)
        size = (chance.randrange(1, width // 3 + 2), chance.randrange(1, height // 5 + 2))
        pen.rectangle((x, y, x + size[0], y + size[1]), fill=tuple(chance.randrange(256) for _ in range(3)))
    if not picture.noisy:
        return image
    grain = np.random.default_rng(chance.randrange(2**32)).integers(-24, 25, (height, width, 1), dtype=np.int16)
    return Image.fromarray(np.clip(np.asarray(image, dtype=np.int16) + grain, 0, 255).astype(np.uint8))


@lru_cache(maxsize=2048)
def _part(picture: Picture, form: Form, note: str, spelling: str) -> dict[str, Any]:
    """One object for all turns that show it: a long session would not fit into memory otherwise."""
    data, kind = _file(picture, form, note)
    text = base64.encodebytes(data).decode() if spelling == "lines" else base64.b64encode(data).decode()
    url = text if spelling == "bare" else f"data:{kind};base64,{text}"
    if spelling == "input_image":
        return {"type": "input_image", "image_url": url}
    return {"type": "image_url", "image_url": url if spelling == "url" else {"url": url}}
