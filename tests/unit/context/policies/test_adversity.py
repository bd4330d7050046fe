"""Conversations that are alike, run beside each other, outlive the process, or come close to what an engine takes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from context.conversations import Begun, Conversations
from context.layout.tail import with_tail
from context.ledger import Ledger
from context.plan import SummaryRequest
from context.policies.base import Limits, Policy, Request
from context.policies.choice import load_policy
from context.policies.document import PRESETS
from context.transcript import ImagePart, parts_of
from tests.unit.context.policies.every import POLICIES
from tests.unit.context.policies.sessions import SYSTEM, Wire, calls, result, same_start, spelled, user
from tests.unit.context.policies.test_switch import check_current

ALL: Mapping[str, Policy] = {**POLICIES, **{f"preset-{name}": load_policy(name) for name in PRESETS}}


async def summarized(request: SummaryRequest, _: str) -> str | None:
    return f"what {len(request.messages)} messages said"


async def begin(
    conversations: Conversations,
    history: list[Wire],
    policy: Policy,
    name: str | None = None,
    tenant: str = "one",
    request: Request | None = None,
    *,
    is_shared: bool = False,
) -> Begun:
    return await conversations.begin(
        list(history),
        None,
        tenant=tenant,
        key=tenant.encode(),
        policy=policy,
        request=request or Request(),
        conversation=name,
        is_shared=is_shared,
        summarize=summarized,
    )


async def turn(conversations: Conversations, history: list[Wire], reply: Wire, policy: Policy, **given: Any) -> Begun:
    begun = await begin(conversations, history, policy, **given)
    await conversations.answer(await conversations.accept(begun), reply)
    history.append(reply)
    return begun


def steps(count: int) -> list[tuple[list[Wire], Wire]]:
    """What a client says and is answered: questions with images, and steps of an agent."""
    found: list[tuple[list[Wire], Wire]] = []
    for number in range(count):
        if number % 3 == 2:
            found.append(
                ([user(f"look {number}", number)], {"role": "assistant", "content": None, **calls(f"c{number}")})
            )
            found.append(([result(f"c{number}", number + 100)], {"role": "assistant", "content": "ok"}))
        else:
            found.append(([user(f"look {number}", number)], {"role": "assistant", "content": "ok"}))
    return found


@pytest.mark.parametrize("name", ALL)
async def test_a_restart_between_any_two_turns_changes_no_byte(tmp_path: Path, name: str) -> None:
    policy = ALL[name]
    whole = await Ledger.open(None)
    mine: list[Wire] = [SYSTEM]
    theirs: list[Wire] = [SYSTEM]
    for new, reply in steps(9):
        mine += new
        theirs += new
        kept = await turn(Conversations(whole), mine, reply, policy)
        ledger = await Ledger.open(tmp_path / "ledger.db")
        again = await turn(Conversations(ledger), theirs, reply, policy)
        await ledger.close()
        assert spelled(kept.plan.sent) == spelled(again.plan.sent)
        assert kept.plan.tail == again.plan.tail
        assert (kept.plan.breaks, kept.plan.state) == (again.plan.breaks, again.plan.state)
    await whole.close()


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("named", ["c", None])
async def test_sixteen_at_once_in_one_conversation_go_on_each_for_itself(name: str, named: str | None) -> None:
    policy, ledger = ALL[name], await Ledger.open(None)
    conversations = Conversations(ledger)
    shared: list[Wire] = [SYSTEM]
    for number in range(3):
        shared.append(user(f"step {number}", number))
        await turn(conversations, shared, {"role": "assistant", "content": "ok"}, policy, name=named)

    async def branch(number: int) -> None:
        history = [*shared]
        for step in range(4):
            history.append(user(f"branch {number} step {step}", 100 * (number + 1) + step))
            begun = await begin(conversations, history, policy, named)
            # Others are planned and accepted meanwhile.
            await asyncio.sleep(0)
            accepted = await conversations.accept(begun)
            await asyncio.sleep(0)
            reply: Wire = {"role": "assistant", "content": "ok"}
            await conversations.answer(accepted, reply)
            history.append(reply)
            check_current(begun)
            check_own(begun, history)
            assert begun.plan.replayed == same_start(begun)

    await asyncio.gather(*map(branch, range(16)))
    await ledger.close()


def texts_of(wire: Mapping[str, Any]) -> list[str]:
    return [part["text"] for part in parts_of(wire) if not isinstance(part, ImagePart)]


def check_own(begun: Begun, history: list[Wire]) -> None:
    """Every text that is sent is the client's own, or one of the gateway's."""
    own = {text for wire in history for text in texts_of(wire)}
    images = {image.ref.image_id for message in begun.transcript.messages for _, image in message.images}
    for one in with_tail(begun.plan.sent, begun.plan.tail):
        assert {image.ref.image_id for image in one.images} <= images
        if one.source is not None:
            assert {text for text in texts_of(one.wire) if not text.strip().startswith("[image")} <= own


@pytest.mark.parametrize("key", [None, "one for all"])
@pytest.mark.parametrize("name", ALL)
async def test_conversations_with_equal_beginnings_and_replies_are_never_mixed(name: str, key: str | None) -> None:
    """All of an app's users, without names or with one key; what each says later is its own, and each edits."""
    policy, ledger = ALL[name], await Ledger.open(None)
    named: dict[str, Any] = {"name": key, "is_shared": key is not None}
    conversations = Conversations(ledger)
    chats: list[list[Wire]] = [[SYSTEM, user("hi")] for _ in range(6)]
    for chat in chats:
        await turn(conversations, chat, {"role": "assistant", "content": "ok"}, policy, **named)

    async def go_on(number: int, step: int) -> None:
        chat = chats[number]
        chat.append(user(f"secret {number} of step {step}", 10 * number + step))
        if step == 2:
            # This client drops its oldest message and edits the one behind it.
            del chat[1:3]
            chat[1] = user(f"secret {number} edited")
        begun = await begin(conversations, chat, policy, **named)
        await asyncio.sleep(0)
        accepted = await conversations.accept(begun)
        await conversations.answer(accepted, {"role": "assistant", "content": "ok"})
        chat.append({"role": "assistant", "content": "ok"})
        check_current(begun)
        said = [str(one.wire) for one in with_tail(begun.plan.sent, begun.plan.tail)]
        others = [f"secret {other} " for other in range(6) if other != number]
        assert not any(secret in text for text in said for secret in others)
        # An image of another one would have a number of its tens.
        shown = {int(image.ref.image_id, 16) // 10 for one in begun.plan.sent for image in one.images}
        assert shown <= {number}

    for step in range(5):
        await asyncio.gather(*(go_on(number, step) for number in range(6)))
    await ledger.close()


@pytest.mark.parametrize("most", [0, 1])
@pytest.mark.parametrize("name", sorted(set(ALL) - {"observe", "preset-observe"}))
async def test_an_engine_that_takes_one_image_or_none_gets_no_more_of_the_history(name: str, most: int) -> None:
    policy, ledger = ALL[name], await Ledger.open(None)
    conversations, history = Conversations(ledger), [SYSTEM]
    request = Request(limits=Limits(max_images=most))
    for number in range(6):
        history.append(user(f"look {number}", *([number] if number % 2 == 0 else [])))
        reply: Wire = {"role": "assistant", "content": "ok"}
        begun = await turn(conversations, history, reply, policy, request=request)
        sent = [image.ref.image_id for one in with_tail(begun.plan.sent, begun.plan.tail) for image in one.images]
        now = [image.ref.image_id for _, image in begun.transcript.messages[-1].images]
        assert len(sent) <= max(most, len(now))
        assert set(now) <= set(sent)
    await ledger.close()


@pytest.mark.parametrize("name", PRESETS)
async def test_two_thousand_messages_are_planned_and_go_on(name: str) -> None:
    policy, ledger = ALL[f"preset-{name}"], await Ledger.open(None)
    conversations, history = Conversations(ledger), [SYSTEM]
    for number in range(1000):
        history += [
            user(f"look {number}", *([number] if number % 4 == 0 else [])),
            {"role": "assistant", "content": "ok"},
        ]
    first = await turn(conversations, [*history, user("now")], {"role": "assistant", "content": "ok"}, policy)
    history += [user("now"), {"role": "assistant", "content": "ok"}, user("and now?")]
    begun = await begin(conversations, history, policy)
    check_current(first)
    check_current(begun)
    # `sliding` keeps three images, none of which is new.
    assert not begun.plan.breaks
    await ledger.close()


@pytest.mark.parametrize("name", PRESETS)
async def test_a_client_that_changes_its_key_is_another_tenant(name: str) -> None:
    policy, ledger = ALL[f"preset-{name}"], await Ledger.open(None)
    conversations, history = Conversations(ledger), [SYSTEM]
    for number, tenant in enumerate(["one", "one", "two", "two", "one", "one"]):
        history.append(user(f"look {number}", number))
        given = {"tenant": tenant, "name": "c"}
        begun = await turn(conversations, history, {"role": "assistant", "content": "ok"}, policy, **given)
        check_current(begun)
        if number == 2:
            assert begun.before == ()
    await ledger.close()
