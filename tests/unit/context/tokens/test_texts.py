"""Counting is remembered, long texts are sampled, and a budget is kept."""

from __future__ import annotations

import random

import pytest

from context.tokens.texts import Budget, TextCounter
from context.tokens.vocabulary import Vocabulary, shipped


class Counted:
    """A vocabulary of one token for every two bytes, and what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.vocabulary = Vocabulary(self._count, budget_chars=10_000)

    def _count(self, text: str) -> int:
        self.asked.append(text)
        return (len(text.encode()) + 1) // 2


def test_a_text_is_counted_once() -> None:
    counted = Counted()
    counter = TextCounter(counted.vocabulary)
    assert [counter.tokens("twelve bytes") for _ in range(3)] == [6, 6, 6]
    assert counted.asked == ["twelve bytes"]


def test_what_is_remembered_is_bounded_and_what_is_used_stays() -> None:
    counted = Counted()
    counter = TextCounter(counted.vocabulary, memo_entries=20)
    for number in range(200):
        counter.tokens(f"text {number}")
        counter.tokens("again and again")
    assert counted.asked.count("again and again") == 1
    counter.tokens("text 0")
    assert counted.asked.count("text 0") == 2


@pytest.mark.parametrize("words", [["the window", "opens", "slowly;", "42"], ["窗口", "打开。", "請稍候，"]])
def test_a_long_text_is_sampled_evenly(words: list[str]) -> None:
    chosen = random.Random(1)  # noqa: S311
    text = " ".join(chosen.choices(words, k=40_000))
    counted = Counted()
    sampled = TextCounter(counted.vocabulary)
    sampled.tokens(text)
    assert sum(map(len, counted.asked)) <= 4096
    assert counted.asked[0] == text[:256]
    assert counted.asked[-1] == text[-256:]
    assert TextCounter(shipped()).tokens(text) == pytest.approx(shipped().count(text), rel=0.05)


def test_a_budget_that_is_used_up_leaves_the_rest_to_the_bytes() -> None:
    counted = Counted()
    counter = TextCounter(counted.vocabulary)
    budget = counter.budget()
    assert [counter.tokens(str(number) * 3000, budget) for number in range(6)] == pytest.approx([1500] * 6, rel=0.01)
    assert [text[0] for text in counted.asked] == ["0", "1", "2", "3"]
    # What was counted is known without a budget, and what was not is counted by the next request.
    assert counter.tokens("0" * 3000, Budget(0)) == 1500
    assert counter.tokens("5" * 3000, counter.budget()) == 1500
    assert len(counted.asked) == 5
