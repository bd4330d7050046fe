"""What breaks a prefix: images that are cut, times, tools, key orders; over the context alone."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from context.conversations import Begun, Conversations
from context.policies.base import Limits, Request, Rules
from context.policies.batched import Batched
from context.policies.keep import STABLE, KeepAll
from context.transcript import ImagePart
from tests.cases.chats import SHOTS, Context, Wire, call, extends, result, spelled, system, tool, user

FREEZE = KeepAll("frozen", rules=Rules(volatile="freeze"))
TAIL = KeepAll("tailed", rules=Rules(volatile="tail"))


def breaks(turns: list[Begun]) -> list[tuple[str, str, int]]:
    """Turn, cause and message of each break."""
    return [
        (str(number), broken.cause, broken.message) for number, turn in enumerate(turns) for broken in turn.plan.breaks
    ]


def images(turn: Begun) -> list[str]:
    return [image.ref.image_id for one in turn.plan.sent for image in one.images]


def watch(*shots: int) -> Wire:
    return {"role": "user", "content": [{"type": "text", "text": "watch"}, *(ImagePart(SHOTS[shot]) for shot in shots)]}


async def agent(client: Context, steps: int, *, client_keeps: int | None = None, calls: bool = True) -> list[Begun]:
    """A GUI agent: each step an action and its screenshot, as the result of a call or as a message of the user; the
    client may keep the last screenshots alone."""

    def reply(step: int) -> Wire | str:
        said = f"The form of step {step} is there, and the next field that has to be filled in is the one below. "
        return call("click", f'{{"x": {step}}}', f"c{step}") if calls else f"{said * 2}click {step}"

    turns = [await client.ask(system("You use a computer."), user("book a table"), reply=reply(0))]
    for step in range(1, steps + 1):
        said = f"step {step}"
        client.history.append(result(said, step, identity=f"c{step - 1}") if calls else user(said, step))
        if client_keeps is not None:
            shown = [at for at, one in enumerate(client.history) if isinstance(one["content"], list)]
            for at in shown[:-client_keeps]:
                text = [one for one in client.history[at]["content"] if not isinstance(one, ImagePart)]
                client.history[at] = {**client.history[at], "content": text}
        turns.append(await client.ask(reply=reply(step)))
    return turns


@pytest.mark.case("MC-001")
async def test_a_window_of_media_breaks_at_the_medium_that_left(conversations: Conversations) -> None:
    client = Context(conversations)
    for last in range(1, 6):
        await client.ask(*([watch(1)] if last == 1 else []), *([user("and?")] if last > 1 else []))
        client.history[0] = watch(*range(1, last + 1))
    filled = await client.ask(user("all five?"))
    assert images(filled) == [SHOTS[shot].image_id for shot in range(1, 6)]
    client.history[0] = watch(*range(2, 7))
    slid = await client.ask(user("and now?"))
    (broken,) = slid.plan.breaks
    assert (broken.cause, broken.actor, broken.place) == ("client_window", "client", "messages[0].content[1]")


@pytest.mark.case("MC-001", "MC-002", "MC-008")
@pytest.mark.parametrize("calls", [True, False])
async def test_a_policy_evicts_in_batches_at_one_place(conversations: Conversations, calls: bool) -> None:
    """Also where the screenshots are results of calls, all behind one question."""
    turns = await agent(Context(conversations, Batched(high=6, low=2)), 14, calls=calls)
    counts = [len(images(turn)) for turn in turns]
    assert max(counts) == 6
    evictions = [number for number, turn in enumerate(turns) if turn.plan.breaks]
    # Seven shots are one too many: two stay, and five more come until the next batch.
    assert evictions == [7, 12]
    for number in evictions:
        (broken,) = turns[number].plan.breaks
        assert (broken.cause, broken.actor) == ("policy_eviction", "policy")
        assert counts[number] == 2
    for earlier, later in pairwise(turns):
        assert extends(later, earlier) or later.plan.breaks


@pytest.mark.case("MC-002")
async def test_how_many_stay_and_when_they_go_are_two_settings(conversations: Conversations) -> None:
    for high, low, expected in ((4, 3, [5, 7, 9]), (4, 1, [5, 9]), (9, 1, [])):
        client = Context(conversations, Batched(high=high, low=low), tenant=f"{high}-{low}")
        turns = await agent(client, 9, calls=False)
        assert [number for number, turn in enumerate(turns) if turn.plan.breaks] == expected


@pytest.mark.case("MC-002")
async def test_by_default_no_image_is_ever_deleted(conversations: Conversations) -> None:
    turns = await agent(Context(conversations), 12)
    assert [len(images(turn)) for turn in turns] == list(range(13))
    assert breaks(turns) == []


@pytest.mark.case("MC-002", "MC-008")
@pytest.mark.parametrize("keeps", [1, 3])
async def test_a_clients_own_deletions_wait_for_the_next_batch(conversations: Conversations, keeps: int) -> None:
    deferred = await agent(
        Context(conversations, Batched(high=8, low=3), tenant="a"), 16, client_keeps=keeps, calls=False
    )
    plain = await agent(Context(conversations, STABLE, tenant="b"), 16, client_keeps=keeps, calls=False)
    assert len(breaks(plain)) == 16 - keeps
    assert {cause for _, cause, _ in breaks(plain)} == {"client_window"}
    assert 1 <= len(breaks(deferred)) <= 3
    assert {cause for _, cause, _ in breaks(deferred)} == {"policy_eviction"}


@pytest.mark.case("MC-004")
async def test_a_text_that_stands_for_an_image_is_named_with_its_part(conversations: Conversations) -> None:
    for policy, causes in ((STABLE, ["client_window"]), (Batched(), [])):
        client = Context(conversations, policy, tenant=policy.name, name="chat")
        first = await client.ask(user("look", 1))
        await client.ask(user("so?"))
        client.history[0] = user("look")
        pointer = {"type": "text", "text": "[Image: source: /tmp/paste.png]"}
        client.history[0] = {"role": "user", "content": [pointer, {"type": "text", "text": "look"}]}
        turn = await client.ask(user("and?"))
        assert [one.cause for one in turn.plan.breaks] == causes
        if causes:
            assert turn.plan.breaks[0].place == "messages[0].content[0]"
        else:
            assert spelled(turn.plan.sent)[0] == spelled(first.plan.sent)[0]


@pytest.mark.case("MC-005")
async def test_screenshots_of_an_agent_stand_as_they_were_sent(conversations: Conversations) -> None:
    turns = await agent(Context(conversations), 30)
    assert all(extends(later, earlier) for earlier, later in pairwise(turns))
    assert images(turns[-1]) == [SHOTS[step].image_id for step in range(1, 31)]


@pytest.mark.case("MC-005")
async def test_a_screenshot_that_was_scaled_anew_is_the_first_change(conversations: Conversations) -> None:
    client = Context(conversations)
    await agent(client, 6)
    client.history[7] = result("step 3", 60, identity="c2")
    turn = await client.ask(result("step 7", 7, identity="c6"))
    (broken,) = turn.plan.breaks
    assert (broken.cause, broken.actor, broken.message) == ("client_edit", "client", 7)


@pytest.mark.case("MC-006")
async def test_the_first_image_changes_nothing_before_it(conversations: Conversations) -> None:
    client = Context(conversations)
    before = await client.ask(user("question"), reply="answer")
    for turn in range(9):
        before = await client.ask(user(f"question {turn}"), reply=f"answer {turn}")
    # Some clients write all texts as parts once one message has an image.
    client.history = [{**one, "content": [{"type": "text", "text": one["content"]}]} for one in client.history]
    after = await client.ask(user("and this?", 1))
    assert extends(after, before)
    assert not after.plan.breaks


def at_time(second: int, millisecond: int = 919) -> Wire:
    return system(f"Current Date & Time: 2026-04-12T23:38:{second:02}.{millisecond}Z. {'You help with photos. ' * 40}")


@pytest.mark.case("MC-009", "MC-012", "MC-013")
async def test_a_time_that_changes_is_named_with_its_character(conversations: Conversations) -> None:
    client = Context(conversations)
    await client.ask(at_time(40), user("hi"))
    client.history[0] = at_time(41)
    turn = await client.ask(user("again"))
    (broken,) = turn.plan.breaks
    assert (broken.cause, broken.actor, broken.place) == ("volatile_text", "client", "messages[0].content[0]")
    assert broken.character == len("Current Date & Time: ")
    assert spelled(turn.plan.sent)[0] == spelled([turn.plan.sent[0]])[0]
    assert "23:38:41" in turn.plan.sent[0].wire["content"]


@pytest.mark.case("MC-009", "MC-010", "MC-013")
async def test_frozen_a_session_keeps_its_first_time(conversations: Conversations) -> None:
    client = Context(conversations, FREEZE)
    turns = [await client.ask(at_time(10), user("hi"))]
    for second in (12, 14, 16):
        client.history[0] = at_time(second)
        turns.append(await client.ask(user(f"at {second}")))
    assert all(extends(later, earlier) for earlier, later in pairwise(turns))
    assert breaks(turns) == []
    assert "23:38:10" in turns[-1].plan.sent[0].wire["content"]


@pytest.mark.case("MC-009", "MC-012", "MC-013")
async def test_at_the_tail_the_time_is_the_latest_and_the_prefix_stands(conversations: Conversations) -> None:
    client = Context(conversations, TAIL)
    turns: list[Begun] = []
    for second in (10, 12, 14):
        client.history[:1] = [at_time(second)]
        turns.append(await client.ask(user(f"at {second}")))
        assert f"23:38:{second}" in str(turns[-1].plan.tail)
        assert "23:38" not in turns[-1].plan.sent[0].wire["content"]
    assert all(extends(later, earlier) for earlier, later in pairwise(turns))
    assert breaks(turns) == []


@pytest.mark.case("MC-010")
async def test_a_date_is_no_time(conversations: Conversations) -> None:
    """It stays for a day, and is sent as it came under every policy."""
    for policy in (STABLE, FREEZE, TAIL):
        client = Context(conversations, policy, tenant=policy.name)
        turn = await client.ask(system("Today is 2026-04-12, a Sunday."), user("hi"))
        assert turn.plan.sent[0].wire["content"] == "Today is 2026-04-12, a Sunday."
        assert turn.plan.tail == ()


@pytest.mark.case("MC-011")
async def test_two_sessions_of_one_task_have_one_beginning(conversations: Conversations) -> None:
    tools = [tool("read", "path"), tool("click", "x", "y"), tool("wait")]
    found: list[Begun] = []
    for number, order in enumerate(((0, 1, 2), (2, 0, 1))):
        client = Context(conversations, TAIL, tenant="one")
        found.append(await client.ask(at_time(20 + number), user("do it"), tools=[tools[at] for at in order]))
    one, two = found
    assert spelled(one.plan.sent) == spelled(two.plan.sent)
    assert json.dumps(one.plan.tools) == json.dumps(two.plan.tools)


@pytest.mark.case("MC-014")
async def test_tools_in_another_order_are_the_same_tools(conversations: Conversations) -> None:
    client = Context(conversations)
    tools = [tool("a"), tool("b"), tool("c")]
    first = await client.ask(user("one"), tools=tools)
    second = await client.ask(user("two"), tools=[tools[1], tools[0], tools[2]])
    assert json.dumps(second.plan.tools) == json.dumps(first.plan.tools)
    assert not second.plan.breaks
    kept = KeepAll("as they come", rules=Rules(canonical_tools=False))
    other = await Context(conversations, kept, tenant="k").ask(user("one"), tools=tools[::-1])
    assert list(other.plan.tools or ()) == tools[::-1]


@pytest.mark.case("MC-016")
async def test_a_schema_in_another_key_order_is_the_same_schema(conversations: Conversations) -> None:
    client = Context(conversations)
    one: dict[str, Any] = {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a"]}
    two: dict[str, Any] = {"required": ["a"], "type": "object", "properties": {"b": {}, "a": {}}}
    made: list[Wire] = [{"type": "function", "function": {"name": "f", "parameters": schema}} for schema in (one, two)]
    first = await client.ask(user("one"), tools=[made[0]])
    second = await client.ask(user("two"), tools=[made[1]])
    assert json.dumps(second.plan.tools) == json.dumps(first.plan.tools)
    assert not second.plan.breaks


@pytest.mark.case("MC-017")
async def test_arguments_stand_as_the_model_wrote_them(conversations: Conversations) -> None:
    client = Context(conversations)
    await client.ask(user("go"), reply=call("f", '{"a":1,"b":2}'))
    before = await client.ask(result("done"))
    client.history[1] = {"role": "assistant", **call("f", '{"b": 2, "a": 1}')}
    turn = await client.ask(user("next"))
    assert extends(turn, before)
    assert turn.plan.sent[1].wire["tool_calls"][0]["function"]["arguments"] == '{"a":1,"b":2}'
    # A call that was never seen stands as the client wrote it.
    other = Context(conversations, tenant="other", history=[user("go")])
    fresh = await other.ask({"role": "assistant", **call("f", '{"b":2,"a":1}')}, result("done"))
    assert fresh.plan.sent[1].wire["tool_calls"][0]["function"]["arguments"] == '{"b":2,"a":1}'


@pytest.mark.case("MC-022")
async def test_times_in_all_of_a_history_are_frozen_where_they_stand(conversations: Conversations) -> None:
    def said(number: int, second: int) -> Wire:
        return user(f"[23:38:{second:02}] question {number}")

    for policy, expected in ((FREEZE, []), (STABLE, ["volatile_text"])):
        client = Context(conversations, policy, tenant=policy.name, name="chat")
        await client.ask(said(0, 10))
        last = await client.ask(said(1, 20))
        client.history[0], client.history[2] = said(0, 30), said(1, 30)
        turn = await client.ask(said(2, 30))
        assert [one.cause for one in turn.plan.breaks] == expected
        assert extends(turn, last) is not bool(expected)


@pytest.mark.case("MC-023")
async def test_tools_that_come_and_go_are_named(conversations: Conversations) -> None:
    client = Context(conversations)
    await client.ask(user("one"), tools=[tool("click"), tool("scroll_up")])
    turn = await client.ask(user("two"), tools=[tool("click")])
    (broken,) = turn.plan.breaks
    assert (broken.cause, broken.place) == ("tools_changed", "tools")
    assert "scroll_up" in broken.detail


@pytest.mark.case("MC-073")
async def test_an_agents_own_steps_never_reach_the_limit(conversations: Conversations) -> None:
    turns = await agent(Context(conversations, STABLE, Request(limits=Limits(max_images=4))), 12)
    assert max(len(images(turn)) for turn in turns) == 4
    assert all(images(turn)[-1] == SHOTS[step].image_id for step, turn in enumerate(turns) if step)
    assert "book a table" in str(turns[-1].plan.sent[1].wire["content"])


@pytest.mark.case("MC-073")
@pytest.mark.parametrize("policy", [STABLE, Batched()], ids=["stable", "batched"])
async def test_images_are_evicted_before_the_engine_has_too_many(
    conversations: Conversations, policy: KeepAll | Batched
) -> None:
    client = Context(conversations, policy, Request(limits=Limits(max_images=4)))
    turns = [await client.ask(user(f"look {shot}", shot)) for shot in range(1, 6)]
    turns.append(await client.ask(user("no image")))
    assert [len(images(turn)) for turn in turns] == [1, 2, 3, 4, 2, 2]
    (broken,) = turns[4].plan.breaks
    assert (broken.cause, broken.actor) == ("policy_eviction", "policy")
    assert not turns[5].plan.breaks
    # Its own image is the last that would go.
    assert images(turns[4])[-1] == SHOTS[5].image_id
