"""What may be asked about pictures: the kinds of questions, their words and their right answers.

A kind is a function that draws one question about given scenes, or None where the scenes allow none. Single-hop kinds
read one picture; multi-hop kinds need two or more. Yes and no, and the two sides of a comparison, are drawn evenly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from engine.demo_model.scenes import BACKGROUNDS, OBJECT_COLOURS, SHAPES, Scene, Thing

WHOLE = -1
NUMBERS = ("zero", "one", "two", "three", "four")


@dataclass(frozen=True, slots=True)
class Question:
    """One question with its only right answer.

    `images` are the numbers, from 0, of those that it names. `looks_at` is where the answer is to be seen: things, as
    (image, thing) by number, or (image, WHOLE) where any spot of the image says it. Empty where nothing does; `subject`
    then is what was looked for.
    """

    kind: str
    text: str
    answer: str
    images: tuple[int, ...] = ()
    looks_at: tuple[tuple[int, int], ...] = ()
    subject: str = ""

    @property
    def fact(self) -> tuple[object, ...]:
        """What has to be seen for it. Two questions with one fact have one answer, in whatever words they ask."""
        asked_for = _FACTS.get(self.kind, self.kind)
        spots = {(image, WHOLE) for image, _ in self.looks_at} if asked_for == "background" else set(self.looks_at)
        return (asked_for, self.images if not spots else (), self.subject, *sorted(spots))


# Kinds that ask for the same thing about what they look at.
_FACTS = {"object_on": "colour", "background_of": "background"} | dict.fromkeys(
    ("find_shape", "find_digit", "find_background", "find_object"), "image"
)
Rng = np.random.Generator
_T = TypeVar("_T")
Draw = Callable[[Rng, Sequence[Scene]], "Question | None"]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of question. `chance` is the share that the best blind guess gets, `images` the fewest it needs."""

    name: str
    draw: Draw
    chance: float
    images: int = 1

    @property
    def multi_hop(self) -> bool:
        """Whether more than one picture has to be read."""
        return self.images > 1


def _pick(rng: Rng, options: Sequence[_T]) -> _T:
    return options[int(rng.integers(len(options)))]


def _one(rng: Rng, scenes: Sequence[Scene]) -> tuple[int, Scene, str]:
    """A picture, and the words that name it."""
    number = int(rng.integers(len(scenes)))
    if len(scenes) == 1 and rng.random() < 0.5:
        return number, scenes[0], _pick(rng, ("the image", "the picture"))
    return number, scenes[number], f"{_pick(rng, ('image', 'image', 'picture'))} {number + 1}"


def _unique(scene: Scene, attribute: str) -> list[Thing]:
    """Things that a name (`name`) or colour (`colour`) tells from all others in their picture."""
    values = [getattr(thing, attribute) for thing in scene.things]
    return [thing for thing, value in zip(scene.things, values, strict=True) if values.count(value) == 1]


def _spot(number: int, scene: Scene, thing: Thing) -> tuple[tuple[int, int], ...]:
    return ((number, scene.things.index(thing)),)


