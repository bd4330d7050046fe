"""What one turn cost: the record that everything else is counted from."""

from __future__ import annotations

from typing import Literal

from context.frozen import frozen
from context.plan import Actor, Cause

Outcome = Literal["completed", "aborted", "failed", "refused"]


@frozen
class TurnRecord:
    """One turn, however it ended. None means that the figure was not reported, or does not apply; it is never 0.

    Attributes:
        id: when the request came, in nanoseconds since 1970, made unique within a gateway's file.
        request_id: as the client was told.
        tenant, conversation, number: whose; the turn's number in its branch of the conversation, from 1. A request that
            was refused before it was planned has the conversation "" and the number 0.
        model, policy, policy_version: which were in force.
        stream: whether the answer was streamed.
        outcome: how it ended.
        text_only: no image was sent.
        images, unique_images: what was sent, the tail included.
        new_images: of the unique ones, those that were not sent in the turn before.
        encoder_runs, encoder_hits: images that the vision encoder computed, and whose features were reused.
        visual_tokens, prompt_tokens, completion_tokens: the engine's figures.
        read_tokens, write_tokens, uncached_tokens: with `loaded_tokens` they sum up to `prompt_tokens` whenever
            `read_tokens` is known.
        write_derived: the engine gave no usable write figure; all that was neither read nor loaded counts as written.
        loaded_tokens: of images whose KV came from the engine's pool of it, and was not computed. None where the engine
            has none, the turn did not allow it, or nothing was said.
        expected_read: full blocks of what the turn before left in the engine's cache, as far as this prompt is as long;
            not less where the plan breaks the prefix or the engine evicted: that is what was lost.
        lost_tokens: of those, what was neither read nor loaded.
        break_message, break_part, break_token: the first difference from what was sent before: index of the client's
            message (-1 for the tools), of its part, and the estimated token of the prompt.
        cause, actor: why less was read than was sent before, and who caused it. None where nothing was lost.
        evicted_image: id of an image whose KV blocks were evicted, and that was paid for here.
        evicted_conversation, evicted_tokens: whose the blocks were that the engine evicted and this turn paid for, and
            how many tokens stood in them. None where that is not known.
        unseen_images: images were sent, and the engine counted fewer prompt tokens than they alone take: it cannot have
            shown them all to the model.
        image_eviction: the policy took images out of the history in this turn.
        summary: the policy summed up history in this turn.
        epoch: how often the policy has rewritten this conversation.
        first_token_seconds, total_seconds: from the request's first byte.
        cost: by the price table; None without one.
        image_ids: the unique images, in order of their first place in the prompt.
        image_counts: how often each of them stands in the prompt.
        reuse, reuse_by: what was allowed of approximate KV of its images, as a client asks for it (`0.05; profile`),
            and who said so. None where all was exact.
    """

    id: int
    request_id: str
    tenant: str
    conversation: str
    number: int
    model: str
    policy: str
    policy_version: str
    stream: bool
    outcome: Outcome
    text_only: bool = True
    images: int = 0
    unique_images: int = 0
    new_images: int = 0
    encoder_runs: int | None = None
    encoder_hits: int | None = None
    visual_tokens: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    read_tokens: int | None = None
    write_tokens: int | None = None
    uncached_tokens: int | None = None
    write_derived: bool = False
    loaded_tokens: int | None = None
    expected_read: int | None = None
    lost_tokens: int | None = None
    break_message: int | None = None
    break_part: int | None = None
    break_token: int | None = None
    cause: Cause | None = None
    actor: Actor | None = None
    evicted_image: str | None = None
    image_eviction: bool = False
    summary: bool = False
    epoch: int = 0
    first_token_seconds: float | None = None
    total_seconds: float | None = None
    cost: float | None = None
    image_ids: tuple[str, ...] = ()
    image_counts: tuple[int, ...] = ()
    evicted_conversation: str | None = None
    evicted_tokens: int | None = None
    unseen_images: bool = False
    reuse: str | None = None
    reuse_by: Actor | None = None

    @property
    def seconds(self) -> float:
        """When the request came, in seconds since 1970."""
        return self.id / 1_000_000_000

    @property
    def computed_tokens(self) -> int | None:
        """Prompt tokens that were neither read nor loaded: what is paid for twice where they were sent before."""
        if self.prompt_tokens is None or self.read_tokens is None:
            return None
        return self.prompt_tokens - self.read_tokens - (self.loaded_tokens or 0)
