"""What is the engine's doing, and is not blamed on anybody else."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from metrics.experiment_groups import Group
from tests.api.rig import Rig
from tests.cases.chats import Chat, encoded, part, picture, says, user_of
from tests.unit.metrics.test_experiment import (
    Blind,
    Forgetful,
    _failed,  # pyright: ignore[reportPrivateUsage]
    _rows,  # pyright: ignore[reportPrivateUsage]
)

LONG = "Look at the picture and say what is there. " * 12
IMAGES: tuple[Group, ...] = ("C", "G")


@pytest.mark.case("MC-024")
async def test_a_read_of_nothing_on_an_equal_prompt_is_the_engines(tmp_path: Path) -> None:
    rows = await _rows(tmp_path / "experiment", Forgetful("/reset_prefix_cache"), ("A", "C"))
    assert _failed(rows) == {(group, path) for group in ("A", "C") for path in ("direct", "gateway")}
    assert all(row.verdict.startswith("read 0 tokens instead of ") for row in rows)


@pytest.mark.case("MC-024")
async def test_nothing_is_said_to_have_broken_when_an_engine_forgets(rig: Rig) -> None:
    chat = Chat(rig)
    for number in range(3):
        answer = await chat.ask(user_of(says(LONG), part(encoded(picture(number)))))
        assert "x-stillframe-break" not in answer.headers
        assert answer.json["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        await rig.engine.reset_caches()


@pytest.mark.case("MC-025")
async def test_the_next_turn_reads_the_reply_too(rig: Rig) -> None:
    """The bound is what the turn before had in all, in whole blocks."""
    chat = Chat(rig)
    answers = [await chat.ask(user_of(says(f"{number} {LONG}")), max_tokens=40) for number in range(4)]
    for before, after in pairwise(answers):
        usage, now = before.json["usage"], after.json["usage"]
        assert now["prompt_tokens_details"]["cached_tokens"] >= (usage["total_tokens"] - 1) // 16 * 16 - 16
        assert now["prompt_tokens_details"]["cached_tokens"] > usage["prompt_tokens"]


@pytest.mark.case("MC-036")
async def test_an_engine_that_confuses_pictures_is_found_out(tmp_path: Path) -> None:
    assert ("G", "gateway") in _failed(await _rows(tmp_path / "blind", Blind(), IMAGES))
    assert _failed(await _rows(tmp_path / "sound", groups=IMAGES)) == set()


@pytest.mark.case("MC-036")
async def test_another_picture_reads_no_more_than_the_text_before_it(rig: Rig) -> None:
    read: list[int] = []
    for number in (1, 2, 1):
        answer = await Chat(rig).ask(user_of(says(LONG), part(encoded(picture(number, (224, 224))))))
        read.append(answer.json["usage"]["prompt_tokens_details"]["cached_tokens"])
        prompt = answer.json["usage"]["prompt_tokens"]
    text = prompt - 64
    assert read[0] == 0
    assert 0 < read[1] <= text < read[2]
