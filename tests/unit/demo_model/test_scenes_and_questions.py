"""The pictures and questions that the demo model is trained on and measured with."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from hashlib import sha256
from itertools import combinations, pairwise, product
from typing import Any

import numpy as np
import pytest

from engine.demo_model.chats import HINTS, Chat, ChatLimits, draw_chat, rng_for
from engine.demo_model.evaluate import GROUPS, Asked, Group, questions, score, summary, wire_messages
from engine.demo_model.questions import KINDS, MULTI_HOP, NUMBERS, SINGLE_HOP, YES_NO, Question, ask
from engine.demo_model.scenes import (
    BACKGROUNDS,
    CELL,
    DIGITS,
    OBJECT_COLOURS,
    PATCH,
    SHAPES,
    Scene,
    SceneLimits,
    Split,
    Thing,
    draw_scene,
    held_out,
    render,
)
from engine.demo_model.tokenizer import corpus_lines

EVERY = ChatLimits(dict.fromkeys(KINDS, 1.0))
GOLDEN = ["50d40fdd42b915fa", "321531717abd0350", "f7b46c627417741f", "3cc99a767b34a0e8"]


def layout(scene: Scene) -> tuple[int, int, list[int], list[str]]:
    """The grid of a scene, its occupied cells, found from where the things are, and what stands in them."""
    columns, rows = scene.width // CELL, scene.height // CELL
    cells = [
        (int(thing.y / (scene.height / rows)) * columns + int(thing.x / (scene.width / columns)), thing.name)
        for thing in scene.things
    ]
    return columns, rows, [cell for cell, _ in sorted(cells)], [name for _, name in sorted(cells)]


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_a_seed_gives_the_same_pictures_and_another_seed_others(split: Split) -> None:
    first, again, other = (
        [render(draw_scene(rng, split)) for _ in range(5)]
        for rng in (rng_for(split, 3), rng_for(split, 3), rng_for(split, 4))
    )
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_layouts_of_the_test_are_never_drawn_for_training() -> None:
    train, test, validation = (
        {_kept_apart(draw_scene(rng_for(split, seed), split)) for seed in range(400)}
        for split in ("train", "test", "validation")
    )
    assert not train & (test | validation)
    assert all(not held_out(*layout(draw_scene(rng_for("train", seed), "train"))) for seed in range(100))


def _kept_apart(scene: Scene) -> str:
    columns, rows, cells, names = layout(scene)
    return str((columns, rows, cells, names if len(cells) == columns * rows else ""))


@pytest.mark.parametrize("count", range(1, 5))
def test_each_grid_has_layouts_of_each_number_of_things_on_both_sides(count: int) -> None:
    """Of a full grid it is what stands in it; of large grids a sample is looked at."""
    rng = rng_for("test", count)
    for columns, rows in product(range(2, 9), repeat=2):
        if columns * rows == count:
            drawn = [(list(range(count)), [str(rng.integers(10)) for _ in range(count)]) for _ in range(200)]
        elif math.comb(columns * rows, count) < 2000:
            drawn = [(list(cells), ["ring"] * count) for cells in combinations(range(columns * rows), count)]
        else:
            cells = (sorted(rng.choice(columns * rows, count, replace=False).tolist()) for _ in range(300))
            drawn = [(chosen, ["ring"] * count) for chosen in cells]
        kept = [held_out(columns, rows, *one) for one in drawn]
        assert 0 < sum(kept) <= max(2, 0.25 * len(kept)), (columns, rows, count)


@pytest.mark.parametrize("split", ["train", "test"])
def test_small_pictures_hold_each_number_of_things_evenly(split: Split) -> None:
    rng = rng_for(split, 0)
    small = SceneLimits(max_side=140)
    counts = Counter(len(draw_scene(rng, split, small).things) for _ in range(800))
    assert {2 * 2} == {a * b for a, b, _, _ in [layout(draw_scene(rng, split, small)) for _ in range(20)]}
    assert sorted(counts) == [1, 2, 3, 4]
    assert min(counts.values()) > 150


def test_the_drawing_has_not_changed() -> None:
    """The bundled weights were trained on these pictures: other pixels need another training."""
    names = (*SHAPES, *DIGITS)
    things = tuple(
        Thing(name, "red", 40 + 60 * (at % 4), 40 + 60 * (at // 4), 30 + at) for at, name in enumerate(names)
    )
    by_hand = Scene(252, 252, "cyan", things, (BACKGROUNDS["cyan"], *[OBJECT_COLOURS["red"]] * len(things)))
    drawn = [draw_scene(rng_for(split, 1), split) for split in ("train", "validation", "test")]
    assert [sha256(render(scene).tobytes()).hexdigest()[:16] for scene in (by_hand, *drawn)] == GOLDEN


def test_pictures_are_as_promised() -> None:
    rng = rng_for("train", 0)
    sides: Counter[int] = Counter()
    for _ in range(300):
        scene = draw_scene(rng, "train")
        picture = render(scene)
        assert picture.shape == (scene.height, scene.width, 3)
        assert picture.dtype == np.uint8
        sides.update((scene.width, scene.height))
        assert scene.tokens * PATCH**2 == scene.width * scene.height
        for thing in scene.things:
            half = thing.size // 2
            assert half <= thing.x <= scene.width - half
            assert half <= thing.y <= scene.height - half
            # A thing belongs to one patch clearly, so that it is counted once.
            assert 4 <= thing.x % PATCH <= PATCH - 4
            assert 4 <= thing.y % PATCH <= PATCH - 4
    assert all(side % PATCH == 0 and 112 <= side <= 448 for side in sides)
    assert {112, 448} <= set(sides)


def test_a_thing_stands_where_its_scene_says_in_its_colour() -> None:
    rng = rng_for("test", 0)
    for _ in range(50):
        scene = draw_scene(rng, "test", SceneLimits(max_things=4))
        picture = render(scene).astype(int)
        for thing, shade in zip(scene.things, scene.shades[1:], strict=True):
            half = thing.size // 2
            region = picture[thing.y - half : thing.y + half, thing.x - half : thing.x + half]
            near = np.abs(region - np.array(shade)).max(-1) < 8
            assert near.mean() > 0.07
            assert np.abs(np.array(shade) - OBJECT_COLOURS[thing.colour]).max() <= 10


def truth(question: Question, scenes: list[Scene]) -> set[str]:
    """Every answer that is true, worked out from the question's words alone."""
    words = question.text.rstrip("?").replace(",", "").split()
    named = [int(word) - 1 for before, word in pairwise(words) if before in ("image", "picture") and word.isdigit()]
    seen = [scenes[number] for number in named] or scenes[:1]
    one = seen[0]
    names = {word for word in words if word in {thing.name for scene in scenes for thing in scene.things}}
    if question.kind == "background":
        return {one.background}
    if question.kind == "count":
        return {NUMBERS[len(one.things)]}
    if question.kind == "colour":
        return {thing.colour for thing in one.things if thing.name in _named(words)}
    if question.kind == "shape":
        return {thing.name for thing in one.things if thing.colour in words}
    if question.kind == "digit":
        return {thing.name for thing in one.things if thing.is_digit}
    if question.kind == "position":
        return {one.where(thing) for thing in one.things if thing.name in _named(words)}
    if question.kind == "presence":
        return {"yes" if any(thing.name in words for thing in one.things if not thing.is_digit) else "no"}
    if question.kind == "same_background":
        return {"yes" if seen[0].background == seen[1].background else "no"}
    if question.kind == "more_objects":
        return {f"image {max(named, key=lambda number: len(scenes[number].things)) + 1}"}
    if question.kind == "larger_digit":
        return {f"image {max(named, key=lambda number: [t.name for t in scenes[number].things if t.is_digit]) + 1}"}
    if question.kind == "find_background":
        return {f"image {number + 1}" for number, scene in enumerate(scenes) if scene.background in words}
    if question.kind in ("find_shape", "find_digit", "find_object", "background_of", "object_on"):
        colours = (
            {word for word in words if word in OBJECT_COLOURS}
            if question.kind == "find_object"
            else set(OBJECT_COLOURS)
        )
        ground = {word for word in words if word in BACKGROUNDS} if question.kind == "object_on" else set(BACKGROUNDS)
        found = [
            (number, scene, thing)
            for number, scene in enumerate(scenes)
            for thing in scene.things
            if thing.name in names and thing.colour in colours and scene.background in ground
        ]
        if question.kind == "background_of":
            return {scene.background for _, scene, _ in found}
        if question.kind == "object_on":
            return {thing.colour for _, _, thing in found}
        return {f"image {number + 1}" for number, _, _ in found}
    raise AssertionError(question.kind)


