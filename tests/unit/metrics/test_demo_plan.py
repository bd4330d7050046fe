"""The demonstration's plan: what the client sends in each turn, and that its answers are the right ones."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from engine.demo_model.scenes import render
from metrics.demo_plan import OTHER_ENCODINGS, Plan, Turn, make_plan
from tests.unit.images.corpus import canonical

SEEDS = range(20)


def _sent(plan: Plan, number: int) -> list[dict[str, Any]]:
    turn = plan.turns[number - 1]
    return plan.messages(turn, [f"answer {index}" for index in range(1, number)])


def _images(messages: list[dict[str, Any]]) -> list[str]:
    parts = [part for message in messages if message["role"] == "user" for part in message["content"]]
    return [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]


class TestTurns:
    def test_a_seed_gives_one_session(self) -> None:
        assert make_plan(3) == make_plan(3)
        assert len({make_plan(seed).pictures for seed in SEEDS}) == len(SEEDS)

    def test_what_the_client_does(self) -> None:
        turns = make_plan(0).turns
        changes = [turn.change for turn in turns]
        assert changes == ["first", "question", "question", "picture", "question", "encoding", "dropped", "question"]
        assert [[p.number for p in turn.pictures] for turn in turns] == [[1, 2]] * 3 + [[1, 2, 3]] * 3 + [[2, 3]] * 2
        assert [[p.number for p in turn.new] for turn in turns] == [[1, 2], [], [], [3], [], [], [], []]
        assert [turn.dropped.number for turn in turns if turn.dropped] == [1]

    @pytest.mark.parametrize("seed", SEEDS)
    def test_answers_are_what_the_pictures_show(self, seed: int) -> None:
        turns = make_plan(seed).turns
        for turn in turns:
            assert _true(turn), turn.question
        assert len({turn.question.kind for turn in turns}) == len(turns)
        # The new picture is asked about when it comes.
        assert turns[3].question.images == (2,)


def _true(turn: Turn) -> bool:
    """Whether a question's answer holds, looked up in the scenes by its words alone."""
    text, answer = turn.question.text.rstrip("?"), turn.question.answer
    scenes = [picture.scene for picture in turn.pictures]
    words = text.split()
    named = [
        scenes[int(words[i + 1]) - 1]
        for i, word in enumerate(words)
        if word in ("image", "picture") and _digit(words, i + 1)
    ]
    if turn.question.kind == "background":
        return named[0].background == answer
    if turn.question.kind == "count":
        return ("zero", "one", "two", "three", "four")[len(named[0].things)] == answer
    if turn.question.kind == "background_of":
        return {s.background for s in scenes if {t.name for t in s.things} & set(words)} == {answer}
    if turn.question.kind == "find_background":
        return [f"image {i}" for i, scene in enumerate(scenes, 1) if scene.background in words] == [answer]
    if turn.question.kind == "find_shape":
        return [f"image {i}" for i, s in enumerate(scenes, 1) if {t.name for t in s.things} & set(words)] == [answer]
    if turn.question.kind == "digit":
        return [thing.name for thing in named[0].things if thing.is_digit] == [answer]
    if turn.question.kind == "shape":
        return [thing.name for thing in named[0].things if thing.colour in words] == [answer]
    # A colour: the image's number is a word of the question too, and may be a digit of the picture.
    asked = words[: words.index("in")]
    return [thing.colour for thing in named[0].things if thing.name in asked] == [answer]


def _digit(words: list[str], index: int) -> bool:
    return index < len(words) and words[index].isdigit()


class TestMessages:
    @pytest.mark.parametrize("number", [2, 3, 4, 5])
    def test_a_turn_extends_the_one_before(self, number: int) -> None:
        plan = make_plan(0)
        before, now = _sent(plan, number - 1), _sent(plan, number)
        assert now[: len(before)] == before
        assert [message["role"] for message in now[len(before) :]] == ["assistant", "user"]
        assert now[-2]["content"] == f"answer {number - 1}"
        assert now[-1]["content"][-1] == {"type": "text", "text": plan.turns[number - 1].question.text}

    def test_pictures_come_with_their_turn(self) -> None:
        plan = make_plan(0)
        assert len(_images(_sent(plan, 1)[1:2])) == 2
        assert len(_images(_sent(plan, 4)[-1:])) == 1

    def test_other_encodings_change_the_files_alone(self) -> None:
        plan = make_plan(0)
        before, now = _sent(plan, 5), _sent(plan, 6)
        assert not set(_images(before)) & set(_images(now))
        assert _images(now)[0].startswith("data:image/webp;base64,")
        assert _texts(now)[: len(_texts(before))] == _texts(before)

    def test_dropping_takes_the_picture_and_nothing_else(self) -> None:
        plan = make_plan(0)
        before, now = _sent(plan, 6), _sent(plan, 7)
        assert _images(now) == _images(before)[1:]
        assert _texts(now)[: len(_texts(before))] == _texts(before)


def _texts(messages: list[dict[str, Any]]) -> list[str]:
    contents = [message["content"] for message in messages]
    return [content if isinstance(content, str) else content[-1]["text"] for content in contents]


class TestFiles:
    @pytest.mark.parametrize("encoding", OTHER_ENCODINGS)
    def test_every_encoding_holds_the_same_pixels(self, encoding: Any) -> None:
        picture = make_plan(0).pictures[0]
        data = picture.file(encoding)
        assert data != picture.file()
        with Image.open(io.BytesIO(data)) as image:
            assert np.array_equal(np.asarray(image.convert("RGB")), render(picture.scene))
        assert canonical(data).image_id == canonical(picture.file()).image_id
