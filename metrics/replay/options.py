"""Options of the generated traces: `t1:steps=20,window=keep3_delete`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from context.errors import ConfigError

_SIZE = re.compile(r"([1-9]\d{0,4})x([1-9]\d{0,4})")
_NUMBER = re.compile(r"[0-9]{1,9}")
_SWITCH = {"on": True, "off": False}


@dataclass(frozen=True, slots=True)
class Sizes:
    """What holds for all traces of a run.

    Attributes:
        image: pixels of every picture, width and height; None for each trace's own.
        text: factor on the length of every text.
        seed: of texts, pictures and chance.
    """

    image: tuple[int, int] | None = None
    text: float = 1.0
    seed: int = 0


class Options:
    """The options of one trace, read against its defaults.

    Raises:
        ConfigError: one is not known, or its value cannot be used.
    """

    def __init__(self, name: str, given: str, defaults: Mapping[str, str], sizes: Sizes) -> None:
        self._where = f"trace {name}"
        self._values = dict(defaults) | {"seed": str(sizes.seed), "text": str(sizes.text), "size": ""}
        for pair in filter(None, given.split(",")):
            key, equals, value = pair.partition("=")
            if key not in self._values or not equals:
                known = ", ".join(sorted(self._values))
                raise ConfigError(self._where, key, f"is no option of it; write option=value with one of {known}")
            self._values[key] = value
        self._size = sizes.image

    def text(self, key: str) -> str:
        """An option as it was written."""
        return self._values[key]

    def number(self, key: str, least: int = 1, most: int = 10_000) -> int:
        """An option that counts something."""
        value = self._values[key]
        if not _NUMBER.fullmatch(value) or not least <= int(value) <= most:
            raise ConfigError(self._where, key, f"takes a whole number from {least} to {most}")
        return int(value)

    def switch(self, key: str) -> bool:
        """An option that is on or off."""
        if (value := _SWITCH.get(self._values[key])) is None:
            raise ConfigError(self._where, key, "takes on or off")
        return value

    def choice(self, key: str, *known: str) -> str:
        """An option that is one of some words."""
        if (value := self._values[key]) not in known:
            raise ConfigError(self._where, key, f"takes one of {', '.join(known)}")
        return value

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Width and height of the pictures; the arguments are the trace's own."""
        if not self._values["size"]:
            return self._size or (width, height)
        return parse_size(self._values["size"], self._where, "size")

    @property
    def seed(self) -> str:
        """The seed."""
        return self._values["seed"]

    def tokens(self, count: int) -> int:
        """A length of text, scaled."""
        try:
            factor = float(self._values["text"])
        except ValueError:
            factor = -1.0
        if not 0.0 < factor <= 100.0:
            raise ConfigError(self._where, "text", "takes a factor above 0 and at most 100, such as 0.25")
        return max(1, round(count * factor))


def parse_size(text: str, where: str, key: str) -> tuple[int, int]:
    """Width and height of `1280x800`.

    Raises:
        ConfigError: it is none.
    """
    found = _SIZE.fullmatch(text)
    if found is None:
        raise ConfigError(where, key, "takes width and height in pixels, such as 1280x800")
    return int(found[1]), int(found[2])
