"""What holds for every policy, whatever a client does to its history between turns."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, cast, get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from context.conversations import Begun
from context.plan import Cause, SummaryRequest
from context.policies.base import Limits, Request
from context.transcript import ImagePart, message_of
from tests.unit.context.policies.every import BY_STEP, POLICIES
from tests.unit.context.policies.sessions import (
    SYSTEM,
    Session,
    Wire,
    answered,
    asked_now,
    called,
    calls,
    old_call,
    old_result,
    result,
    same_start,
    session,
    spelled,
    text,
    user,
)

EXAMPLES = 5000 if os.environ.get("STILLFRAME_LONG") == "1" else 200
MISCHIEF = ("cut", "placeholder", "delete", "edit", "insert", "swap", "regenerate", "branch")

CHANGE = st.tuples(st.sampled_from(MISCHIEF), st.integers(0, 40))
# What the client changes; new images; calls in the reply, 0 for a text, -1 for a call in the API's older form, None for
# a turn that is aborted; how many of the calls before are left open; what the client says besides.
TURN = st.tuples(
    st.lists(CHANGE, max_size=2),
    st.lists(st.integers(0, 9), max_size=3),
    st.sampled_from([0, 0, 0, 1, 2, -1, None]),
    st.sampled_from([0, 0, 0, 1]),
    st.sampled_from(["", "", "", "words", "reminder", "begun"]),
)

# A message that was cut and is still sent has the same words as one that comes later and takes its place.
SAME_WORDS: list[Any] = [
    ([("insert", 1)], [0, 0], 0, 0, ""),
    ([("delete", 0), ("regenerate", 0)], [], 0, 0, ""),
    ([("insert", 1), ("regenerate", 0)], [], 0, 0, ""),
    ([("delete", 0)], [], 0, 0, ""),
]


def change(history: list[Wire], what: str, where: int) -> None:
    """Something that a client does to its history."""
    at = where % len(history) if history else 0
    content = history[at].get("content") if history else None
    if what in ("cut", "placeholder"):
        _cut_oldest(history, text("[image removed]") if what == "placeholder" else None)
    elif what == "delete" and history:
        del history[at]
    elif what == "edit" and isinstance(content, str):
        history[at] = {**history[at], "content": f"{content} edited {where}"}
    elif what == "insert":
        history.insert(at, user(f"inserted {where}", *([where % 10] if where % 3 == 0 else [])))
    elif what == "swap" and at + 1 < len(history):
        history[at], history[at + 1] = history[at + 1], history[at]
    elif what == "branch":
        users = [index for index, one in enumerate(history) if one["role"] == "user"]
        del history[users[where % len(users)] if users else 0 :]


def _cut_oldest(history: list[Wire], instead: Wire | None) -> None:
    for index, one in enumerate(history):
        content = cast("list[Any]", one["content"]) if isinstance(one.get("content"), list) else []
        for part, value in enumerate(content):
            if isinstance(value, ImagePart):
                left = [*content[:part], *([instead] if instead else []), *content[part + 1 :]]
                history[index] = {**one, "content": left}
                return


def new_messages(client: Session, number: int, images: Sequence[int], still_open: int, besides: str) -> list[Wire]:
    """What the client says next: the results of the calls before, or a user's message, and what it adds to them."""
    made = results(client.history[-1] if client.history else {}, images, still_open)
    if not made or still_open or besides == "words":
        made.append(user(f"turn {number}", *(() if made else images)))
    if besides == "reminder":
        made += [{"role": "system", "content": f"mind {number}"}, user(f"turn {number}, and more")]
    if besides == "begun":
        made.append({"role": "assistant", "content": f"begun {number}"})
    return made


def results(last: Wire, images: Sequence[int], still_open: int) -> list[Wire]:
    """Results of the last message's calls."""
    ids = [one["id"] for one in last.get("tool_calls", ())]
    if last.get("function_call"):
        return [] if still_open else [old_result(last["function_call"]["name"], *images)]
    closed = ids[: max(0, len(ids) - still_open)]
    return [result(one, *(images if index == 0 else ())) for index, one in enumerate(closed)]


@pytest.mark.timeout(3600 if EXAMPLES > 200 else 300)
@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=EXAMPLES)
@given(limited=st.booleans(), with_system=st.booleans(), turns=st.lists(TURN, min_size=2, max_size=8))
@example(limited=False, with_system=False, turns=SAME_WORDS)
async def test_what_holds_in_every_turn(name: str, limited: bool, with_system: bool, turns: list[Any]) -> None:
    request = Request(limits=Limits(max_images=5, max_prompt_tokens=9000) if limited else Limits())
    policy, start = POLICIES[name], [SYSTEM] if with_system else []
    async with session(policy, request, *start) as one, session(policy, request, *start) as two:
        one.summarize = two.summarize = summarized
        for number, turn in enumerate(turns):
            begun, again = await take_turn(one, number, *turn), await take_turn(two, number, *turn)
            check_extends_or_breaks_once(begun)
            check_equal(begun, again)
            check_current_turn(begun, name, by_step=limited or name in BY_STEP)
            check_tool_groups(begun)
            check_order(begun)


