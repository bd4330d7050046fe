"""Whether a history that was changed belongs to a conversation that is known.

Two questions, for two uses. A history that *resembles* a turn is compared with it, so that what changed can be named.
What its client does not hold any more, and what another message of the same meaning held, is sent for it only where it
*surely* is the same conversation: many conversations of one app begin alike and have the same short replies, and one
must never be sent what was said in another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from pydantic_core import to_json

from context.layout.patterns import Patterns
from context.layout.spans import find_spans
from context.layout.volatile import mask
from context.plan import Turn
from context.transcript import ImagePart, Message, last_reply, texts_of

_HEAD_ROLES = frozenset(("system", "developer"))
# So many characters that a model wrote do not come out the same by chance; words such as "Done." do.
_SURE_CHARACTERS = 200
_SURE_IMAGES = 2
_TIMES = Patterns(builtin=frozenset(("now", "datetime", "time", "epoch")))
# Of a question that was edited so much is left at least, in characters and of the longer one.
_ALIKE_CHARACTERS = 16
_ALIKE_RATIO = 0.5


def is_surely(turn: Turn, messages: Sequence[Message], *, named: bool) -> bool:
    """Whether a history is that of a turn's conversation.

    Args:
        turn: the turn; its last message is its reply where it has one.
        messages: the history with what is asked now.
        named: the client itself says that it is this conversation. Then it is enough that they share a message other
            than one reply, or that the last question of the one is like that of the other.

    Returns:
        For one without a name: whether the last reply, and what stands before it without a difference in both, holds so
        much that a model wrote, or so many images, that no other conversation has the same; or whether nothing differs
        but the time in a system message, which tells nothing of another user.
    """
    if named:
        mine = {message.digest: message.role for message in _body(turn.client)}
        shared = {message.digest for message in _body(messages)} & mine.keys()
        return len(shared) > 1 or any(mine[digest] != "assistant" for digest in shared) or _asks_alike(turn, messages)
    old, new = list(_body(turn.client)), list(_body(messages[: last_reply(messages) + 1]))
    is_same = bool(new) and [message.digest for message in old] == [message.digest for message in new]
    if is_same and _differ_in_times(turn.client, messages):
        return True
    characters = 0
    images: set[str] = set()
    for one, two in zip(reversed(old), reversed(new), strict=False):
        if one.role != two.role or not _is_left_of(two, one):
            return False
        characters += _written(one) if one.role == "assistant" else 0
        images |= {part.ref.image_id for _, part in two.images}
        if characters >= _SURE_CHARACTERS or len(images) >= _SURE_IMAGES:
            return True
    return False


def resembles(turn: Turn, messages: Sequence[Message]) -> bool:
    """Whether a history with a turn's reply may be that of its conversation: they share another message than a system
    message, or what stands before the reply is alike in both, or the reply is long."""
    known = {message.digest for message in _body(turn.client)}
    shared = sum(message.digest in known for message in _body(messages))
    return shared > 1 or _asks_alike(turn, messages) or is_surely(turn, messages, named=False)


def _differ_in_times(before: Sequence[Message], now: Sequence[Message]) -> bool:
    """Whether the system messages of both are the same but for times."""
    old, new = ([one for one in messages if one.role in _HEAD_ROLES] for messages in (before, now))
    return len(old) == len(new) and all(
        one.digest == two.digest
        or [_timeless(text) for text in texts_of(one.wire)] == [_timeless(text) for text in texts_of(two.wire)]
        for one, two in zip(old, new, strict=True)
    )


def _timeless(text: str) -> str:
    return mask(text, find_spans(text, _TIMES))


def _body(messages: Sequence[Message]) -> Iterator[Message]:
    return (message for message in messages if message.role not in _HEAD_ROLES)


def _is_left_of(now: Message, before: Message) -> bool:
    """Whether a message is another one as it was, or less some of its parts."""
    if now.digest == before.digest:
        return True
    rest = iter(map(_key, before.parts))
    return bool(now.parts) and now.role != "assistant" and all(_key(part) in rest for part in now.parts)


def _key(part: Any) -> Any:
    return part.ref.image_id if isinstance(part, ImagePart) else cast("dict[str, Any]", part)


def _written(message: Message) -> int:
    """How many characters a reply has, its calls included."""
    calls = message.wire.get("tool_calls")
    return sum(map(len, texts_of(message.wire))) + (len(to_json(calls)) if calls else 0)


def _asks_alike(turn: Turn, messages: Sequence[Message]) -> bool:
    """Whether the question that the last reply of a history answers is like the last one of a turn."""
    old = [message for message in turn.client if message.role == "user"][-1:]
    new = [message for message in messages[: max(last_reply(messages), 0)] if message.role == "user"][-1:]
    return any(_are_alike(one, two) for one, two in zip(old, new, strict=True)) if old and new else False


def _are_alike(one: Message, two: Message) -> bool:
    """Whether two questions may be one that was edited: they share an image, or half of their text."""
    if {part.ref.image_id for _, part in one.images} & {part.ref.image_id for _, part in two.images}:
        return True
    old, new = "\n".join(texts_of(one.wire)), "\n".join(texts_of(two.wire))
    if old == new:
        return bool(old)
    most = min(len(old), len(new))
    front = next((at for at in range(most) if old[at] != new[at]), most)
    back = next((at for at in range(most - front) if old[-1 - at] != new[-1 - at]), most - front)
    return front + back >= max(_ALIKE_CHARACTERS, _ALIKE_RATIO * max(len(old), len(new)))
