"""Which recorded turns are tried under other policies, how their conversations were named, and what the engine reported
of these very turns."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from context.conversations import content_name
from context.store.turn_reader import TurnReader
from metrics.records.queries import open_records
from metrics.records.record import TurnRecord

MOST_TURNS, MOST_CONVERSATIONS = 400, 24
# So many of the latest turns are looked at to find whole conversations.
LOOKED_AT = 4000
# So many records are read for a turn that is to be found among them: one may have been asked for several times.
_RECORDS_FOR_TURN = 4
# By its beginning; by its client, for itself; by its client, as many conversations are.
Named = Literal["content", "own", "shared"]
KeyOf = Callable[[str], bytes]


class RecordedTurn(NamedTuple):
    """A turn in the ledger: `id` is when it began, in nanoseconds since 1970, `number` its number in its branch."""

    id: int
    tenant: str
    conversation: str
    number: int

    @property
    def owner(self) -> tuple[str, str]:
        """Whose it is."""
        return self.tenant, self.conversation


@dataclass(frozen=True, slots=True)
class Chosen:
    """The turns to replay, in the order of their time, and what was left out.

    Attributes:
        turns: which ones.
        conversations: how many.
        cut: conversations whose beginning is no longer in the ledger.
        beyond: conversations that are whole but would have been too much, or reach further back than is looked.
    """

    turns: tuple[RecordedTurn, ...]
    conversations: int
    cut: int
    beyond: int


def choose(
    reader: TurnReader,
    tenant: str | None = None,
    most_turns: int = MOST_TURNS,
    most_conversations: int = MOST_CONVERSATIONS,
    looked_at: int = LOOKED_AT,
) -> Chosen:
    """The latest whole conversations, within bounds; of a tenant or of all. One that is longer than all the turns that
    may be replayed is there with its first turns, where it is the only one."""
    found: defaultdict[tuple[str, str], list[RecordedTurn]] = defaultdict(list)
    for one in reader.latest(looked_at, tenant):
        turn = RecordedTurn(*one)
        found[turn.owner].append(turn)
    turns: list[RecordedTurn] = []
    chosen = cut = beyond = 0
    for owner, rows in found.items():
        if min(turn.number for turn in rows) > 1:
            is_whole = reader.has_beginning(*owner)
            cut, beyond = cut + (not is_whole), beyond + is_whole
        elif chosen >= most_conversations or (turns and len(turns) + len(rows) > most_turns):
            beyond += 1
        else:
            chosen += 1
            turns += sorted(rows)[:most_turns]
    return Chosen(tuple(sorted(turns)), chosen, cut, beyond)


def namings(reader: TurnReader, chosen: Chosen, key_of: KeyOf) -> Mapping[tuple[str, str], Named]:
    """How each conversation came by its name, which decides how much a changed history of that name proves. It is kept
    nowhere, and seen by how the conversation begins: by its content; with several beginnings that have nothing to do
    with each other, which a name of one conversation's own never has; or else.

    Args:
        reader: the ledger's file.
        chosen: the turns.
        key_of: a tenant's key.
    """
    beginnings: defaultdict[tuple[str, str], set[bytes]] = defaultdict(set)
    found: dict[tuple[str, str], Named] = {}
    for turn in chosen.turns:
        row = reader.load(turn.tenant, turn.id) if turn.number == 1 else None
        if row is None:
            continue
        beginnings[turn.owner].add(row.chain)
        if turn.owner not in found:
            name = content_name([message.wire for message in row.client], key_of(turn.tenant))
            found[turn.owner] = "content" if name == turn.conversation else "own"
    for owner, chains in beginnings.items():
        if found[owner] == "own" and len(chains) > 1:
            found[owner] = "shared"
    return found


def measured(path: Path, chosen: Chosen) -> dict[str, Any] | None:
    """What the engine reported of the chosen turns; None where nothing of them is kept."""
    turns: defaultdict[tuple[str, str], list[RecordedTurn]] = defaultdict(list)
    for turn in chosen.turns:
        turns[turn.owner].append(turn)
    prompt = read = loaded = count = 0
    with open_records(path) as records:
        for (tenant, conversation), mine in turns.items():
            found = records.records(
                "WHERE r.conversation IN (SELECT id FROM record_conversations WHERE name = ? AND tenant = "
                "(SELECT id FROM record_names WHERE name = ?)) AND r.id <= ? ORDER BY r.id DESC LIMIT ?",
                (conversation, tenant, mine[-1].id, _RECORDS_FOR_TURN * len(mine)),
            )
            for one in _of_turns(found, mine):
                if one.prompt_tokens is not None and one.read_tokens is not None:
                    prompt, read, count = prompt + one.prompt_tokens, read + one.read_tokens, count + 1
                    loaded += one.loaded_tokens or 0
    if not count:
        return None
    return {"turns": count, "prompt_tokens": prompt, "read_tokens": read, "computed_tokens": prompt - read - loaded}


def _of_turns(records: list[TurnRecord], turns: list[RecordedTurn]) -> list[TurnRecord]:
    """The record of each turn that has one: the last of the same number that came before the turn was kept, and is no
    other turn's. `records` has the latest first."""
    by_number: defaultdict[int, deque[TurnRecord]] = defaultdict(deque)
    for record in records:
        by_number[record.number].append(record)
    found: list[TurnRecord] = []
    for turn in reversed(turns):
        left = by_number[turn.number]
        while left and left[0].id > turn.id:
            left.popleft()
        if left:
            found.append(left.popleft())
    return found
