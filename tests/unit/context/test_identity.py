"""Conversations of one tenant that look alike: what was said in one is never sent in another."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from context.conversations import Begun, Conversations
from context.ledger import Ledger
from context.policies.base import Policy, Request, Rules
from context.policies.batched import Batched
from context.policies.keep import STABLE, KeepAll
from context.policies.summary import Summary
from tests.unit.context.policies.sessions import SYSTEM, Wire, brief, shot, shots, spelled, user

BATCHED = Batched("images", 20, 3)
TURNS = Batched("turns", 6, 1)
SUMMARY = Summary("turns", 3, 1)
LONG = (
    "The form has three fields: a name, a date and a place. The date is missing, and the button is grey until then. "
    * 2
)


@pytest.fixture
async def conversations() -> AsyncGenerator[Conversations]:
    ledger = await Ledger.open(None)
    yield Conversations(ledger)
    await ledger.close()


@dataclass
class Chat:
    """One of several conversations of a tenant."""

    conversations: Conversations
    policy: Policy = BATCHED
    name: str | None = None
    request: Request = field(default_factory=Request)

    async def ask(self, history: Sequence[Wire], reply: str | None = "ok") -> Begun:
        begun = await self.conversations.begin(
            list(history),
            None,
            tenant="one",
            key=b"one",
            policy=self.policy,
            request=self.request,
            conversation=self.name,
            summarize=summarized,
        )
        if reply is not None:
            await self.conversations.accept(begun, {"role": "assistant", "content": reply})
        return begun

    async def go(self, *asked: Wire, reply: str = "ok", start: Sequence[Wire] = (SYSTEM,)) -> list[Wire]:
        """Turn after turn; the history that it comes to."""
        history = list(start)
        for one in asked:
            history.append(one)
            await self.ask(history, reply)
            history.append({"role": "assistant", "content": reply})
        return history


async def summarized(*_: Any) -> str:
    return "a secret summary"


def replied(words: str = "ok") -> Wire:
    return {"role": "assistant", "content": words}


def says_only(begun: Begun) -> bool:
    """Whether everything that is sent is in the client's own messages."""
    theirs = [one for one in begun.plan.sent if one.source is not None]
    return len(theirs) == len(begun.plan.sent) and set(shots(begun)) <= {
        int(part.ref.image_id, 16) for message in begun.transcript.messages for _, part in message.images
    }


SECRETS = [user(f"secret {number}", number) for number in range(7)]


@pytest.mark.parametrize("policy", [BATCHED, TURNS, SUMMARY], ids=["images", "turns", "summary"])
@pytest.mark.parametrize("start", [[SYSTEM], []], ids=["system", "bare"])
async def test_a_short_reply_is_no_sign_of_one_conversation(
    conversations: Conversations, policy: Policy, start: list[Wire]
) -> None:
    chat = Chat(conversations, policy)
    await chat.go(*SECRETS, start=start)
    turn = await chat.ask([*start, user("mine"), replied(), user("and now?", 50)])
    assert says_only(turn)
    assert (turn.number, turn.plan.breaks) == (1, ())


@pytest.mark.parametrize("policy", [BATCHED, TURNS, SUMMARY], ids=["images", "turns", "summary"])
async def test_conversations_that_begin_alike_are_not_one(conversations: Conversations, policy: Policy) -> None:
    """Both are found by their beginning, and the second is edited behind it."""
    chat = Chat(conversations, policy)
    await chat.go(user("hi"), *SECRETS)
    turn = await chat.ask([SYSTEM, user("hi"), replied(), user("mine"), replied(), user("and now?", 50)])
    assert says_only(turn)


async def test_the_same_question_and_answer_about_another_picture(conversations: Conversations) -> None:
    """A client that strips pictures once they were answered: which of two equal chats it was nobody can tell."""
    chat = Chat(conversations)
    for number in (1, 2):
        await chat.ask([SYSTEM, user("Is this safe?", number)], "Yes.")
    turn = await chat.ask([SYSTEM, stripped("Is this safe?"), replied("Yes."), user("Why?")])
    assert shots(turn) == []
    assert brief(turn) == [("client_window", "client", 1)]


