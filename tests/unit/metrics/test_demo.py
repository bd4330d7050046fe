"""The demonstration on a real gateway over the fake engine: what is sent, what is measured, what is said of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from context.errors import EngineUnavailable
from engine.demo_model.questions import is_right
from engine.fake import FakeConfig
from metrics.demo import Session, TurnResult, totals
from metrics.demo_plan import make_plan
from metrics.demo_report import explain
from metrics.experiment_client import GatewayClient
from tests.api.rig import ADMIN, WatchedEngine, answers_with, serving, streams
from tests.unit.metrics.test_experiment import Forgetful

PLAN = make_plan(1)
RIGHT = tuple(turn.question.answer for turn in PLAN.turns)


async def _play(folder: Path, engine: WatchedEngine) -> list[TurnResult]:
    async with serving(folder, engine) as (_, host, port):
        client = GatewayClient(f"http://{host}:{port}", ADMIN["authorization"].removeprefix("Bearer "))
        async with client.connected():
            session = await Session.open(client, PLAN)
            return [await session.ask(turn) for turn in PLAN.turns]


def _script(*answers: str) -> WatchedEngine:
    return WatchedEngine(FakeConfig(script=answers))


class TestFigures:
    async def test_the_session_shows_what_the_caches_do(self, tmp_path: Path) -> None:
        results = await _play(tmp_path, _script(*RIGHT))
        read = [result.read_tokens or 0 for result in results]
        history = [result.history_tokens or 0 for result in results]
        assert read[0] == history[0] == 0
        assert all(history[1:])
        # Only dropping a picture breaks the history.
        assert [result.turn for result in results[1:] if read[result.turn - 1] < history[result.turn - 1]] == [7]
        # What stands before the first picture is still read.
        assert 0 < read[6] < 150
        assert [(result.encoder_runs, result.encoder_hits) for result in results] == [
            (2, 0),
            (0, 0),
            (0, 0),
            (1, 0),
            (0, 0),
            (0, 0),
            (0, 2),
            (0, 0),
        ]

    async def test_parts_add_up_and_sums_too(self, tmp_path: Path) -> None:
        results = await _play(tmp_path, _script(*RIGHT))
        for result in results:
            assert result.read_tokens is not None
            assert result.write_tokens is not None
            assert result.uncached_tokens is not None
            assert result.prompt_tokens == result.read_tokens + result.write_tokens + result.uncached_tokens
            assert result.computed_tokens == result.write_tokens + result.uncached_tokens
            assert 0 < result.ttft_seconds <= result.total_seconds
        sums = totals(results)
        assert sums.prompt_tokens == sum(result.prompt_tokens or 0 for result in results)
        assert sums.computed_tokens == (sums.write_tokens or 0) + (sums.uncached_tokens or 0)
        assert (sums.turns, sums.images, sums.encoder_runs) == (8, 19, 3)

    async def test_what_is_not_reported_is_none(self, tmp_path: Path) -> None:
        results = await _play(tmp_path, WatchedEngine(FakeConfig(reports_cache=False)))
        assert {result.read_tokens for result in results} == {None}
        sums = totals(results)
        assert (sums.read_tokens, sums.computed_tokens, sums.uncached_tokens) == (None, None, None)
        assert sums.prompt_tokens

    async def test_a_cache_that_forgets_is_not_explained_away(self, tmp_path: Path) -> None:
        results = await _play(tmp_path, Forgetful("/reset_prefix_cache"))
        for result in results[1:6]:
            assert explain(result).startswith("Less was read than the turn before left in the cache: 0 of ")


class TestAnswers:
    async def test_right_ones_are_counted(self, tmp_path: Path) -> None:
        assert totals(await _play(tmp_path, _script(*RIGHT))).right == 8

    async def test_a_wrong_one_is_not(self, tmp_path: Path) -> None:
        results = await _play(tmp_path, _script("a horse", *RIGHT[1:]))
        assert [result.right for result in results] == [False] + [True] * 7
        assert results[0].answer == "a horse"

    async def test_the_history_holds_what_was_answered(self, tmp_path: Path) -> None:
        engine = _script("a horse", *RIGHT[1:])
        await _play(tmp_path, engine)
        messages: list[Any] = engine.sent[-1]["messages"]
        said = [message["content"] for message in messages if message["role"] == "assistant"]
        assert said == ["a horse", *RIGHT[1:7]]
        assert engine.sent[-1]["temperature"] == 0

    @pytest.mark.parametrize(
        ("answer", "right"),
        [("red", True), (" Red.\n", True), ("", False), ("red star", False), ("blue", False), ("re", False)],
    )
    def test_right_is_the_words_and_nothing_else(self, answer: str, right: bool) -> None:
        assert is_right(answer, "red") == right


class TestFailures:
    async def test_a_refused_turn_says_why(self, tmp_path: Path) -> None:
        engine = WatchedEngine(answer=answers_with(429, b'{"error": {"message": "too much of it", "type": "x"}}'))
        with pytest.raises(EngineUnavailable, match="refused"):
            await _play(tmp_path, engine)

    async def test_a_stream_that_fails_is_no_answer(self, tmp_path: Path) -> None:
        chunk = b'data: {"id": "1", "choices": [{"index": 0, "delta": {"content": "re"}}]}\n\n'
        failed = b'data: {"error": {"message": "x", "type": "server_error", "code": 500}}\n\n'
        with pytest.raises(EngineUnavailable, match="middle of an answer"):
            await _play(tmp_path, WatchedEngine(answer=streams(chunk, failed)))

    async def test_a_wrong_token_says_so(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as (_, host, port):
            client = GatewayClient(f"http://{host}:{port}", "wrong")
            async with client.connected():
                with pytest.raises(EngineUnavailable, match="administrator"):
                    await Session.open(client, PLAN)
