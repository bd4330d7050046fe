"""What recorded turns would have cost under other policies: the real planner over the clients' own messages, and a
prefix cache that never forgets. Token counts are estimates, the same ones for every policy.

What it cannot know: what a client would have sent had it been answered otherwise, what a model answers worse without an
image, what the engine's cache would have evicted, and what stood at the tail of a single turn. Turns whose
conversation's beginning is no longer in the ledger are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from context.conversations import Conversations
from context.errors import RequestError
from context.ledger import Ledger, LedgerLimits
from context.policies.base import Estimate, Limits, Request
from context.policies.choice import LoadedPolicy
from context.policies.quotas import check_quotas
from context.store.turn_reader import TurnReader
from context.store.turn_rows import Row
from metrics.dashboard.recorded import MOST_TURNS, Chosen, KeyOf, Named, choose, measured, namings
from metrics.preview import PrefixCache, turn_of

_LEDGER = LedgerLimits(memory_bytes=256 * 1024**2)
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The turns under one policy, by estimate.

    Attributes:
        policy, version: which one.
        turns: replayed; `refused` of them were refused by its quotas, and are in no sum.
        prompt_tokens, read_tokens, computed_tokens: the first is the sum of the others.
        max_prompt_tokens: of any turn.
        images: image parts that were sent.
        breaks: turns whose prompt stopped extending what was sent before, by cause.
    """

    policy: str
    version: str
    turns: int
    refused: int
    prompt_tokens: int
    read_tokens: int
    computed_tokens: int
    max_prompt_tokens: int
    images: int
    breaks: Mapping[str, int]


async def compare(
    path: Path,
    policies: Sequence[LoadedPolicy],
    estimate: Estimate,
    *,
    key_of: KeyOf,
    tenant: str | None = None,
    limits: Limits | None = None,
    progress: Progress = lambda done, of, words: None,
    most_turns: int = MOST_TURNS,
) -> dict[str, Any]:
    """Replay the latest turns of a ledger's file under some policies.

    Args:
        path: the file.
        policies: which ones.
        estimate: prompt tokens of a message.
        key_of: a tenant's key.
        tenant: whose turns; all tenants' without one, each with a cache of its own.
        limits: the engine's.
        progress: told how many turns of how many are done, and under which policy.
        most_turns: so many are replayed at most.

    Raises:
        ConfigError: there is no such file.
        TurnStoreError: it cannot be read now.
    """
    reader = TurnReader(path)
    try:
        chosen = choose(reader, tenant, most_turns)
        recorded = _Recorded(reader, chosen, namings(reader, chosen, key_of), key_of)
        request = Request(limits=limits or Limits(), estimate=estimate)
        total = len(chosen.turns) * len(policies)
        outcomes: list[Outcome] = []
        for at, policy in enumerate(policies):
            done = at * len(chosen.turns)

            def step(turns: int, done: int = done, name: str = policy.name) -> None:
                progress(done + turns, total, name)

            outcomes.append(await _under(policy, recorded, request, step))
    finally:
        reader.close()
    return {
        "turns": len(chosen.turns),
        "conversations": chosen.conversations,
        "cut": chosen.cut,
        "beyond": chosen.beyond,
        "first_seconds": chosen.turns[0].id / 1e9 if chosen.turns else None,
        "last_seconds": chosen.turns[-1].id / 1e9 if chosen.turns else None,
        "measured": measured(path, chosen) if chosen.turns else None,
        "policies": [asdict(one) for one in outcomes],
    }


@dataclass(frozen=True, slots=True)
class _Recorded:
    """The turns, and what is needed to plan them anew."""

    reader: TurnReader
    chosen: Chosen
    named: Mapping[tuple[str, str], Named]
    key_of: KeyOf


async def _under(policy: LoadedPolicy, recorded: _Recorded, request: Request, step: Callable[[int], None]) -> Outcome:
    ledger = await Ledger.open(None, _LEDGER)
    caches: dict[str, PrefixCache] = {}
    figures = _Sums()
    try:
        conversations = Conversations(ledger)
        for at, turn in enumerate(recorded.chosen.turns, 1):
            row = recorded.reader.load(turn.tenant, turn.id)
            if row is not None:
                cache = caches.setdefault(turn.tenant, PrefixCache(request.estimate))
                given = _Given(
                    recorded.key_of(turn.tenant), recorded.named.get(turn.owner, "own"), policy, cache, request
                )
                await _play(conversations, row, given, figures)
            step(at)
    finally:
        await ledger.close()
    return Outcome(
        policy.name,
        policy.version,
        figures.turns,
        figures.refused,
        figures.prompt,
        figures.prompt - figures.computed,
        figures.computed,
        figures.longest,
        figures.images,
        dict(figures.breaks),
    )


class _Sums:
    def __init__(self) -> None:
        self.turns = self.refused = self.prompt = self.computed = self.longest = self.images = 0
        self.breaks: Counter[str] = Counter()


@dataclass(frozen=True, slots=True)
class _Given:
    """What a turn is planned with, beside its messages."""

    key: bytes
    named: Named
    policy: LoadedPolicy
    cache: PrefixCache
    request: Request


async def _play(conversations: Conversations, row: Row, given: _Given, sums: _Sums) -> None:
    cache, policy, request = given.cache, given.policy, given.request
    sums.turns += 1
    before = cache.extra_tokens
    try:
        begun = await conversations.begin(
            [message.wire for message in row.client],
            None if row.tools is None else row.tools.value,
            tenant=row.tenant,
            key=given.key,
            policy=policy,
            request=request,
            conversation=None if given.named == "content" else row.conversation,
            is_shared=given.named == "shared",
            summarize=cache.summarize,
        )
        check_quotas(policy.quotas, begun.plan, begun.transcript, begun.before, request.estimate)
    except RequestError:
        sums.refused += 1
        return
    reply = {"role": "assistant", "content": ""} if row.reply is None else row.reply.sent.wire
    turn = turn_of(begun, cache, reply, cache.extra_tokens - before)
    await conversations.accept(begun, None if row.reply is None else reply)
    sums.prompt += turn.prompt_tokens
    sums.computed += turn.computed_tokens
    sums.longest = max(sums.longest, turn.prompt_tokens)
    sums.images += turn.images
    if turn.cause:
        sums.breaks[turn.cause] += 1
