"""A record for every chat, whatever its end: in the file, with the engine's own figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.fake import FakeConfig, Fault
from metrics.records import queries
from metrics.records.queries import Filter, open_records
from metrics.records.record import TurnRecord
from tests.api.rig import Rig, WatchedEngine, ask, image, running, text, user

_PRICES = '[{model: "*", input: 2, cached_input: 0.5, output: 10}]'


def _kept(folder: Path) -> list[TurnRecord]:
    """All records of a gateway that has stopped, in their order."""
    with open_records(folder / "ledger.db") as records:
        return queries.latest(records, limit=1000)[::-1]


async def _session(rig: Rig, *, stream: bool) -> list[dict[str, Any]]:
    """Three turns of one conversation, the last with a second image; the engine's usage of each."""
    head = text("the same words in front " * 20)
    messages = [user(head, image())]
    used: list[dict[str, Any]] = []
    for number in range(3):
        body = ask(*messages, stream=stream, **({"stream_options": {"include_usage": True}} if stream else {}))
        answer = await rig.chat(body, {"traceparent": "00-0-0-00"})
        if stream:
            words = "".join(event["choices"][0]["delta"].get("content") or "" for event in answer.events[:-2])
            usage = answer.events[-2]["usage"]
        else:
            words, usage = answer.json["choices"][0]["message"]["content"], answer.json["usage"]
        used.append(usage)
        parts = [image("base_lossless.webp")] if number == 1 else []
        messages += [{"role": "assistant", "content": words}, user(text(f"and {number}"), *parts)]
    return used


@pytest.mark.parametrize("stream", [False, True])
async def test_turns_have_the_figures_of_the_engine(tmp_path: Path, stream: bool) -> None:
    async with running(tmp_path, environment={"PRICES": _PRICES}) as rig:
        used = await _session(rig, stream=stream)
    kept = _kept(tmp_path)
    assert [one.number for one in kept] == [1, 2, 3]
    assert len({one.conversation for one in kept}) == 1
    for record, usage in zip(kept, used, strict=True):
        details = usage["prompt_tokens_details"]
        assert (record.prompt_tokens, record.completion_tokens) == (usage["prompt_tokens"], usage["completion_tokens"])
        assert record.read_tokens == details["cached_tokens"]
        assert record.write_tokens == details["created_cache_tokens"]
        assert record.read_tokens is not None
        assert record.uncached_tokens == usage["prompt_tokens"] - record.read_tokens - details["created_cache_tokens"]
        assert (record.outcome, record.stream, record.policy, record.tenant) == (
            "completed",
            stream,
            "stable",
            "default",
        )
        computed = usage["prompt_tokens"] - record.read_tokens
        cost = (record.read_tokens * 0.5 + computed * 2 + usage["completion_tokens"] * 10) / 1e6
        assert record.cost == pytest.approx(cost)
        assert record.first_token_seconds is not None
        assert record.total_seconds is not None
        assert 0 < record.first_token_seconds <= record.total_seconds
    assert [one.cause for one in kept] == ["cold", None, None]
    assert kept[0].read_tokens == 0
    assert kept[1].read_tokens
    # The same pixels in another file are no new image; they stand there twice.
    assert [(one.images, one.unique_images, one.new_images) for one in kept] == [(1, 1, 1), (1, 1, 0), (2, 1, 0)]
    assert kept[2].image_counts == (2,)
    assert [one.encoder_runs for one in kept] == [1, 0, 0]


async def test_each_end_has_its_record(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        await rig.chat(ask("a"))
        rig.engine.inject(Fault("error", status=500))
        await rig.chat(ask("b"))
        rig.engine.inject(Fault("error", status=400))
        await rig.chat(ask("c"))
        await rig.chat(b"{")
        await rig.chat(ask(user(image("bad_empty.png"))))
    kept = _kept(tmp_path)
    assert [one.outcome for one in kept] == ["completed", "failed", "refused", "refused", "refused"]
    assert [bool(one.conversation) for one in kept] == [True, True, True, False, False]
    assert all(one.prompt_tokens is None and one.cause is None for one in kept[1:])
    with open_records(tmp_path / "ledger.db") as records:
        assert queries.totals(records).requests == 5
        assert queries.totals(records).unreported == 0


async def test_a_stranger_has_none(tmp_path: Path) -> None:
    async with running(tmp_path, environment={"AUTH__KEYS": "{alice: secret-of-alice}"}) as rig:
        assert (await rig.chat(ask("a"))).status == 401
        await rig.chat(ask("a"), {"authorization": "Bearer secret-of-alice"})
        assert await rig.outcomes() == {"completed": 1, "refused": 1}
    assert [one.tenant for one in _kept(tmp_path)] == ["alice"]


async def test_unreported_is_not_zero(tmp_path: Path) -> None:
    async with running(tmp_path, WatchedEngine(FakeConfig(reports_cache=False)), {"PRICES": _PRICES}) as rig:
        await rig.chat(ask("a"))
    (record,) = _kept(tmp_path)
    assert (record.read_tokens, record.write_tokens, record.cost) == (None, None, None)
    assert record.prompt_tokens
    assert (record.cause, record.actor) == ("engine_unreported", "engine")


async def test_a_change_of_the_history_is_attributed(tmp_path: Path) -> None:
    words = "a long beginning of a long chat " * 30
    async with running(tmp_path) as rig:
        first = await rig.chat(ask(words + "one", "two", user("three")), {"x-stillframe-conversation": "c"})
        assert first.status == 200
        await rig.chat(ask("X" + words + "one", "two", user("three")), {"x-stillframe-conversation": "c"})
    before, after = _kept(tmp_path)
    assert (before.cause, before.lost_tokens) == ("cold", 0)
    assert (after.cause, after.actor, after.break_message) == ("client_edit", "client", 0)
    assert after.lost_tokens
    assert after.expected_read
    assert after.lost_tokens == after.expected_read - (after.read_tokens or 0)
    with open_records(tmp_path / "ledger.db") as records:
        lost = queries.causes(records, Filter(tenant="default"))
    assert [(one.cause, one.lost_tokens) for one in lost if one.lost_tokens] == [("client_edit", after.lost_tokens)]


async def test_records_outlive_the_gateway(tmp_path: Path) -> None:
    for _ in range(2):
        async with running(tmp_path) as rig:
            await rig.chat(ask("a"))
    assert len(_kept(tmp_path)) == 2
