"""Which of a request's messages are current: what it asks now, which no policy takes anything from.

    [question] [call] [results] [call] [results] [call] [results] [new messages]
     current                                      current: the last step

Both are counted in the client's messages. Between them are steps that an agent has finished: history like any other,
for a session of an agent is often one question and a hundred steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from context.layout.groups import tool_groups
from context.transcript import SYSTEM_ROLES, Message, last_reply

_ASKING_ROLES = SYSTEM_ROLES | {"user"}


def asked_now(messages: Sequence[Message]) -> frozenset[int]:
    """The messages that are current: the question and the last step."""
    return frozenset((*question(messages), *range(last_step(messages), len(messages))))


def question(messages: Sequence[Message]) -> range:
    """The last message of a user with those that lead up to it, system messages between them included; empty where
    there is none."""
    last = next((at for at in range(len(messages) - 1, -1, -1) if messages[at].role == "user"), -1)
    first = at = last
    while at >= 0 and messages[at].role in _ASKING_ROLES:
        first = at if messages[at].role == "user" else first
        at -= 1
    return range(first, last + 1) if last >= 0 else range(0)


def last_step(messages: Sequence[Message]) -> int:
    """Where the last step starts, which goes to the end: everything behind the model's last reply, and the tool group
    that this reply or a result behind it belongs to, whole, with what the model said right in front of its call.

    A reply that the client has begun for the model to go on with, at the end and without a call, is not the last one:
    what it answers is not answered yet.
    """
    groups = tool_groups([message.wire for message in messages])
    in_groups = {at for group in groups for at in group.range}

    def is_text(at: int) -> bool:
        return messages[at].role == "assistant" and at not in in_groups

    end = len(messages)
    while end and is_text(end - 1):
        end -= 1
    reply = last_reply(messages[:end])
    start = min([reply + 1, *(group.start for group in groups if group.stop > reply)])
    if start <= reply:
        while start and is_text(start - 1):
            start -= 1
    return start
