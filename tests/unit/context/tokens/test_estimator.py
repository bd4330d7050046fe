"""What a message takes, by vocabulary and rule, corrected by what the engine reports."""

from __future__ import annotations

from typing import Any

import pytest

from context.images.base import ImageRef
from context.plan import SentMessage
from context.tokens.estimator import Estimator
from context.tokens.texts import TextCounter
from context.tokens.visual import Fixed, QwenVl
from context.tokens.vocabulary import Vocabulary, shipped
from context.transcript import ImagePart

MESSAGE = 5


def words() -> TextCounter:
    return TextCounter(Vocabulary(lambda text: len(text.split()), budget_chars=1000))


def image(width: int, height: int) -> ImagePart:
    return ImagePart(ImageRef("ab" * 32, width, height, "image/png", 5_000_000))


def sent(*wires: dict[str, Any]) -> list[SentMessage]:
    return [SentMessage(wire, at) for at, wire in enumerate(wires)]


def test_a_string_and_one_part_take_the_same() -> None:
    estimator = Estimator(words(), Fixed(100))
    assert estimator.message_tokens({"role": "user", "content": "one two three"}) == MESSAGE + 3
    assert estimator.message_tokens({"role": "user", "content": [{"type": "text", "text": "one two three"}]}) == 8
    assert estimator.message_tokens({"role": "assistant", "content": None}) == MESSAGE


def test_an_image_takes_what_its_rule_says_whatever_its_bytes() -> None:
    estimator = Estimator(words(), QwenVl())
    assert estimator.message_tokens({"role": "user", "content": [image(1280, 800)]}) == MESSAGE + 2 + 46 * 29
    assert estimator.message_tokens({"role": "user", "content": [image(100_000, 20)]}) > 100


def test_a_data_url_in_a_text_is_text() -> None:
    text = "data:image/png;base64," + "iVBORw0KGgo" * 200
    estimator = Estimator(TextCounter(shipped()), QwenVl())
    assert estimator.message_tokens({"role": "user", "content": text}) > 1000


def test_calls_take_their_names_and_arguments_and_what_is_none_all_of_it() -> None:
    estimator = Estimator(words(), Fixed(100))
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"at": [1, 2]}'}}
    assert estimator.message_tokens({"role": "assistant", "content": None, "tool_calls": [call]}) == MESSAGE + 14 + 4
    odd = {"id": "c", "function": {"name": "a b c", "arguments": {"x": 1}}}
    assert estimator.message_tokens({"role": "assistant", "content": None, "tool_calls": [odd]}) > MESSAGE + 14


def test_reports_correct_text_and_images_each_by_its_own_factor() -> None:
    estimator, said = Estimator(words(), Fixed(1000)), {"role": "user", "content": "word " * 395}
    for turn in range(20):
        shown, told = turn % 4, turn % 5 + 1
        wires = [{"role": "user", "content": [image(9, 9)]}] * shown + [said] * told
        estimator.observe(sent(*wires), None, 2 * (MESSAGE * shown + 400 * told) + 500 * shown)
    assert estimator.message_tokens(said) == pytest.approx(800, rel=0.03)
    assert estimator.message_tokens({"role": "user", "content": [image(9, 9)]}) == pytest.approx(510, rel=0.05)


def test_what_an_engine_says_of_images_is_believed() -> None:
    estimator = Estimator(words(), Fixed(100))
    message = {"role": "user", "content": [{"type": "text", "text": "word " * 995}, image(9, 9)]}
    for _ in range(10):
        estimator.observe(sent(message), None, 1300, visual_tokens=300)
    assert estimator.message_tokens({"role": "user", "content": [image(9, 9)]}) == pytest.approx(305, rel=0.05)


def test_tools_are_part_of_a_prompt_that_is_reported() -> None:
    tools = [{"type": "function", "function": {"name": f"tool{at}", "description": "word " * 99}} for at in range(10)]
    estimator, without = Estimator(words(), Fixed(100)), Estimator(words(), Fixed(100))
    for _ in range(5):
        estimator.observe(sent({"role": "user", "content": "word " * 995}), tools, 2000)
        without.observe(sent({"role": "user", "content": "word " * 995}), None, 2000)
    assert estimator.calibration.factors.text == pytest.approx(1.0, abs=0.05)
    assert without.calibration.factors.text > 1.3


def test_a_request_hears_the_same_figures_to_its_end() -> None:
    estimator = Estimator(words(), Fixed(100))
    message = {"role": "user", "content": "word " * 500}
    frozen = estimator.frozen()
    before = frozen(message)
    for _ in range(10):
        estimator.observe(sent(message), None, 1500)
    assert frozen(message) == before
    assert estimator.message_tokens(message) > 1.5 * before


def test_a_prompt_with_more_new_text_than_a_request_may_count_teaches_nothing_yet() -> None:
    estimator = Estimator(words(), Fixed(100))
    long = sent(*({"role": "user", "content": f"{at} " + "word " * 99} for at in range(8)))
    estimator.observe(long, None, 9000)
    assert estimator.calibration.factors.text == 1.0
    estimator.observe(long, None, 9000)
    assert estimator.calibration.factors.text == 1.0
    estimator.observe(long, None, 9000)
    estimator.observe(long, None, 9000)
    assert estimator.calibration.factors.text > 1.5