def _things(scenes: Sequence[Scene], numbers: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple((number, at) for number in numbers for at in range(len(scenes[number].things)))


def _digits(scenes: Sequence[Scene], numbers: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple((n, at) for n, at in _things(scenes, numbers) if scenes[n].things[at].is_digit)


def _called(thing: Thing) -> str:
    return f"digit {thing.name}" if thing.is_digit else thing.name


def _background(rng: Rng, scenes: Sequence[Scene]) -> Question:
    number, scene, where = _one(rng, scenes)
    form = _pick(rng, ("What is the background colour of {}?", "Which colour is the background of {}?"))
    return Question("background", form.format(where), scene.background, (number,), ((number, WHOLE),))


def _count(rng: Rng, scenes: Sequence[Scene]) -> Question:
    number, scene, where = _one(rng, scenes)
    form = _pick(rng, ("How many objects are in {}?", "How many things does {} show?"))
    return Question(
        "count",
        form.format(where),
        NUMBERS[len(scene.things)],
        (number,),
        tuple((number, at) for at in range(len(scene.things))),
    )


def _colour(rng: Rng, scenes: Sequence[Scene]) -> Question | None:
    number, scene, where = _one(rng, scenes)
    things = _unique(scene, "name")
    if not things:
        return None
    thing = _pick(rng, things)
    form = _pick(rng, ("What colour is the {} in {}?", "Which colour does the {} in {} have?"))
    return Question("colour", form.format(_called(thing), where), thing.colour, (number,), _spot(number, scene, thing))


def _shape(rng: Rng, scenes: Sequence[Scene]) -> Question | None:
    number, scene, where = _one(rng, scenes)
    things = [thing for thing in _unique(scene, "colour") if not thing.is_digit]
    if not things:
        return None
    thing = _pick(rng, things)
    form = _pick(rng, ("What shape is the {} object in {}?", "Which shape does the {} object in {} have?"))
    return Question("shape", form.format(thing.colour, where), thing.name, (number,), _spot(number, scene, thing))


def _digit(rng: Rng, scenes: Sequence[Scene]) -> Question | None:
    number, scene, where = _one(rng, scenes)
    digits = [thing for thing in scene.things if thing.is_digit]
    if len(digits) != 1:
        return None
    form = _pick(rng, ("Which digit is in {}?", "What digit does {} show?"))
    return Question("digit", form.format(where), digits[0].name, (number,), _spot(number, scene, digits[0]))


def _position(rng: Rng, scenes: Sequence[Scene]) -> Question | None:
    number, scene, where = _one(rng, scenes)
    things = _unique(scene, "name")
    if not things:
        return None
    thing = _pick(rng, things)
    form = _pick(rng, ("Where is the {} in {}?", "In which corner of {1} is the {0}?"))
    return Question(
        "position", form.format(_called(thing), where), scene.where(thing), (number,), _spot(number, scene, thing)
    )


def _presence(rng: Rng, scenes: Sequence[Scene]) -> Question | None:
    number, scene, where = _one(rng, scenes)
    there = sorted({thing.name for thing in scene.things if not thing.is_digit})
    # Where no shape is, only "no" could be asked for.
    if not there:
        return None
    name = _pick(rng, there if rng.random() < 0.5 else [shape for shape in SHAPES if shape not in there])
    form = _pick(rng, ("Is there a {} in {}?", "Does {1} show a {0}?"))
    seen = tuple((number, at) for at, thing in enumerate(scene.things) if thing.name == name)
    return Question("presence", form.format(name, where), "yes" if name in there else "no", (number,), seen, name)


def _find(
    rng: Rng, scenes: Sequence[Scene], kind: str, says: Callable[[Scene, Thing], str], forms: Sequence[str]
) -> Question | None:
    """Which picture has something that no other has. `says` names what a thing shows; an empty name is nothing."""
    number = int(rng.integers(len(scenes)))
    has = [{says(scene, thing) for thing in scene.things} - {""} for scene in scenes]
    only = sorted(has[number].difference(*has[:number], *has[number + 1 :]))
    if len(scenes) < 2 or not only:
        return None
    name = _pick(rng, only)
    seen = tuple((number, at) for at, t in enumerate(scenes[number].things) if says(scenes[number], t) == name)
    return Question(kind, _pick(rng, forms).format(name), f"image {number + 1}", (), seen)


def _find_shape(rng: Rng, scenes: Sequence[Scene]) -> Question | None:
    forms = ("Which image shows a {}?", "Which picture has a {} in it?")
    return _find(rng, scenes, "find_shape", lambda _, t: "" if t.is_digit else t.name, forms)


def _find_digit(rng: Rng, scenes: Sequence[Scene]) -> Question | None:
    forms = ("Which image shows the digit {}?", "Which picture has the digit {} in it?")
    return _find(rng, scenes, "find_digit", lambda _, t: t.name if t.is_digit else "", forms)


def _find_background(rng: Rng, scenes: Sequence[Scene]) -> Question | None:
    forms = ("Which image has a {} background?", "Which picture is {} in the background?")
    return _find(rng, scenes, "find_background", lambda s, _: s.background, forms)


def _find_object(rng: Rng, scenes: Sequence[Scene]) -> Question | None:
    forms = ("Which image shows the {}?", "In which picture is the {}?")
    return _find(rng, scenes, "find_object", lambda _, t: f"{t.colour} {_called(t)}", forms)


def _background_of(rng: Rng, scenes: Sequence[Scene]) -> Question | None:
    found = _find(rng, scenes, "", lambda _, t: _called(t), ("{}",))
    if found is None:
        return None
    form = _pick(rng, ("What is the background colour of the image with the {}?", "The {} is on which background?"))
    scene = scenes[int(found.answer.split()[1]) - 1]
    return Question("background_of", form.format(found.text), scene.background, (), found.looks_at)


def _object_on(rng: Rng, scenes: Sequence[Scene]) -> Question | None:
    """The colour of something that several pictures may have, told apart by the background."""
    grounds = [scene.background for scene in scenes]
    options = [scene for scene in scenes if grounds.count(scene.background) == 1 and _unique(scene, "name")]
    if len(scenes) < 2 or not options:
        return None
    scene = _pick(rng, options)
    thing = _pick(rng, _unique(scene, "name"))
    forms = ("What colour is the {} on the {} background?", "Which colour does the {} in the {} image have?")
    seen = _spot(scenes.index(scene), scene, thing)
    return Question("object_on", _pick(rng, forms).format(_called(thing), scene.background), thing.colour, (), seen)


def _same_background(rng: Rng, scenes: Sequence[Scene]) -> Question | None:
    pairs = [(a, b) for a in range(len(scenes)) for b in range(len(scenes)) if a != b]
    equal = [(a, b) for a, b in pairs if scenes[a].background == scenes[b].background]
    other = [pair for pair in pairs if pair not in equal]
    # Of more than two pictures both answers must be possible: else their number says which one is likely.
    if len(scenes) > 2 and not (equal and other):
        return None
    same = not other or (bool(equal) and rng.random() < 0.5)
    a, b = _pick(rng, equal if same else other)
    forms = (
        "Do image {} and image {} have the same background?",
        "Is the background of image {} and image {} the same?",
    )
    text = _pick(rng, forms).format(a + 1, b + 1)
    return Question("same_background", text, "yes" if same else "no", (a, b), ((a, WHOLE), (b, WHOLE)))


def _more_objects(rng: Rng, scenes: Sequence[Scene]) -> Question | None:
    counts = [len(scene.things) for scene in scenes]
    pairs = [(a, b) for a in range(len(scenes)) for b in range(len(scenes)) if counts[a] != counts[b]]
    if not pairs:
        return None
    pair = a, b = _pick(rng, pairs)
    more = max(pair, key=lambda number: counts[number])
    forms = ("Which has more objects, image {} or image {}?", "Does image {} or image {} show more things?")
    return Question(
        "more_objects", _pick(rng, forms).format(a + 1, b + 1), f"image {more + 1}", pair, _things(scenes, pair)
    )


def _larger_digit(rng: Rng, scenes: Sequence[Scene]) -> Question | None:
    found = [[thing.name for thing in scene.things if thing.is_digit] for scene in scenes]
    one = [number for number, digits in enumerate(found) if len(digits) == 1]
    pairs = [(a, b) for a in one for b in one if found[a] != found[b]]
    if not pairs:
        return None
    pair = _pick(rng, pairs)
    more = max(pair, key=lambda number: found[number])
    forms = ("Which has the larger digit, image {} or image {}?", "Is the digit larger in image {} or in image {}?")
    return Question(
        "larger_digit",
        _pick(rng, forms).format(*(n + 1 for n in pair)),
        f"image {more + 1}",
        pair,
        _digits(scenes, pair),
    )


KINDS = {
    kind.name: kind
    for kind in (
        Kind("background", _background, 1 / len(BACKGROUNDS)),
        Kind("count", _count, 1 / 4),
        Kind("colour", _colour, 1 / len(OBJECT_COLOURS)),
        Kind("shape", _shape, 1 / len(SHAPES)),
        Kind("digit", _digit, 1 / 10),
        Kind("position", _position, 1 / 4),
        Kind("presence", _presence, 1 / 2),
        Kind("find_shape", _find_shape, 1 / 2, images=2),
        Kind("find_digit", _find_digit, 1 / 2, images=2),
        Kind("find_background", _find_background, 1 / 2, images=2),
        Kind("find_object", _find_object, 1 / 2, images=2),
        Kind("background_of", _background_of, 1 / len(BACKGROUNDS), images=2),
        Kind("object_on", _object_on, 1 / len(OBJECT_COLOURS), images=2),
        Kind("same_background", _same_background, 1 / 2, images=2),
        Kind("more_objects", _more_objects, 1 / 2, images=2),
        Kind("larger_digit", _larger_digit, 1 / 2, images=2),
    )
}
YES_NO = ("presence", "same_background")
SINGLE_HOP = tuple(name for name, kind in KINDS.items() if not kind.multi_hop)
MULTI_HOP = tuple(name for name, kind in KINDS.items() if kind.multi_hop)


def is_right(answer: str, expected: str) -> bool:
    """Whether an answer is the expected words and nothing else; case and a full stop do not matter."""
    return answer.strip().removesuffix(".").casefold() == expected.casefold()


def ask(rng: Rng, scenes: Sequence[Scene], kind: str) -> Question | None:
    """One question of a kind, or None where these scenes allow none."""
    return KINDS[kind].draw(rng, scenes) if len(scenes) >= KINDS[kind].images else None
