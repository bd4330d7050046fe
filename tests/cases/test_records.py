"""What a turn's record puts the loss down to, where others leave it unexplained."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from engine.fake import FakeConfig
from metrics.records import queries
from metrics.records.queries import open_records
from metrics.records.record import TurnRecord
from tests.api.rig import Rig, WatchedEngine, running
from tests.cases.chats import Chat, says, user_of
from tests.cases.test_template import THINKING, checkpoint, template

LONG = "Look around and say what is there, and then say it again. " * 6


def _kept(folder: Path) -> list[TurnRecord]:
    with open_records(folder / "ledger.db") as records:
        return queries.latest(records)[::-1]


async def _talk(rig: Rig, turns: int, *, forget: bool = False) -> None:
    chat = Chat(rig)
    for number in range(turns):
        assert (await chat.ask(user_of(says(f"{number} {LONG}")), max_tokens=60)).status == 200
        if forget:
            await rig.engine.reset_caches()


@pytest.mark.case("MC-020")
async def test_a_turn_is_put_down_to_the_template_that_wrote_it_anew(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "model", template(start=THINKING))
    async with running(tmp_path, WatchedEngine(FakeConfig(checkpoint=folder))) as rig:
        await _talk(rig, 3)
    first, *later = _kept(tmp_path)
    assert first.cause == "cold"
    assert [(one.cause, one.actor) for one in later] == [("template", "template")] * 2
    for one in later:
        assert one.lost_tokens
        # It stops where the reply was begun in another way.
        assert one.break_token == one.read_tokens


@pytest.mark.case("MC-024")
async def test_a_turn_that_reads_nothing_of_an_equal_prompt_is_put_down_to_the_engine(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        await _talk(rig, 3, forget=True)
    _, *later = _kept(tmp_path)
    for one in later:
        assert (one.cause, one.actor, one.read_tokens) == ("engine_eviction", "engine", 0)
        assert one.lost_tokens == one.expected_read
        assert one.break_message is None


@pytest.mark.case("MC-025")
async def test_what_was_generated_is_expected_to_be_read(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        await _talk(rig, 4)
    for before, after in pairwise(_kept(tmp_path)):
        # The last token of a reply was never fed to the model.
        left = (before.prompt_tokens or 0) + (before.completion_tokens or 0) - 1
        assert after.expected_read == after.read_tokens == left // 16 * 16
        assert (after.expected_read or 0) > (before.prompt_tokens or 0)
        assert (after.cause, after.lost_tokens) == (None, 0)
