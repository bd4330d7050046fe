"""Chats about pictures: turns with images, filler text and questions, as messages of the OpenAI form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any

import numpy as np

from engine.demo_model.questions import YES_NO, Question, ask
from engine.demo_model.scenes import BACKGROUNDS, Scene, SceneLimits, Split, draw_scene

_SPLIT_SALT = {"train": 11, "validation": 12, "test": 13}


@dataclass(frozen=True, slots=True)
class ChatLimits:
    """How large a chat may be, and which kinds of questions it asks with which weight."""

    kinds: dict[str, float]
    min_images: int = 1
    max_images: int = 4
    questions: tuple[int, int] = (1, 8)
    scenes: SceneLimits = field(default_factory=SceneLimits)
    filler: float = 0.5
    later_images: float = 0.35
    max_patches: int = 1_000_000


@dataclass(frozen=True, slots=True)
class Turn:
    """One user message and the right reply. `images` are the pictures that come with it."""

    before: str
    images: tuple[Scene, ...]
    labelled: bool
    after: str
    question: Question | None
    reply: str


@dataclass(frozen=True, slots=True)
class Chat:
    """A whole chat. Images are numbered through it in their order."""

    system: str
    turns: tuple[Turn, ...]

    @property
    def scenes(self) -> tuple[Scene, ...]:
        """Every picture in order."""
        return tuple(scene for turn in self.turns for scene in turn.images)

    def messages(self, *, last_reply: bool = True) -> list[dict[str, Any]]:
        """OpenAI messages; an image part holds the number of its scene under `image`."""
        made: list[dict[str, Any]] = [{"role": "system", "content": self.system}] if self.system else []
        number = 0
        for index, turn in enumerate(self.turns):
            parts: list[dict[str, Any]] = [{"type": "text", "text": turn.before}] if turn.before else []
            for _ in turn.images:
                if turn.labelled:
                    parts.append({"type": "text", "text": f"Image {number + 1}:"})
                parts.append({"type": "image", "image": number})
                number += 1
            parts.append({"type": "text", "text": turn.after})
            plain = len(parts) == 1
            made.append({"role": "user", "content": turn.after if plain else parts})
            if last_reply or index + 1 < len(self.turns):
                made.append({"role": "assistant", "content": turn.reply})
        return made


def rng_for(split: Split, seed: int, *apart: int) -> np.random.Generator:
    """The generator of a split: the same seed gives other chats in another split, and for other numbers `apart`."""
    return np.random.default_rng([_SPLIT_SALT[split], seed, *apart])


def draw_chat(rng: np.random.Generator, split: Split, limits: ChatLimits, last: str | None = None) -> Chat:
    """A random chat that asks at least one question; its last turn is one, of the kind `last` where that is given."""
    while True:
        count = int(rng.integers(limits.min_images, limits.max_images + 1))
        scenes = [draw_scene(rng, split, limits.scenes) for _ in range(count)]
        scenes = _alike(rng, scenes)
        if sum(scene.width * scene.height for scene in scenes) > limits.max_patches * 784:
            continue
        turns = _turns(rng, scenes, limits, last)
        if turns and (last is None or (turns[-1].question and turns[-1].question.kind == last)):
            system = "" if rng.random() > limits.filler else _filler(rng, 6)
            return Chat(system, tuple(turns))


def _alike(rng: np.random.Generator, scenes: list[Scene]) -> list[Scene]:
    """Give pictures the background of an earlier one at times: by chance alone that is rare.

    The first two are alike half the time, however many follow: with them alone there is one answer to ask for.
    """
    for at in range(1, len(scenes)):
        alike = len({scene.background for scene in scenes[:at]}) < at
        # Those that are alike by chance, one in so many, come on top.
        if not alike and rng.random() < (0.5 - 1 / len(BACKGROUNDS)) / (1 - 1 / len(BACKGROUNDS)):
            source, target = scenes[int(rng.integers(at))], scenes[at]
            scenes[at] = replace(target, background=source.background, shades=(source.shades[0], *target.shades[1:]))
    return scenes


def _turns(rng: np.random.Generator, scenes: Sequence[Scene], limits: ChatLimits, last: str | None) -> list[Turn]:
    later = len(scenes) > 1 and rng.random() < limits.later_images
    labelled = bool(rng.random() < 0.4)
    questions = int(rng.integers(limits.questions[0], limits.questions[1] + 1))
    turns: list[Turn] = []
    if rng.random() < limits.filler * 0.4:
        turns.append(Turn("", (), False, _filler(rng, 3), None, "Okay."))
    shown = 0
    asked: set[tuple[object, ...]] = set()
    # Once in a chat: of a second one the answer that fewer questions have would be told already.
    spent = {last} & set(YES_NO)
    for index in range(questions):
        new: list[Scene] = []
        if shown < len(scenes):
            rest = len(scenes) - shown
            amount = rest if not later or index == questions - 1 else int(rng.integers(1 if not shown else 0, rest + 1))
            new = list(scenes[shown : shown + amount])
            shown += amount
        kinds = {kind: weight for kind, weight in limits.kinds.items() if kind not in spent}
        if last and index == questions - 1:
            kinds = {last: 1.0}
        question = _question(rng, scenes[:shown], kinds, asked)
        if question is None:
            if not new:
                continue
            turns.append(Turn("", tuple(new), labelled, _pick(rng, _PLAIN), None, "Okay."))
            continue
        asked.add(question.fact)
        spent |= {question.kind} & set(YES_NO)
        before = _filler(rng, 2) if rng.random() < limits.filler * 0.4 else ""
        after = question.text
        if rng.random() < limits.filler * 0.3:
            after = f"{_filler(rng, 1)} {after}"
        if rng.random() < limits.filler * 0.3:
            after = f"{after} {_pick(rng, HINTS[len(question.answer.split())])}"
        turns.append(Turn(before, tuple(new), labelled, after, question, question.answer))
    while turns and turns[-1].question is None:
        turns.pop()
    return turns


def _question(
    rng: np.random.Generator, scenes: Sequence[Scene], kinds: dict[str, float], asked: set[tuple[object, ...]]
) -> Question | None:
    names = list(kinds)
    weights = np.array([kinds[name] for name in names])
    for _ in range(12 if names else 0):
        kind = names[int(rng.choice(len(names), p=weights / weights.sum()))]
        question = ask(rng, scenes, kind)
        # What was answered once stands in the chat: it would be read there, and not in the picture.
        if question is not None and question.fact not in asked:
            return question
    return None


def _filler(rng: np.random.Generator, most: int) -> str:
    sentences = _sentences()
    amount = int(rng.integers(1, most + 1))
    return " ".join(sentences[int(rng.integers(len(sentences)))] for _ in range(amount))


def _pick(rng: np.random.Generator, options: Sequence[str]) -> str:
    return options[int(rng.integers(len(options)))]


_PLAIN = ("Here is a picture.", "Look at this.", "I will ask about it later.", "Keep this in mind.")
# By how many words the answer has.
HINTS = {
    1: ("Answer in one word.", "Answer with the word only.", "Be short."),
    2: ("Answer in two words.", "Answer with the two words only.", "Be short."),
}
_CORPUS: list[str] = []


def _sentences() -> list[str]:
    if not _CORPUS:
        text = resources.files("engine.demo_model").joinpath("corpus.txt").read_text()
        _CORPUS.extend(s.strip() + "." for s in text.replace("\n", " ").split(". ") if s.strip())
    return _CORPUS
