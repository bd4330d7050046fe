"""Messages that are sent for the first time, among those that are sent again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from context.frozen import frozen
from context.layout.control import neutralize, neutralize_message
from context.layout.hoist import hoist
from context.layout.revise import tail_message
from context.plan import Healed, SentMessage
from context.policies.base import Rules
from context.replay import Replay, in_order
from context.transcript import ImagePart, Message, Transcript

# Role and content are all that most messages have: then the text alone has to be looked at.
_PLAIN_KEYS = 2


@frozen
class LaidOut:
    """What would be sent for a transcript.

    Attributes:
        sent: all messages, those that are sent again first as they were.
        healed: what was made harmless in those that are new.
        waiting: images that stand in no message yet, for their tool group is still open.
    """

    sent: tuple[SentMessage, ...]
    healed: tuple[Healed, ...] = ()
    waiting: tuple[ImagePart, ...] = ()

    def tail_of(self, sent: Sequence[SentMessage], transcript: Transcript, rules: Rules) -> tuple[Any, ...]:
        """Content parts that have to stand at the end of this turn's prompt for what `sent` does not say itself."""
        lines = _values(sent, transcript, rules)
        return (*self.waiting, *([{"type": "text", "text": "\n".join(lines)}] if lines else []))


def lay_out(transcript: Transcript, found: Replay, rules: Rules) -> LaidOut:
    """What is sent again, and what is sent for the first time, in the order of the transcript."""
    messages = transcript.messages
    if not rules.replay:
        return LaidOut(tuple(SentMessage(message.wire, at) for at, message in enumerate(messages)))
    fresh: list[SentMessage] = []
    healed: list[Healed] = []
    for at, message in enumerate(messages):
        if at in found.covered:
            continue
        one, is_clean = _laid_out(message, at, rules, found.revised.get(at, message.wire))
        fresh.append(one)
        if not is_clean:
            healed.append(Healed("control_tokens", at))
    sent = in_order(found.kept, fresh) if found.kept else fresh
    waiting: tuple[ImagePart, ...] = ()
    if rules.tool_images == "hoist":
        new = {one.source for one in fresh if one.source is not None}
        sent, waiting = hoist(sent, [message.wire for message in messages], new)
        if rules.images_at_tail:
            # The policy has its own place for them.
            waiting = ()
    return LaidOut(tuple(sent), tuple(healed), waiting)


def _laid_out(message: Message, at: int, rules: Rules, wire: Mapping[str, Any]) -> tuple[SentMessage, bool]:
    """A message that is sent for the first time, and whether it came without control tokens."""
    tokens, clean = rules.control_tokens, wire
    text = wire.get("content")
    is_plain = tokens is None or (len(wire) == _PLAIN_KEYS and isinstance(text, str) and not tokens.in_text(text))
    if tokens is not None and not is_plain:
        clean = neutralize_message(wire, tokens)[0]
    made = SentMessage(clean, at)
    if rules.volatile == "tail" and message.role in rules.volatile_roles:
        made = replace(made, wire=tail_message(clean, rules.patterns)[0])
    return made, clean is wire


def _values(sent: Sequence[SentMessage], transcript: Transcript, rules: Rules) -> list[str]:
    """Today's values of volatile text that `sent` holds no value for, or another day's; each line once."""
    if rules.volatile != "tail" or not rules.replay:
        return []
    lines: dict[str, None] = {}
    for one in sent:
        message = transcript.messages[one.source] if one.source is not None else None
        if message is not None and message.role in rules.volatile_roles:
            _, values = tail_message(message.wire, rules.patterns)
            said = str(one.wire.get("content"))
            if any(value.partition(": ")[2] not in said for value in values):
                lines |= dict.fromkeys(values)
    tokens = rules.control_tokens
    return [line if tokens is None else neutralize(line, tokens) for line in lines]
