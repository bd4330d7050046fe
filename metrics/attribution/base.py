"""What is known of the turn before, and what follows for this one."""

from __future__ import annotations

from context.frozen import frozen
from context.plan import Actor, Cause
from metrics.kv_mirror.base import Owner


@frozen
class Cache:
    """What decides which cache a request looks into: where one of these differs, nothing can be read."""

    salt: str
    model: str
    upstream: str = ""


@frozen
class Left:
    """What a turn left in the engine's cache, by the engine's usage.

    Attributes:
        prompt_tokens, completion_tokens: None where they were not reported, as for a turn that was aborted.
        replied: its reply belongs to the history as the engine made it.
        messages: how many messages it was sent and answered with; None where that is not known.
        tail_tokens: about how many of its prompt stood at the tail, which no later turn repeats.
        cache: where; None where that is not known.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    replied: bool = False
    messages: int | None = None
    tail_tokens: int = 0
    cache: Cache | None = None

    @property
    def tokens(self) -> int | None:
        """Tokens that have KV and stand at the start of what is sent next; None where it was not reported."""
        if self.prompt_tokens is None:
            return None
        if self.tail_tokens or not self.replied:
            # A reply behind a tail stands at another place from now on.
            return max(0, self.prompt_tokens - self.tail_tokens)
        # The last token of a reply was never fed to the model.
        return self.prompt_tokens + max(0, (self.completion_tokens or 0) - 1)


@frozen
class Attribution:
    """What a turn could have read, and why it read less. None means that it is not known.

    Attributes:
        expected_read: tokens in full blocks of what the turn before left, as far as this prompt is as long.
        lost_tokens: of those, what was not read; 0 where it is less than a block.
        cause, actor: the one reason; None where nothing was lost. `cold` and `below_block` lose nothing: there was
            nothing to be read.
        break_token: the first token of the prompt that was not read though it was expected: where the prompt differs
            from what was sent before, or where an evicted block began. Estimated where the engine gives no events.
        evicted_image: the engine's name (uuid) of the image that lost most of the evicted tokens.
        evicted_conversation: whose they were: this conversation, where it is among those that used them, else the
            latest of those.
        evicted_tokens: in the evicted blocks that this turn paid for.
    """

    expected_read: int | None = None
    lost_tokens: int | None = None
    cause: Cause | None = None
    actor: Actor | None = None
    break_token: int | None = None
    evicted_image: str | None = None
    evicted_conversation: Owner | None = None
    evicted_tokens: int = 0