def _named(words: list[str]) -> set[str]:
    """The thing that a question about one picture names; the picture's own number is none."""
    if "digit" in words:
        return {words[words.index("digit") + 1]}
    return {word for word in words if not word.isdigit()}


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_is_the_only_true_one(kind: str) -> None:
    rng = rng_for("train", 1)
    drawn = 0
    answers: Counter[str] = Counter()
    while drawn < 150:
        scenes = [draw_scene(rng, "train") for _ in range(int(rng.integers(KINDS[kind].images, 5)))]
        question = ask(rng, scenes, kind)
        if question is None:
            continue
        drawn += 1
        answers[question.answer] += 1
        assert question.kind == kind
        assert truth(question, scenes) == {question.answer}, question
        assert 1 <= len(question.answer.split()) <= 6
    assert len(answers) > 1


def test_a_kind_across_pictures_is_not_asked_about_one() -> None:
    rng = rng_for("train", 1)
    assert all(ask(rng, [draw_scene(rng, "train")], kind) is None for kind in MULTI_HOP)
    assert set(MULTI_HOP) | set(SINGLE_HOP) == set(KINDS)


def test_a_chat_shows_a_picture_before_it_is_asked_about() -> None:
    rng = rng_for("train", 2)
    shapes: Counter[str] = Counter()
    for _ in range(200):
        chat = draw_chat(rng, "train", EVERY)
        shown = 0
        for turn in chat.turns:
            shown += len(turn.images)
            assert all(number < shown for number in (turn.question.images if turn.question else ()))
        assert 1 <= shown <= 4
        shapes["later"] += len([turn for turn in chat.turns if turn.images]) > 1
        shapes["labelled"] += any(turn.labelled for turn in chat.turns)
        shapes["system"] += bool(chat.system)
        shapes["before"] += any(turn.before for turn in chat.turns)
    assert all(shapes[name] > 10 for name in ("later", "labelled", "system", "before"))


