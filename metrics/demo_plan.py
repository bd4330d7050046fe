"""What the demonstration plays: pictures, questions with right answers, and what the client does in each turn.

The turns are chosen to show the caches at work: a cold start, questions on the same history, a picture in a later
turn, the same pixels written by another program, and a client that drops its oldest picture.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from engine.demo_model.chats import rng_for
from engine.demo_model.questions import Question, ask
from engine.demo_model.scenes import Scene, SceneLimits, draw_scene, render

Change = Literal["first", "question", "picture", "encoding", "dropped"]
Encoding = Literal["png", "webp", "png_uncompressed", "png_alpha"]
OTHER_ENCODINGS: Sequence[Encoding] = ("webp", "png_uncompressed", "png_alpha")
# Longer than an engine's block: what stands before the first picture can then be read by itself.
_SYSTEM = (
    "You are a helpful assistant. You look at pictures and answer questions about them. Answer with one or two words "
    "and nothing else. The pictures are numbered in the order in which they stand in the conversation, from one."
)
# 49 to 100 visual tokens each: several blocks, and quick on two cores.
_SCENES = SceneLimits(min_side=196, max_side=280, min_things=2, max_things=3)
_QUESTION_DRAWS = 16


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture of the session; `number` is its place in the session, from 1."""

    number: int
    scene: Scene

    def file(self, encoding: Encoding = "png") -> bytes:
        """The picture as a file. Every encoding holds the same pixels."""
        image = Image.fromarray(render(self.scene))
        out = io.BytesIO()
        if encoding == "webp":
            image.save(out, "WEBP", lossless=True)
        elif encoding == "png_uncompressed":
            note = PngInfo()
            note.add_text("Comment", "written again by another program")
            image.save(out, "PNG", compress_level=0, pnginfo=note)
        elif encoding == "png_alpha":
            image.convert("RGBA").save(out, "PNG")
        else:
            image.save(out, "PNG")
        return out.getvalue()


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of the client: what it does otherwise than before, what it sends and what it asks.

    `pictures` are those that the conversation holds in this turn, `new` those that came with it. `dropped` is the
    picture that was in the conversation before and no longer is. Questions number pictures by their place in
    `pictures`, from 1.
    """

    number: int
    change: Change
    pictures: tuple[Picture, ...]
    new: tuple[Picture, ...]
    question: Question
    dropped: Picture | None = None
    reencoded: bool = False

    def encoding(self, picture: Picture) -> Encoding:
        """How the client writes a picture in this turn."""
        return OTHER_ENCODINGS[(picture.number - 1) % len(OTHER_ENCODINGS)] if self.reencoded else "png"


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole session. The same seed gives the same pictures and questions."""

    seed: int
    pictures: tuple[Picture, ...]
    turns: tuple[Turn, ...]

    def messages(self, turn: Turn, answers: Sequence[str]) -> list[dict[str, Any]]:
        """What the client sends in a turn, after it was given `answers` in the turns before."""
        made: list[dict[str, Any]] = [{"role": "system", "content": _SYSTEM}]
        parts = {picture.number: _part(picture, turn.encoding(picture)) for picture in turn.pictures}
        for past, answer in zip(self.turns[: turn.number - 1], answers, strict=True):
            made.append({"role": "user", "content": _content(past, parts)})
            made.append({"role": "assistant", "content": answer})
        made.append({"role": "user", "content": _content(turn, parts)})
        return made


@dataclass(frozen=True, slots=True)
class _Step:
    """One turn before its question is drawn. `about` is the place of a picture that must be asked about."""

    change: Change
    kind: str
    about: int | None = None
    new: int = 0
    reencoded: bool = False


_STEPS = (
    _Step("first", "background", about=0, new=2),
    _Step("question", "colour", about=1),
    _Step("question", "find_background"),
    _Step("picture", "count", about=2, new=1),
    _Step("question", "background_of"),
    _Step("encoding", "shape", about=0, reencoded=True),
    _Step("dropped", "digit", about=1, reencoded=True),
    _Step("question", "find_shape", reencoded=True),
)


def make_plan(seed: int) -> Plan:
    """Draw a session. Its pictures have layouts that no training used."""
    rng = rng_for("test", seed)
    while True:
        scenes = [draw_scene(rng, "test", _SCENES) for _ in range(sum(step.new for step in _STEPS))]
        pictures = tuple(Picture(number, scene) for number, scene in enumerate(scenes, 1))
        turns = _turns(rng, pictures)
        if turns is not None:
            return Plan(seed, pictures, turns)


def _turns(rng: np.random.Generator, pictures: Sequence[Picture]) -> tuple[Turn, ...] | None:
    """The turns, or None where these pictures do not allow one of the questions."""
    turns: list[Turn] = []
    shown: tuple[Picture, ...] = ()
    for number, step in enumerate(_STEPS, 1):
        came = sum(earlier.new for earlier in _STEPS[: number - 1])
        new = tuple(pictures[came : came + step.new])
        dropped = shown[:1] if step.change == "dropped" else ()
        shown = (*shown[len(dropped) :], *new)
        question = _question(rng, step, shown)
        if question is None:
            return None
        turns.append(Turn(number, step.change, shown, new, question, next(iter(dropped), None), step.reencoded))
    return tuple(turns)


def _question(rng: np.random.Generator, step: _Step, shown: Sequence[Picture]) -> Question | None:
    for _ in range(_QUESTION_DRAWS):
        question = ask(rng, [picture.scene for picture in shown], step.kind)
        if question is not None and (step.about is None or step.about in question.images):
            return question
    return None


def _part(picture: Picture, encoding: Encoding) -> dict[str, Any]:
    kind = "webp" if encoding == "webp" else "png"
    url = f"data:image/{kind};base64,{base64.b64encode(picture.file(encoding)).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def _content(turn: Turn, parts: Mapping[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """A user message: the pictures that came with it and that the client still sends, then the question."""
    images = [parts[picture.number] for picture in turn.new if picture.number in parts]
    return [*images, {"type": "text", "text": turn.question.text}]
