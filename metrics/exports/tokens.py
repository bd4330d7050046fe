"""A recorded turn as the token ids that the engine saw: by the engine's own tokenizer, or by a checkpoint's here."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, cast

import pybase64
from PIL import Image

from context.errors import ConfigError
from context.transcript import ImagePart
from engine.fake.core import FakeCore
from engine.fake.errors import Refused
from metrics.exports.turns import ExportedTurn


@dataclass(frozen=True, slots=True)
class ImageSpan:
    """An image's placeholder tokens: `tokens` of them from `start` on."""

    image_id: str
    start: int
    tokens: int


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """A prompt as the model sees it, each placeholder there. `images` in order; None where they cannot be told."""

    ids: list[int]
    images: tuple[ImageSpan, ...] | None


class Tokens(Protocol):
    """Makes token ids of turns."""

    async def prompt(self, turn: ExportedTurn, *, replied: bool = False) -> PromptTokens:
        """The prompt of a turn; `replied`: with the reply behind it, as the next turn shows it.

        Raises:
            EngineUnavailable: whoever counts is not there.
            ConfigError: a tokenizer here cannot read the turn.
        """
        ...


class CheckpointTokens:
    """By the fake engine, which writes a prompt as vLLM does for Qwen's models and for checkpoints with their template.
    No image is needed: its size says how many tokens it is.

    Args:
        core: with the checkpoint, or with none for the tokenizer that the fake engine has by itself.
    """

    def __init__(self, core: FakeCore) -> None:
        self._core = core

    async def prompt(self, turn: ExportedTurn, *, replied: bool = False) -> PromptTokens:
        """See `Tokens.prompt`."""
        body = _body(turn, _blank_part, replied)
        try:
            made = self._core.render(body, for_tokenize=True)
        except Refused as error:
            reason = "its template does not take what was sent; ask the engine itself with --url"
            raise ConfigError("settings", "model", reason) from error
        spans = [ImageSpan(image.uuid, image.offset, image.tokens) for image in made.images]
        return PromptTokens(made.tokens, tuple(spans))


# Gives the token ids of a body, images expanded: what the engine's /tokenize says.
Tokenize = Callable[[Mapping[str, Any]], Awaitable[list[int]]]
# Gives an image's data URL.
Load = Callable[[ImagePart, str], Awaitable[str]]


class EngineTokens:
    """By the engine that answered, or another one of the same model.

    Args:
        tokenize: asks it.
        load: an image of a tenant as a data URL: the engine wants to see it to say how many tokens it is.
        count: tokens of an image by its sides, which tells images apart that follow each other.
        model: which one is asked where a turn's own is not recorded.
    """

    def __init__(self, tokenize: Tokenize, load: Load, count: Callable[[int, int], int], model: str) -> None:
        self._tokenize, self._load, self._count, self._model = tokenize, load, count, model

    async def prompt(self, turn: ExportedTurn, *, replied: bool = False) -> PromptTokens:
        """See `Tokens.prompt`."""
        urls = {part.ref.image_id: await self._load(part, turn.tenant) for part in turn.images}

        def shown(part: ImagePart) -> dict[str, Any]:
            return {"type": "image_url", "image_url": {"url": urls[part.ref.image_id]}}

        model = turn.record.model if turn.record is not None else self._model
        body = {"model": model, **_body(turn, shown, replied)}
        ids = await self._tokenize(body)
        counts = [self._count(part.ref.width, part.ref.height) for part in turn.images]
        return PromptTokens(ids, find_images(ids, [part.ref.image_id for part in turn.images], counts))


def find_images(ids: Sequence[int], images: Sequence[str], counts: Sequence[int]) -> tuple[ImageSpan, ...] | None:
    """Where images stand in a prompt: the placeholder is the one token that is there as often as they have tokens, and
    each image's stand together. None where no token, or no single one, is that."""
    if not images:
        return ()
    total = sum(counts)
    placeholders = [token for token, times in Counter(ids).items() if times == total]
    found: list[tuple[ImageSpan, ...]] = []
    for placeholder in placeholders:
        places = [at for at, token in enumerate(ids) if token == placeholder]
        if (spans := _together(places, images, counts)) is not None:
            found.append(spans)
    return found[0] if len(found) == 1 else None


def _together(places: Sequence[int], images: Sequence[str], counts: Sequence[int]) -> tuple[ImageSpan, ...] | None:
    spans: list[ImageSpan] = []
    at = 0
    for image, count in zip(images, counts, strict=True):
        if not count or places[at + count - 1] - places[at] != count - 1:
            return None
        spans.append(ImageSpan(image, places[at], count))
        at += count
    return tuple(spans)


def _body(turn: ExportedTurn, shown: Callable[[ImagePart], dict[str, Any]], replied: bool) -> dict[str, Any]:
    wires = [one.wire for one in turn.sent]
    if replied and turn.reply is not None:
        wires.append(turn.reply)
    body: dict[str, Any] = {"messages": [_written(wire, shown) for wire in wires]}
    if replied:
        body["add_generation_prompt"] = False
    return body | ({"tools": list(turn.tools)} if turn.tools else {})


def _written(wire: Mapping[str, Any], shown: Callable[[ImagePart], dict[str, Any]]) -> dict[str, Any]:
    content: Any = wire.get("content")
    if not isinstance(content, list):
        return dict(wire)
    parts = [shown(part) if isinstance(part, ImagePart) else part for part in cast("list[Any]", content)]
    return {key: parts if key == "content" else value for key, value in wire.items()}


def _blank_part(part: ImagePart) -> dict[str, Any]:
    url = _blank(part.ref.width, part.ref.height)
    return {"type": "image_url", "image_url": {"url": url}, "uuid": part.ref.image_id}


@lru_cache(maxsize=256)
def _blank(width: int, height: int) -> str:
    """A picture of that size and nothing on it: some hundred bytes."""
    file = io.BytesIO()
    Image.new("1", (width, height)).save(file, "PNG")
    return f"data:image/png;base64,{pybase64.b64encode(file.getvalue()).decode()}"