async def summarized(request: SummaryRequest, _: str) -> str | None:
    """A summary, but not each time: an engine may fail."""
    return f"what {len(request.messages)} messages said" if len(request.messages) % 3 else None


async def take_turn(
    client: Session,
    number: int,
    changes: Sequence[tuple[str, int]],
    images: Sequence[int],
    replied: int | None,
    still_open: int,
    besides: str,
) -> Begun:
    regenerates = False
    for what, where in changes:
        if what == "regenerate":
            regenerates = len(client.history) > 1 and client.history[-1]["role"] == "assistant"
            if regenerates:
                client.history.pop()
        else:
            change(client.history, what, where)
    new = [] if regenerates and client.history else new_messages(client, number, images, still_open, besides)
    return await client.ask(*new, reply=None if replied is None else said(number, replied))


def said(number: int, replied: int) -> str | Wire:
    """The model's reply."""
    if replied == 0:
        return f"reply {number}"
    return calls(*(f"c{number}.{call}" for call in range(replied))) if replied > 0 else old_call(f"c{number}")


def check_extends_or_breaks_once(begun: Begun) -> None:
    """What is sent extends what was sent, or breaks it once, with a cause, where they first differ."""
    plan, same = begun.plan, same_start(begun)
    assert plan.replayed == same
    if same in (len(begun.before), len(plan.sent)):
        assert not plan.breaks
        return
    behind = [one.source for one in plan.sent[same:] if one.source is not None]
    if not plan.breaks:
        # A branch: the client went back and asks something else, so that no reply follows what is shared.
        assert all(message.role != "assistant" for message in begun.transcript.messages[behind[0] :])
        return
    (broken,) = plan.breaks
    assert broken.cause in get_args(Cause)
    assert broken.cause in ("policy_eviction", "summary") or broken.actor == "client"
    in_front = [one.source for one in plan.sent[:same] if one.source is not None]
    # A message that a policy took out is named, though it is not there any more.
    assert max(in_front, default=-1) < broken.message <= behind[0]
    assert broken.actor == "policy" or broken.message == behind[0]


def check_equal(begun: Begun, again: Begun) -> None:
    """Equal input gives equal bytes."""
    assert spelled(begun.plan.sent) == spelled(again.plan.sent)
    assert (begun.plan.tail, begun.plan.breaks, begun.plan.state) == (
        again.plan.tail,
        again.plan.breaks,
        again.plan.state,
    )


def check_current_turn(begun: Begun, name: str, *, by_step: bool) -> None:
    """What is asked now is sent whole, its images where the policy has them.

    What stands between the last user message and the last reply, which an agent's steps make long, is sent too, but
    images that the client has cut of it may be sent on. By step, it does not count.
    """
    messages = begun.transcript.messages
    asked = asked_now(messages)
    last = max((at for at, message in enumerate(messages) if message.role == "user"), default=len(messages))
    current = sorted({*asked, *(() if by_step else range(last, len(messages)))})
    sent = {one.source: one for one in begun.plan.sent if one.source in current}
    assert list(sent) == current
    first = next((at for at, one in enumerate(begun.plan.sent) if one.source in current), len(begun.plan.sent))
    behind = begun.plan.sent[first:]
    shown = {image.ref.image_id for one in behind for image in one.images}
    shown |= {part.ref.image_id for part in begun.plan.tail if isinstance(part, ImagePart)}
    elsewhere = POLICIES[name].rules.tool_images == "hoist" or bool(begun.plan.tail)
    for at, one in sent.items():
        assert {image.ref.image_id for _, image in messages[at].images} <= shown
        assert elsewhere or at not in asked or message_of(one.wire).digest == messages[at].digest


def check_tool_groups(begun: Begun) -> None:
    """No call is sent without its results, nor a result without its call, unless the client has parted them."""
    calls_alone, results_alone = parted([one.wire for one in begun.plan.sent])
    theirs = [message.wire for message in begun.transcript.messages]
    # Without ids it is their place alone that says what belongs together.
    results = [(one, two) for one, two in pairwise(theirs) if two["role"] == "function"]
    apart = {name for one, two in results for name in answered(two) - called(one)}
    assert calls_alone <= parted(theirs)[0] | apart
    assert results_alone <= parted(theirs)[1] | apart


def parted(wires: Sequence[Mapping[str, Any]]) -> tuple[set[str], set[str]]:
    """Ids of calls without a result behind them, and of results without a call before them."""
    unanswered: set[str] = set()
    orphans: set[str] = set()
    known: set[str] = set()
    for wire in wires:
        unanswered |= called(wire)
        known |= called(wire)
        unanswered -= answered(wire)
        orphans |= answered(wire) - known
    return unanswered, orphans


def check_order(begun: Begun) -> None:
    sources = [one.source for one in begun.plan.sent if one.source is not None]
    assert sources == sorted(set(sources))