def test_a_group_asks_what_it_says() -> None:
    for group in GROUPS:
        drawn = list(questions(group, 24, seed=7))
        assert {kind for kind, _ in drawn} == set(group.kinds)
        for kind, chat in drawn:
            last = chat.turns[-1].question
            assert last is not None
            assert last.kind == kind
            assert group.images[0] <= len(chat.scenes) <= group.images[1]


def test_no_answer_stands_in_the_chat_already() -> None:
    for group in GROUPS:
        for _, chat in questions(group, 60, seed=11):
            facts = [turn.question.fact for turn in chat.turns if turn.question is not None]
            assert len(set(facts)) == len(facts)


def test_two_wordings_of_one_question_have_one_fact() -> None:
    rng = rng_for("train", 5)
    scenes = [draw_scene(rng, "train") for _ in range(3)]
    for kind in KINDS:
        drawn = [question for question in (ask(rng, scenes, kind) for _ in range(300)) if question is not None]
        by_fact: dict[tuple[object, ...], set[str]] = {}
        for question in drawn:
            by_fact.setdefault(question.fact, set()).add(question.answer)
        assert all(len(answers) == 1 for answers in by_fact.values()), kind
        assert len({question.text for question in drawn}) > len(by_fact) or not drawn


def test_what_is_measured_was_not_trained_on() -> None:
    for group in GROUPS:
        scenes = [scene for _, chat in questions(group, 15, seed=1) for scene in chat.scenes]
        assert all(held_out(*layout(scene)) for scene in scenes)
    trained = [scene for seed in range(30) for scene in draw_chat(rng_for("train", seed), "train", EVERY).scenes]
    assert not any(held_out(*layout(scene)) for scene in trained)


