"""Another ratio of image KV within a conversation: the client is told at once, the record says whose doing it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.base import EngineInfo
from metrics.records import queries
from metrics.records.queries import open_records
from metrics.records.record import TurnRecord
from tests.api.pool_rig import PoolEngine, recorded, turns
from tests.api.rig import Answer, Rig, ask, image, running, text, user

REUSE, BREAK = "x-stillframe-reuse", "x-stillframe-break"
FRONT, BEHIND = "words in front of it " * 30, "and words behind it " * 30
POLICY = 'name: {name}\nversion: "1"\nkind: stable\nreuse: {{mode: position_independent, ratio: {ratio}}}\n'


class LastingEngine(PoolEngine):
    """Goes on when its gateway stops."""

    async def stop(self) -> None:
        """Nothing is stopped here."""


class SilentEngine(PoolEngine):
    """Tells nothing of its blocks."""

    def info(self) -> EngineInfo:
        """See `Engine.info`."""
        return replace(super().info(), kind="remote")


class Chat:
    """A conversation about an image that the pool has from another one."""

    def __init__(self) -> None:
        self.messages: list[Any] = [user(text(FRONT), image(), text(BEHIND))]

    async def ask(self, rig: Rig, ratio: str | None, *, waits: bool = True, **headers: str) -> Answer:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        given |= {"x-stillframe-conversation": "c", **({REUSE: ratio} if ratio else {})}
        before = await turns(rig)
        answer = await rig.chat(ask(*self.messages), given)
        assert answer.status == 200, answer.body
        self.messages += [answer.json["choices"][0]["message"], user(f"and now {len(self.messages)}")]
        if waits:
            await recorded(rig, before + 1)
        return answer


async def donor(rig: Rig) -> None:
    """The image comes into the pool."""
    assert (await rig.chat(ask(user(text("look"), image())))).status == 200
    await recorded(rig, 1)


def records_of(folder: Path) -> list[TurnRecord]:
    with open_records(folder / "ledger.db") as records:
        return [one for one in queries.latest(records, limit=99) if one.conversation == "c"][::-1]


def gateway(folder: Path, engine: PoolEngine, *ratios: float) -> Any:
    """One with a policy for each ratio; the first is in force."""
    environment = {"REUSE_HEADER": "true"}
    (folder / "policies").mkdir(exist_ok=True)
    for at, ratio in enumerate(ratios):
        (folder / "policies" / f"p{at}.yaml").write_text(POLICY.format(name=f"p{at}", ratio=ratio))
    if ratios:
        environment |= {"POLICY": str(folder / "policies" / "p0.yaml")}
    return running(folder, engine=engine, environment=environment)


@pytest.mark.parametrize("later", ["0.2", "off", "0.05; profile"])
async def test_another_ratio_by_header_is_told_as_the_client_s_change_of_salt(tmp_path: Path, later: str) -> None:
    async with gateway(tmp_path, PoolEngine()) as rig:
        await donor(rig)
        chat = Chat()
        assert BREAK not in (await chat.ask(rig, "0.05")).headers
        assert BREAK not in (await chat.ask(rig, "0.05")).headers
        told = (await chat.ask(rig, later)).headers[BREAK]
        assert told.startswith("salt; actor=client; at=messages[0].content[1]; lost_tokens="), told
        assert BREAK not in (await chat.ask(rig, later)).headers
    first, same, changed, after = records_of(tmp_path)
    assert (first.cause, same.cause, after.cause) == ("cold", None, None)
    assert (changed.cause, changed.actor, changed.break_message, changed.break_part) == ("salt", "client", 0, 1)
    # What stands in front of the image is read on; all behind it is computed again.
    assert changed.read_tokens is not None
    assert changed.lost_tokens is not None
    assert 0 < changed.read_tokens < (same.read_tokens or 0)
    assert changed.lost_tokens == (changed.expected_read or 0) - changed.read_tokens > 64
    told_tokens = int(told.rpartition("=")[2])
    assert told_tokens == pytest.approx(changed.lost_tokens, rel=0.5)


async def test_a_header_that_is_left_out_again_is_the_client_s_change_too(tmp_path: Path) -> None:
    async with gateway(tmp_path, PoolEngine(), 0.2) as rig:
        await donor(rig)
        chat = Chat()
        await chat.ask(rig, "0.05")
        assert (await chat.ask(rig, None)).headers[BREAK].startswith("salt; actor=client;")
    assert [(one.cause, one.actor) for one in records_of(tmp_path)] == [("cold", "client"), ("salt", "client")]


async def test_another_ratio_by_policy_is_the_policy_s_change_after_a_restart_too(tmp_path: Path) -> None:
    engine, chat = LastingEngine(), Chat()
    async with gateway(tmp_path, engine, 0.05) as rig:
        await donor(rig)
        await chat.ask(rig, None)
    async with gateway(tmp_path, engine, 0.2) as rig:
        answer = await chat.ask(rig, None, x_stillframe_explain="1")
        assert answer.headers[BREAK].startswith("salt; actor=policy; at=messages[0].content[1];")
        (told,) = answer.json["stillframe"]["breaks"]
        assert (told["cause"], told["actor"], told["place"]) == ("salt", "policy", "messages[0].content[1]")
        assert told["detail"] == "KV of images: ratio 0.2, where the turn before had ratio 0.05"
    await PoolEngine.stop(engine)
    changed = records_of(tmp_path)[-1]
    assert (changed.cause, changed.actor) == ("salt", "policy")
    assert changed.lost_tokens
    # Nothing was rewritten, and no image taken out.
    assert (changed.epoch, changed.image_eviction) == (0, False)


async def test_nothing_breaks_where_the_turn_before_was_computed_exactly(tmp_path: Path) -> None:
    """Exact blocks are read whatever is allowed; so are those of a turn for which the pool had nothing."""
    async with gateway(tmp_path, PoolEngine()) as rig:
        chat = Chat()
        for ratio in (None, "0.05", "0.2", None):
            assert BREAK not in (await chat.ask(rig, ratio)).headers
    assert [one.cause for one in records_of(tmp_path)] == ["cold", None, None, None]


@pytest.mark.parametrize("by", ["client", "policy"])
async def test_an_image_of_exact_blocks_that_is_loaded_all_the_same_is_salt_and_the_next_change_is_told(
    tmp_path: Path, by: str
) -> None:
    """Its end stood in a block that was not full: nothing in the plan says so, and the engine does a moment later."""
    engine, chat = PoolEngine(), Chat()
    ratios = ("off", "0.05", "0.2") if by == "client" else ("off", None, "0.2")
    async with gateway(tmp_path, engine, 0.05) as rig:
        await chat.ask(rig, ratios[0])
        engine.ends_in_blocks = True
        assert BREAK not in (await chat.ask(rig, ratios[1])).headers
        assert (await chat.ask(rig, ratios[2])).headers[BREAK].startswith("salt; actor=client; at=messages[0]")
    assert [(one.cause, one.actor) for one in records_of(tmp_path)][1:] == [("salt", by), ("salt", "client")]


async def test_what_the_engine_kept_apart_and_has_no_more_is_its_loss_and_nobody_changed_anything(
    tmp_path: Path,
) -> None:
    engine, chat = PoolEngine(), Chat()
    async with gateway(tmp_path, engine) as rig:
        await donor(rig)
        await chat.ask(rig, "0.05")
        engine.forget_images()
        assert BREAK not in (await chat.ask(rig, "0.05")).headers
    assert [(one.cause, one.actor) for one in records_of(tmp_path)][1:] == [("engine_eviction", "engine")]


async def test_where_the_engine_has_not_said_what_came_of_a_turn_its_blocks_are_taken_to_stand_apart(
    tmp_path: Path,
) -> None:
    engine = PoolEngine()
    engine.is_silent = True
    async with gateway(tmp_path, engine) as rig:
        chat = Chat()
        await chat.ask(rig, "0.05")
        assert (await chat.ask(rig, "0.2")).headers[BREAK].startswith("salt; actor=client;")
    # It was not so, and nothing was lost.
    assert records_of(tmp_path)[-1].cause is None


async def test_the_same_allowance_is_no_change_though_the_engine_has_not_said_what_came_of_the_turn_before(
    tmp_path: Path,
) -> None:
    engine, chat = SilentEngine(), Chat()
    async with gateway(tmp_path, engine) as rig:
        await donor(rig)
        engine.is_silent = True
        await chat.ask(rig, "0.05")
        engine.is_silent = False
        await engine.reset_caches()
        assert BREAK not in (await chat.ask(rig, "0.05")).headers
    assert [(one.cause, one.actor) for one in records_of(tmp_path)][1:] == [("engine_unreported", "engine")]


async def test_a_salt_that_was_supposed_is_not_the_cause_where_the_engine_says_behind_it_that_all_was_exact(
    tmp_path: Path,
) -> None:
    """The next turn comes before that of the turn before is known; what is lost is not the client's."""
    engine, chat = SilentEngine(), Chat()
    async with gateway(tmp_path, engine) as rig:
        # However slow the machine is.
        served = rig.app._gateway  # pyright: ignore[reportPrivateUsage]
        assert served is not None
        served.recorder.late_seconds = 60
        await chat.ask(rig, "0.05", waits=False)
        await engine.reset_caches()
        answer = await chat.ask(rig, "0.2", waits=False)
        assert answer.headers[BREAK].startswith("salt; actor=client;")
        await recorded(rig, 2)
    assert [(one.cause, one.actor) for one in records_of(tmp_path)][1:] == [("engine_unreported", "engine")]


async def test_an_edit_in_front_of_the_image_is_the_break_and_one_behind_it_is_not(tmp_path: Path) -> None:
    async with gateway(tmp_path, PoolEngine()) as rig:
        await donor(rig)
        for is_in_front in (True, False):
            chat = Chat()
            chat.messages[:0] = [user(f"{is_in_front} {FRONT}"), {"role": "assistant", "content": "yes"}]
            await chat.ask(rig, "0.05")
            await chat.ask(rig, "0.05")
            edited = chat.messages[0 if is_in_front else 4]
            edited["content"] = f"edited {edited['content']}"
            told = (await chat.ask(rig, "0.2", x_stillframe_explain="1")).json["stillframe"]
            assert told["breaks"][0]["cause"] == ("client_edit" if is_in_front else "salt")
            assert [one["cause"] for one in told["reports"]] == ([] if is_in_front else ["client_edit"])
