"""Remembers what turns left in the cache, and puts plan, usage and mirror together."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from context.estimates import message_tokens
from context.plan import Actor, PromptPlan, SentMessage
from metrics.attribution.base import Attribution, Cache, Left
from metrics.attribution.causes import Estimate, attribute, tail_tokens
from metrics.kv_mirror import Ending, KvMirror, MirrorView, Owner
from metrics.usage import Usage


class Attributing:
    """A turn that is to be attributed, once the engine has told enough. `before` is what the turn before left."""

    def __init__(
        self,
        ending: Ending | None,
        attributed: Callable[[MirrorView | None, int, Actor | None, bool], Attribution],
        before: Left | None = None,
    ) -> None:
        self._ending, self._attributed = ending, attributed
        self.before = before

    @property
    def is_settled(self) -> bool:
        """There is nothing to wait for."""
        return self._ending is None or self._ending.is_settled

    def result(self, loaded_tokens: int = 0, apart_by: Actor | None = None, *, was_exact: bool = False) -> Attribution:
        """By what is known now. `loaded_tokens` came from a pool of images' KV: they were not read, and not lost.
        `apart_by` has allowed what makes the engine keep the turn apart from the one before; `was_exact`: it kept
        nothing apart of that one, whatever the plan supposed."""
        view = None if self._ending is None else self._ending.view()
        return self._attributed(view, loaded_tokens, apart_by, was_exact)


class Attributor:
    """Attributes the turns of one gateway. Called from one event loop.

    Args:
        mirror: follows the engine; None where it gives no KV events, and until it is known.
        block_tokens: as the engine says; None until it does.
        template_extends: what the probe at start found of the chat template.
        max_turns: of how many of the latest turns it is known what they left.
    """

    def __init__(
        self,
        mirror: KvMirror | None,
        block_tokens: int | None,
        *,
        template_extends: bool | None = None,
        max_turns: int = 20_000,
    ) -> None:
        self.mirror = mirror
        self.template_extends = template_extends
        self._block_tokens = block_tokens
        self._max_turns = max_turns
        self._begun: OrderedDict[str, tuple[Owner, Cache]] = OrderedDict()
        self._left: OrderedDict[int, Left] = OrderedDict()

    def learn(self, mirror: KvMirror | None, block_tokens: int | None) -> None:
        """What is known of the engine from now on. What turns left, and what has begun, stays known."""
        self.mirror, self._block_tokens = mirror, block_tokens

    def begin(self, request_id: str, owner: Owner, cache: Cache) -> None:
        """A request goes to the engine."""
        self._begun[request_id] = (owner, cache)
        if len(self._begun) > self._max_turns:
            self._begun.popitem(last=False)
        if self.mirror is not None:
            self.mirror.begin(request_id, owner)

    def drop(self, request_id: str) -> None:
        """Nothing came of a request: it was refused."""
        self._begun.pop(request_id, None)

    def end(
        self,
        request_id: str,
        plan: PromptPlan,
        usage: Usage,
        *,
        turn: int | None,
        parent: int | None,
        replied: bool,
        sent_before: Sequence[SentMessage] = (),
        estimate: Estimate = message_tokens,
    ) -> Attributing:
        """A request has ended. Called for a turn before it is called for the next one of its conversation.

        Args:
            request_id: as it began.
            plan: what was sent.
            usage: the engine's figures; empty where there are none.
            turn: the ledger's number of the turn (`Begun.turn.id`); None where it was not accepted.
            parent: that of the turn that the plan goes on from (`Begun.parent`).
            replied: the engine's reply was kept whole.
            sent_before: what the turn that the plan goes on from had sent (`Begun.before`).
            estimate: prompt tokens of a message as it is sent.
        """
        known = self._begun.pop(request_id, None)
        if known is None:
            unknown = Attribution(cause="engine_unreported", actor="engine")
            return Attributing(None, lambda _view, _loaded, _by, _exact: unknown)
        owner, cache = known
        before = None if parent is None else self._left.get(parent)
        if parent is not None and before is None:
            # A turn of before the start. What a break cost is estimated by what had been sent.
            before = Left(sum(estimate(one.wire) for one in sent_before)) if plan.breaks and sent_before else Left()
        if turn is not None:
            # Before anything is waited for: the next turn may come.
            self._keep(turn, _left(plan, usage, cache, replied, estimate))
        ending = None
        if self.mirror is not None:
            ending = self.mirror.end(
                request_id, turn, parent=parent, prompt_tokens=usage.prompt_tokens, read_tokens=usage.read_tokens
            )

        def attributed(
            view: MirrorView | None, loaded_tokens: int, apart_by: Actor | None, was_exact: bool
        ) -> Attribution:
            return attribute(
                plan,
                before,
                usage,
                view,
                self._block_tokens,
                cache=cache,
                owner=owner,
                estimate=estimate,
                template_extends=self.template_extends,
                loaded_tokens=loaded_tokens,
                apart_by=apart_by,
                was_exact=was_exact,
            )

        return Attributing(ending, attributed, before)

    def _keep(self, turn: int, left: Left) -> None:
        self._left[turn] = left
        self._left.move_to_end(turn)
        if len(self._left) > self._max_turns:
            self._left.popitem(last=False)


def _left(plan: PromptPlan, usage: Usage, cache: Cache, replied: bool, estimate: Estimate) -> Left:
    tail = 0 if usage.prompt_tokens is None else tail_tokens(plan, usage.prompt_tokens, estimate)
    return Left(usage.prompt_tokens, usage.completion_tokens, replied, len(plan.sent) + replied, tail, cache)