def stripped(words: str) -> Wire:
    return {"role": "user", "content": [{"type": "text", "text": words}]}


async def test_a_long_reply_is_a_sign_and_what_the_client_cut_waits(conversations: Conversations) -> None:
    chat = Chat(conversations)
    await chat.ask([SYSTEM, user("What is there?", 1)], LONG)
    turn = await chat.ask([SYSTEM, stripped("What is there?"), replied(LONG), user("Why?")])
    assert shots(turn) == [1]
    assert not turn.plan.breaks


@pytest.mark.parametrize("policy", [BATCHED, TURNS, SUMMARY], ids=["images", "turns", "summary"])
async def test_a_name_that_is_used_again_for_something_else(conversations: Conversations, policy: Policy) -> None:
    chat = Chat(conversations, policy, "main")
    await chat.go(*SECRETS)
    fresh = await chat.ask([SYSTEM, user("mine")], reply=None)
    later = await chat.ask([SYSTEM, user("mine"), replied(), user("and now?", 50)])
    assert says_only(fresh)
    assert says_only(later)


async def test_a_name_is_a_sign_where_something_is_left(conversations: Conversations) -> None:
    chat = Chat(conversations, name="main")
    await chat.ask([SYSTEM, user("look", 1)])
    turn = await chat.ask([SYSTEM, stripped("look"), replied(), user("Why?")])
    assert shots(turn) == [1]


async def test_ids_of_another_session_are_not_frozen_into_this_one(conversations: Conversations) -> None:
    chat = Chat(conversations, KeepAll("freeze", rules=Rules(volatile="freeze")))
    head = "Be kind. Session: {}"
    one, other = (head.format(f"550e8400-e29b-41d4-a716-44665544000{digit}") for digit in (1, 2))
    await chat.ask([{"role": "system", "content": one}, user("secret")])
    turn = await chat.ask([{"role": "system", "content": other}, user("mine"), replied(), user("more")], None)
    assert turn.plan.sent[0].wire["content"] == other
    # Two users may well say "secret" and be told "ok".
    turn = await chat.ask([{"role": "system", "content": other}, user("secret"), replied(), user("more")], None)
    assert turn.plan.sent[0].wire["content"] == other


async def test_ids_of_one_session_are_frozen_where_it_surely_is_the_same(conversations: Conversations) -> None:
    chat = Chat(conversations, KeepAll("freeze", rules=Rules(volatile="freeze")))
    one, other = (f"Session: 550e8400-e29b-41d4-a716-44665544000{digit}" for digit in (1, 2))
    await chat.ask([{"role": "system", "content": one}, user("secret")], LONG)
    turn = await chat.ask([{"role": "system", "content": other}, user("secret"), replied(LONG), user("more")])
    assert turn.plan.sent[0].wire["content"] == one


@pytest.mark.parametrize(
    ("before", "now", "reply", "is_found"),
    [
        ("What stands on the first line of this page?", "What stands on the last line of this page?", "ok", True),
        ("one thing", "another", LONG, True),
        ("one thing", "another", "ok", False),
        ("", "another", "ok", False),
    ],
    ids=["like it", "long reply", "nothing in common", "nothing"],
)
async def test_an_edit_of_the_first_question_is_found(
    conversations: Conversations, before: str, now: str, reply: str, is_found: bool
) -> None:
    """Without a name and a system message the reply is all that both have."""
    chat = Chat(conversations, STABLE)
    await chat.ask([user(before)], reply)
    turn = await chat.ask([user(now), replied(reply), user("go on")])
    assert brief(turn) == ([("client_edit", "client", 0)] if is_found else [])
    assert turn.number == (2 if is_found else 1)
    assert spelled(turn.plan.sent)[0] != spelled(turn.before)[0] if is_found else not turn.before


async def test_a_picture_that_both_questions_show_is_in_common(conversations: Conversations) -> None:
    chat = Chat(conversations, STABLE)
    await chat.ask([user("what is it?", 1)], "a cat")
    turn = await chat.ask([{"role": "user", "content": [shot(1)]}, replied("a cat"), user("sure?")])
    assert brief(turn) == [("client_edit", "client", 0)]
