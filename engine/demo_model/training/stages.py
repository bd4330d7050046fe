"""The recipe: what is shown when, for how long, and how fast the weights move."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.demo_model.chats import ChatLimits
from engine.demo_model.scenes import SceneLimits

_READ = {"background": 1.0, "colour": 1.0, "shape": 1.0, "digit": 1.5, "count": 1.0}
_SINGLE = {**_READ, "position": 1.5, "presence": 1.0}
_FIND = {"find_shape": 1.5, "find_digit": 1.5, "find_background": 1.5, "find_object": 1.5}
_LINK = {"background_of": 1.5, "object_on": 1.5}
_COMPARE = {"same_background": 2.0, "more_objects": 2.0}


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the training.

    Attributes:
        seconds: how long it lasts, in seconds of training on two cores.
        rate: learning rate at its start and its end; in between a straight line.
        chats: what is shown, each limit with its share. Empty where only the vision tower learns.
        tokens: tokens of one batch, padding included.
        tower: whether the vision tower learns too.
    """

    name: str
    seconds: float
    rate: tuple[float, float]
    scenes: SceneLimits = field(default_factory=SceneLimits)
    chats: tuple[tuple[float, ChatLimits], ...] = ()
    tokens: int = 3_000
    tower: bool = False


def _limits(kinds: dict[str, float], images: tuple[int, int], side: int, things: int, filler: float) -> ChatLimits:
    return ChatLimits(
        kinds,
        min_images=images[0],
        max_images=images[1],
        questions=(4, 8),
        scenes=SceneLimits(max_side=side, max_things=things),
        filler=filler,
        max_patches=600,
    )


# Two pictures seldom have one digit each, so that it is asked far less often than its weight says.
_DIGITS = {"larger_digit": 10.0}
# What is learned last is asked more often: counting and comparing digits.
_LATE = {**_SINGLE, "count": 3.0}
_EVERYTHING = {**_LATE, **_FIND, **_LINK, **_COMPARE, **_DIGITS}
# What an hour and a half did not teach well.
_WEAKEST = {"count": 5.0, "digit": 3.0, "same_background": 3.0, "more_objects": 3.0}
STAGES = (
    Stage("vision, small", 300, (2e-3, 2e-3), SceneLimits(max_side=140)),
    Stage("vision, all sizes", 480, (2e-3, 4e-4)),
    Stage(
        "one image",
        420,
        (1.5e-3, 1.5e-3),
        chats=((1.0, _limits(_READ, (1, 1), 140, 3, 0.0)),),
    ),
    Stage(
        "two images",
        1200,
        (1.5e-3, 1.5e-3),
        chats=(
            (0.25, _limits(_SINGLE, (1, 1), 224, 4, 0.2)),
            (0.75, _limits({**_SINGLE, **_FIND}, (2, 2), 196, 4, 0.2)),
        ),
    ),
    Stage(
        "four images",
        1500,
        (1.5e-3, 1.2e-3),
        chats=(
            (0.2, _limits(_LATE, (1, 1), 336, 4, 0.4)),
            (0.4, _limits(_EVERYTHING, (2, 2), 224, 4, 0.4)),
            (0.4, _limits({**_LATE, **_FIND, **_LINK, **_DIGITS}, (3, 4), 196, 4, 0.4)),
        ),
    ),
    Stage(
        "everything",
        1500,
        (1.2e-3, 0.0),
        chats=(
            (0.15, _limits(_LATE, (1, 1), 448, 4, 0.5)),
            (0.40, _limits(_EVERYTHING, (2, 2), 448, 4, 0.5)),
            (0.45, _limits(_EVERYTHING, (3, 4), 448, 4, 0.5)),
        ),
        tower=True,
    ),
    Stage(
        "everything again",
        2400,
        (8e-4, 0.0),
        chats=(
            (0.30, _limits({**_LATE, "count": 5.0, "digit": 3.0}, (1, 1), 448, 4, 0.5)),
            (0.40, _limits({**_EVERYTHING, **_WEAKEST}, (2, 2), 448, 4, 0.5)),
            (0.30, _limits({**_EVERYTHING, **_WEAKEST}, (3, 4), 448, 4, 0.5)),
        ),
        tower=True,
    ),
)
