"""The groups A-H of the controlled experiment: two requests each, one change between them.

Everything else is fixed: system prompt, tools, texts, pictures, their order, sampling. Source of the design: DESIGN's
"controlled experiment"; docs/experiment.md describes each group.
"""

from __future__ import annotations

import base64
import io
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from PIL import Image, ImageDraw
from PIL.PngImagePlugin import PngInfo

Group = Literal["A", "B", "C", "D", "E", "F", "G", "H"]
GROUPS: Mapping[Group, str] = {
    "A": "identical",
    "B": "text appended",
    "C": "image appended",
    "D": "oldest image deleted",
    "E": "newest image deleted",
    "F": "same pixels, other encoding",
    "G": "two images swapped",
    "H": "image_id in history, image in the tail",
}
# 336 x 280 pixels are 12 x 10 = 120 visual tokens on a 28-pixel grid: several blocks, and no block of text alone.
_WIDTH, _HEIGHT = 336, 280
_SYSTEM = (
    "You look at pictures and answer questions about them in one short sentence. Say what is there and nothing else. "
    "Count slowly, name colours plainly, and say that you do not know when a picture does not show what was asked. "
) * 4
_QUESTIONS = (
    "Here is the first picture. Which shapes do you see in it, and which of them is the largest?",
    "Here is the second picture. Which colours does it have that the first one did not have?",
    "Here is the third picture. How many shapes are there in all three pictures together?",
)
_ANSWERS = (
    "There is a large circle and a small square; the circle is larger.",
    "The second picture has a green shape; the first had none of that colour.",
    "There are seven shapes in the three pictures together.",
)
_NEXT = "Now look again and tell me which of the pictures has the most empty space."
TOOLS: Sequence[Mapping[str, Any]] = (
    {
        "type": "function",
        "function": {
            "name": "zoom",
            "description": "Show a part of a picture larger.",
            "parameters": {
                "type": "object",
                "properties": {"image": {"type": "integer"}, "factor": {"type": "number"}},
                "required": ["image"],
            },
        },
    },
)


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture of the experiment; `key` is the same for the same pixels."""

    key: str
    pixels: Image.Image

    def part(self, *, other_encoding: bool = False) -> dict[str, Any]:
        """An `image_url` part of its pixels, as PNG with and without compression and metadata."""
        out = io.BytesIO()
        if other_encoding:
            note = PngInfo()
            note.add_text("Comment", "written again by another program")
            self.pixels.save(out, "PNG", compress_level=0, pnginfo=note)
        else:
            self.pixels.save(out, "PNG", compress_level=6)
        url = "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()
        return {"type": "image_url", "image_url": {"url": url}}


@dataclass(frozen=True, slots=True)
class Pair:
    """The two requests of a group, as message lists, and the pictures of each in order."""

    group: Group
    first: list[dict[str, Any]]
    second: list[dict[str, Any]]
    first_pictures: tuple[str, ...]
    second_pictures: tuple[str, ...]


def pair(group: Group, seed: int) -> Pair:
    """The two requests of a group. The same seed gives the same bytes."""
    return _Maker(group, seed).make()


Content = list[dict[str, Any]]


class _Maker:
    def __init__(self, group: Group, seed: int) -> None:
        self._group: Group = group
        self._pictures = [_draw(random.Random(f"{seed}-{index}"), str(index)) for index in range(4)]  # noqa: S311

    def make(self) -> Pair:
        if self._group == "H":
            return self._recall()
        first = self._conversation([0, 1, 2])
        changes: dict[str, Callable[[], tuple[list[dict[str, Any]], Sequence[int]]]] = {
            "A": lambda: (self._conversation([0, 1, 2]), (0, 1, 2)),
            "B": lambda: ([*first, _assistant(2), _user([_text(_NEXT)])], (0, 1, 2)),
            "C": lambda: ([*first, _assistant(2), _user([_text(_NEXT), self._pictures[3].part()])], (0, 1, 2, 3)),
            "D": lambda: (self._conversation([None, 1, 2]), (1, 2)),
            "E": lambda: (self._conversation([0, 1, None]), (0, 1)),
            "F": lambda: (self._conversation([0, 1, 2], other_encoding=True), (0, 1, 2)),
            "G": lambda: (self._conversation([1, 0, 2]), (1, 0, 2)),
        }
        second, order = changes[self._group]()
        return Pair(self._group, first, second, self._keys((0, 1, 2)), self._keys(order))

    def _conversation(self, order: Sequence[int | None], *, other_encoding: bool = False) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = [{"role": "system", "content": _SYSTEM}]
        for turn, which in enumerate(order):
            content = [_text(_QUESTIONS[turn])]
            if which is not None:
                content.append(self._pictures[which].part(other_encoding=other_encoding))
            messages.append(_user(content))
            if turn < len(order) - 1:
                messages.append(_assistant(turn))
        return messages

    def _recall(self) -> Pair:
        """History names its pictures; the one that the turn needs stands last in the tail."""
        history: list[dict[str, Any]] = [{"role": "system", "content": _SYSTEM}]
        for turn in (0, 1):
            history += [_user([_text(f"{_QUESTIONS[turn]} {self._marker(turn)}")]), _assistant(turn)]
        ask = _text(f"{_QUESTIONS[2]} {self._marker(2)}")
        first = [*history, _user([ask, self._pictures[2].part()])]
        again = _text(f"{_NEXT} {self._marker(0)}")
        second = [*history, _user([ask]), _assistant(2), _user([again, self._pictures[0].part()])]
        return Pair("H", first, second, self._keys([2]), self._keys([0]))

    def _marker(self, index: int) -> str:
        return f"[picture {self._pictures[index].key} {_WIDTH}x{_HEIGHT}, turn {index + 1}]"

    def _keys(self, order: Sequence[int]) -> tuple[str, ...]:
        return tuple(self._pictures[index].key for index in order)


def _draw(chance: random.Random, name: str) -> Picture:
    image = Image.new("RGB", (_WIDTH, _HEIGHT), tuple(chance.randrange(180, 256) for _ in range(3)))
    pen = ImageDraw.Draw(image)
    for _ in range(chance.randrange(2, 6)):
        x, y, size = chance.randrange(_WIDTH - 60), chance.randrange(_HEIGHT - 60), chance.randrange(20, 60)
        shape = pen.ellipse if chance.random() < 0.5 else pen.rectangle
        shape((x, y, x + size, y + size), fill=tuple(chance.randrange(0, 180) for _ in range(3)))
    return Picture(f"{name}-{chance.getrandbits(64):016x}", image)


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _user(content: Content) -> dict[str, Any]:
    return {"role": "user", "content": content}


def _assistant(turn: int) -> dict[str, Any]:
    return {"role": "assistant", "content": _ANSWERS[turn]}
