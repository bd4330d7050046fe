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
from metrics.preview import PrefixCache, turn_of
from metrics.records import queries
from metrics.records.queries import open_records

MOST_TURNS, MOST_CONVERSATIONS = 400, 24
# So many of the latest turns are looked at to find whole conversations.
_LOOKED_AT = 4000
_LEDGER = LedgerLimits(memory_bytes=256 * 1024**2)
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The turns to replay, in the order of their time, and what was left out.

    Attributes:
        turns: id, tenant and conversation of each.
        conversations: how many.
        cut: conversations whose beginning is no longer in the ledger.
        beyond: conversations that are whole but would have been too many.
    """

    turns: tuple[tuple[int, str, str], ...]
    conversations: int
    cut: int
    beyond: int


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


def choose(
    reader: TurnReader,
    tenant: str | None = None,
    most_turns: int = MOST_TURNS,
    most_conversations: int = MOST_CONVERSATIONS,
) -> Chosen:
    """The latest whole conversations, within bounds; of a tenant or of all. One that is longer than all the turns that
    may be replayed is there with its first turns, where it is the only one."""
    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for id, owner, conversation, number in reader.latest(_LOOKED_AT, tenant):
        found.setdefault((owner, conversation), []).append((id, number))
    turns: list[tuple[int, str, str]] = []
    chosen = cut = beyond = 0
    for (owner, conversation), rows in found.items():
        if min(number for _, number in rows) > 1:
            cut += 1
            continue
        if chosen >= most_conversations or (turns and len(turns) + len(rows) > most_turns):
            beyond += 1
            continue
        chosen += 1
        turns += [(id, owner, conversation) for id, _ in sorted(rows)[:most_turns]]
    return Chosen(tuple(sorted(turns)), chosen, cut, beyond)


async def compare(
    path: Path,
    policies: Sequence[LoadedPolicy],
    estimate: Estimate,
    *,
    tenant: str | None = None,
    limits: Limits | None = None,
    progress: Progress = lambda done, of, words: None,
) -> dict[str, Any]:
    """Replay the latest turns of a ledger's file under some policies.

    Args:
        path: the file.
        policies: which ones.
        estimate: prompt tokens of a message.
        tenant: whose turns; all tenants' without one, each with a cache of its own.
        limits: the engine's.
        progress: told how many turns of how many are done, and under which policy.

    Raises:
        ConfigError: there is no such file.
        TurnStoreError: it cannot be read now.
    """
    reader = TurnReader(path)
    try:
        chosen = choose(reader, tenant)
        total = len(chosen.turns) * len(policies)
        outcomes: list[Outcome] = []
        for at, policy in enumerate(policies):
            done = at * len(chosen.turns)

            def step(turns: int, done: int = done, name: str = policy.name) -> None:
                progress(done + turns, total, name)

            outcomes.append(await _under(policy, reader, chosen, estimate, limits or Limits(), step))
    finally:
        reader.close()
    return {
        "turns": len(chosen.turns),
        "conversations": chosen.conversations,
        "cut": chosen.cut,
        "beyond": chosen.beyond,
        "first_seconds": chosen.turns[0][0] / 1e9 if chosen.turns else None,
        "last_seconds": chosen.turns[-1][0] / 1e9 if chosen.turns else None,
        "measured": _measured(path, chosen) if chosen.turns else None,
        "policies": [asdict(one) for one in outcomes],
    }


def _measured(path: Path, chosen: Chosen) -> dict[str, Any] | None:
    """What the engine reported of the chosen conversations up to the last chosen turn; None where nothing is kept."""
    names = dict.fromkeys((tenant, conversation) for _, tenant, conversation in chosen.turns)
    prompt = read = turns = 0
    with open_records(path) as records:
        for tenant, conversation in names:
            for one in queries.conversation_turns(records, tenant, conversation, MOST_TURNS):
                if one.prompt_tokens is not None and one.read_tokens is not None and one.id <= chosen.turns[-1][0]:
                    prompt, read, turns = prompt + one.prompt_tokens, read + one.read_tokens, turns + 1
    if not turns:
        return None
    return {"turns": turns, "prompt_tokens": prompt, "read_tokens": read, "computed_tokens": prompt - read}


async def _under(
    policy: LoadedPolicy,
    reader: TurnReader,
    chosen: Chosen,
    estimate: Estimate,
    limits: Limits,
    step: Callable[[int], None],
) -> Outcome:
    ledger = await Ledger.open(None, _LEDGER)
    caches: dict[str, PrefixCache] = {}
    figures = _Sums()
    try:
        conversations = Conversations(ledger)
        for at, (id, tenant, _) in enumerate(chosen.turns, 1):
            row = reader.load(tenant, id)
            if row is not None:
                cache = caches.setdefault(tenant, PrefixCache(estimate))
                await _play(conversations, row, policy, cache, Request(limits=limits, estimate=estimate), figures)
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


async def _play(
    conversations: Conversations,
    row: Row,
    policy: LoadedPolicy,
    cache: PrefixCache,
    request: Request,
    sums: _Sums,
) -> None:
    sums.turns += 1
    before = cache.extra_tokens
    try:
        begun = await conversations.begin(
            [message.wire for message in row.client],
            None if row.tools is None else row.tools.value,
            tenant=row.tenant,
            key=b"what-if",
            policy=policy,
            request=request,
            conversation=row.conversation,
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