@pytest.mark.parametrize(("kind", "images"), [("presence", 1), *product(YES_NO, (2, 3, 4))])
def test_yes_and_no_are_asked_evenly_of_each_number_of_images(kind: str, images: int) -> None:
    group = Group("one kind", (kind,), (images, images))
    answers = Counter(chat.turns[-1].reply for _, chat in questions(group, 500, seed=3))
    assert 0.43 < answers["yes"] / 500 < 0.57


def test_in_training_the_number_of_images_does_not_tell_yes_from_no() -> None:
    answers: Counter[tuple[str, int, str]] = Counter()
    limits = ChatLimits(dict.fromkeys(KINDS, 1.0) | {"same_background": 6.0}, min_images=2, questions=(4, 8))
    for seed in range(1500):
        shown = 0
        for turn in draw_chat(rng_for("train", seed), "train", limits).turns:
            shown += len(turn.images)
            if turn.question is not None and turn.question.kind in YES_NO:
                answers[turn.question.kind, shown, turn.reply] += 1
    for kind, images in product(YES_NO, (2, 3, 4)):
        yes, no = answers[kind, images, "yes"], answers[kind, images, "no"]
        assert yes + no > 150
        assert 0.4 < yes / (yes + no) < 0.6, (kind, images, yes, no)


def test_a_hint_fits_its_answer() -> None:
    hinted: Counter[int] = Counter()
    for seed in range(150):
        for turn in draw_chat(rng_for("train", seed), "train", EVERY).turns:
            length = len(turn.reply.split())
            if turn.question is not None and turn.after.split()[-1] in ("word.", "words.", "only."):
                hinted[length] += 1
                assert turn.after.endswith(HINTS[length])
    assert min(hinted[1], hinted[2]) > 10


def test_filler_says_nothing_of_pictures() -> None:
    text = " ".join(corpus_lines()).lower()
    assert not {"image", "picture", "images", "pictures"} & set(re.findall("[a-z]+", text))
    assert not (set(SHAPES) | set(OBJECT_COLOURS) | {"cyan", "pink", "brown"}) & set(re.findall("[a-z]+", text))


def test_questions_of_a_group_depend_on_nothing_else() -> None:
    few, many = (list(questions(GROUPS[0], count, seed=1)) for count in (5, 9))
    assert few == many[:5]
    other = replace(GROUPS[0], name="another group")
    assert list(questions(other, 5, seed=1)) != few


def test_the_wire_form_holds_every_picture_and_no_last_reply() -> None:
    chat: Chat = next(iter(questions(GROUPS[1], 1, seed=1)))[1]
    messages = wire_messages(chat)
    contents: list[list[Any]] = [message["content"] for message in messages if not isinstance(message["content"], str)]
    parts = [part for content in contents for part in content]
    urls: list[str] = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    assert len(urls) == len(chat.scenes)
    assert all(url.startswith("data:image/png;base64,") for url in urls)
    assert messages[-1]["role"] == "user"


def test_scores_count_exact_answers_and_name_yardsticks() -> None:
    asked = [Asked("g", "colour", "red", "red"), Asked("g", "colour", "blue", "blue 1"), Asked("h", "digit", "7", " 7")]
    assert score(asked[:2]).accuracy == 0.5
    found = summary(asked)
    assert found["groups"]["g"] == {"questions": 2, "accuracy": 0.5, "chance": 0.5}
    assert found["yardsticks"] == ["digit"]
    with pytest.raises(ValueError, match="nothing was asked"):
        score([])
