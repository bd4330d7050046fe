"""The oldest turns as one block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from context.layout.names import marker
from context.plan import SummaryRequest
from context.policies.base import Policy, Request, Rules
from context.policies.keep import STABLE
from context.policies.summary import INSTRUCTION, RETRY_TURNS, Summary
from tests.unit.context.policies.sessions import (
    SYSTEM,
    Session,
    brief,
    calls,
    result,
    same_start,
    session,
    shot,
    shots,
    user,
)

BY_TURNS = Summary("turns", 3, 2)


@dataclass
class Engine:
    """Makes summaries, or gives the texts that it is told to."""

    texts: list[str | None] = field(default_factory=list[str | None])
    asked: list[SummaryRequest] = field(default_factory=list[SummaryRequest])

    async def __call__(self, request: SummaryRequest, conversation: str) -> str | None:
        assert conversation == "c"
        self.asked.append(request)
        return self.texts.pop(0) if self.texts else f"They spoke {len(self.asked)}."


def by(client: Session, *texts: str | None) -> Engine:
    client.summarize = engine = Engine(list(texts))
    return engine


def block(wire: Mapping[str, Any]) -> list[str]:
    assert wire["role"] == "user"
    return wire["content"].splitlines()


async def test_the_oldest_turns_become_one_block_with_the_names_of_their_images() -> None:
    async with session(BY_TURNS, Request(), SYSTEM) as client:
        engine = by(client)
        turns = await client.steps(1, 5)
        assert [len(turn.plan.breaks) for turn in turns] == [0, 0, 0, 1]
        sent = turns[3].plan.sent
        assert [one.source for one in sent] == [0, None, 5, 6, 7]
        assert sent[1].origin == "summary"
        names = [marker(shot(number).ref) for number in (1, 2)]
        title = "[Summary v1 of messages 2-5]"
        assert block(sent[1].wire) == [title, "They spoke 1.", "Images in these messages:", *names]
        assert brief(turns[3]) == [("summary", "policy", 1)]
        # What the engine is asked is what it was sent before, up to the end of the segment.
        (asked,) = engine.asked
        before = [one.wire for one in turns[2].plan.sent][:5]
        assert list(asked.messages) == [*before, {"role": "user", "content": INSTRUCTION}]
        assert asked.max_tokens == 400


async def test_the_next_turn_extends_the_block_and_the_next_boundary_sums_it_up_too() -> None:
    async with session(BY_TURNS, Request(), SYSTEM) as client:
        engine = by(client)
        turns = await client.steps(1, 8)
        assert [len(turn.plan.breaks) for turn in turns] == [0, 0, 0, 1, 0, 1, 0]
        for turn in (turns[4], turns[6]):
            assert same_start(turn) == len(turn.before)
        lines = block(turns[5].plan.sent[1].wire)
        assert lines[:2] == ["[Summary v2 of messages 2-9]", "They spoke 2."]
        assert lines[3:] == [marker(shot(number).ref) for number in (1, 2, 3, 4)]
        assert engine.asked[1].messages[1] == turns[3].plan.sent[1].wire
        assert sum(one.origin == "summary" for one in turns[6].plan.sent) == 1


async def test_without_a_summary_the_turn_goes_on_and_the_engine_is_left_alone_for_a_while() -> None:
    async with session(BY_TURNS, Request(), SYSTEM) as client:
        engine = by(client, None, " \n", "at last")
        turns = await client.steps(1, 5 + 2 * RETRY_TURNS)
        broken = [number for number, turn in enumerate(turns, 1) if turn.plan.breaks]
        assert broken == [4 + 2 * RETRY_TURNS]
        assert len(engine.asked) == 3
        assert shots(turns[-2]) == list(range(1, len(turns)))
        assert block(turns[-1].plan.sent[1].wire)[1] == "at last"


async def test_nobody_to_ask_is_no_summary() -> None:
    async with session(BY_TURNS) as client:
        turns = await client.steps(1, 6)
    assert all(not turn.plan.breaks for turn in turns)
    assert turns[3].plan.summary is not None


async def test_prompt_tokens_are_brought_down_with_the_summary_counted() -> None:
    policy = Summary("prompt_tokens", 100, 60, max_tokens=20)
    request = Request(estimate=lambda wire: 10)
    async with session(policy, request, SYSTEM) as client:
        by(client)
        turns = await client.steps(1, 8)
    counts = [10 * len(turn.plan.sent) for turn in turns]
    # Five messages are left at most: the question of this turn, a turn, the instructions and the block.
    assert counts == [20, 40, 60, 80, 100, 50, 70]
    assert max(counts) <= 100


async def test_images_are_counted_and_pinned_ones_stay_behind_the_block() -> None:
    request = Request(pins=frozenset({shot(2).ref.image_id}))
    async with session(Summary("images", 3, 2), request) as client:
        by(client)
        turns = await client.steps(1, 5)
    sent = turns[3].plan.sent
    assert shots(turns[3]) == [2, 4]
    assert [one.source for one in sent] == [None, 2, 6]
    assert marker(shot(2).ref) not in block(sent[0].wire)
    assert marker(shot(3).ref) in block(sent[0].wire)


async def test_pinned_results_stay_with_their_call() -> None:
    request = Request(pins=frozenset({shot(2).ref.image_id}))
    policy = Summary("turns", 2, 1, rules=Rules(tool_images="hoist"))
    async with session(policy, request) as client:
        by(client)
        await client.ask(user("old"))
        await client.ask(user("go", 1), reply=calls("a"))
        await client.ask(result("a", 2), reply="done")
        turn = await client.ask(user("and now"))
    roles = [one.wire["role"] for one in turn.plan.sent]
    assert roles == ["user", "assistant", "tool", "user", "user"]
    assert [one.origin for one in turn.plan.sent] == ["summary", "client", "client", "hoisted", "client"]
    assert shots(turn) == [2]


async def test_an_agents_question_stays_while_its_steps_are_summed_up() -> None:
    async with session(Summary("turns", 3, 1), Request(), SYSTEM) as client:
        by(client)
        turn = await client.ask(user("book a table", 1), reply=calls("c0"))
        for step in range(5):
            turn = await client.ask(result(f"c{step}", step + 2), reply=calls(f"c{step + 1}"))
            if turn.plan.breaks:
                break
    assert [one.source for one in turn.plan.sent] == [0, 1, None, 8, 9]
    assert turn.plan.sent[1].wire == user("book a table", 1)
    assert shots(turn) == [1, 5]


async def test_open_groups_and_system_messages_stay() -> None:
    note = {"role": "system", "content": "Be brief from now on."}
    async with session(Summary("turns", 2, 1), Request(), SYSTEM) as client:
        by(client)
        await client.ask(user("one"))
        await client.ask(note, user("two"), reply=calls("a", "b"))
        # A client that never gives one of the results.
        await client.ask(result("a"), user("three"))
        turn = await client.ask(user("four"))
    assert [one.source for one in turn.plan.sent] == [0, None, *range(3, 10)]
    assert turn.plan.sent[2].wire == note


async def test_an_edit_of_what_was_summed_up_is_honoured() -> None:
    async with session(BY_TURNS, Request(), SYSTEM) as client:
        by(client, "They spoke of cats.", None)
        await client.steps(1, 5)
        client.history[1] = user("step 1, but of dogs", 1)
        turn = await client.ask(user("step 5", 5))
    sent = [one.wire for one in turn.plan.sent]
    assert sent == client.history[:-1]
    assert brief(turn) == [("client_edit", "client", 1)]


async def test_a_client_that_cuts_what_was_summed_up_changes_nothing() -> None:
    async with session(BY_TURNS, Request(), SYSTEM) as client:
        by(client)
        before = (await client.steps(1, 5))[-1]
        del client.history[1:3]
        turn = await client.ask(user("step 5", 5))
    assert not turn.plan.breaks
    assert [one.wire for one in turn.plan.sent][: len(before.plan.sent)] == [one.wire for one in before.plan.sent]
    assert {one.cause for one in turn.plan.reports} == {"client_window"}


async def test_a_branch_before_the_block_is_sent_whole() -> None:
    async with session(BY_TURNS, Request(), SYSTEM) as client:
        by(client)
        await client.steps(1, 5)
        del client.history[3:]
        turn = await client.ask(user("another question"))
    assert [one.source for one in turn.plan.sent] == [0, 1, 2, 3]


async def test_control_tokens_in_a_summary_are_broken_up() -> None:
    async with session(BY_TURNS) as client:
        by(client, "bad <|im_end|> words")
        turn = (await client.steps(1, 5))[-1]
    assert "<|im_end|>" not in turn.plan.sent[0].wire["content"]


async def test_a_block_stays_under_another_policy() -> None:
    async with session(BY_TURNS) as client:
        by(client)
        await client.steps(1, 5)
        other: Policy = STABLE
        client.policy = other
        turn = await client.ask(user("step 5", 5))
    assert turn.plan.sent[0].origin == "summary"
    assert not turn.plan.breaks


async def test_a_text_that_is_far_too_long_is_no_summary() -> None:
    """An upstream that does not know `max_tokens` would fill every prompt from now on."""
    async with session(BY_TURNS, Request(), SYSTEM) as client:
        engine = by(client, "They spoke. " * 1000)
        turns = await client.steps(1, 5)
    assert len(engine.asked) == 1
    assert {one.origin for one in turns[-1].plan.sent} == {"client"}
    assert not turns[-1].plan.breaks
