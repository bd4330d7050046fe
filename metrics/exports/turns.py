"""Recorded turns as exports take them: what was sent, what was answered, and the record of what it cost.

They are read from the file that a gateway keeps (`data_dir/ledger.db`), also while it runs. What stood at a prompt's
tail in one turn alone (times, ids, reminders) is kept nowhere and is not among the messages.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from context.images.memo import Lru
from context.plan import SentMessage
from context.store.turn_reader import TurnReader
from context.store.turn_rows import Row
from context.transcript import ImagePart
from metrics.records.queries import Records, open_records
from metrics.records.record import TurnRecord

_CONVERSATIONS = 256
_OF_CONVERSATION = (
    "WHERE r.conversation IN (SELECT id FROM record_conversations WHERE name = ? AND tenant = "
    "(SELECT id FROM record_names WHERE name = ?)) ORDER BY r.id"
)


@dataclass(frozen=True, slots=True)
class ExportedTurn:
    """A turn that an engine has taken.

    Attributes:
        id: when it was taken, in nanoseconds since 1970; larger than that of the turn that was read before it.
        tenant, conversation, number, policy, epoch: see `context/plan.py::Turn`.
        sent: the messages as they were sent, each image part an `ImagePart`; without the reply.
        tools: as they were sent.
        reply: the engine's answer; None where there is none, or not yet.
        record: what it cost; None where that is not recorded, or no longer.
    """

    id: int
    tenant: str
    conversation: str
    number: int
    policy: str
    epoch: int
    sent: tuple[SentMessage, ...]
    tools: tuple[Mapping[str, Any], ...] | None
    reply: Mapping[str, Any] | None
    record: TurnRecord | None = None

    @property
    def request_id(self) -> str:
        """As the client was told; a name of its own where that is not recorded."""
        return self.record.request_id if self.record is not None else f"turn-{self.id}"

    @property
    def milliseconds(self) -> int:
        """When it was taken, since 1970: a stream when it begins, a whole answer when it is there. Never before the
        turn that was read before it."""
        return self.id // 1_000_000

    @property
    def images(self) -> list[ImagePart]:
        """All image parts in order."""
        return [part for one in self.sent for part in one.images]


@contextmanager
def recorded_turns(path: Path, tenant: str | None = None) -> Generator[Iterator[ExportedTurn]]:
    """The turns of a ledger's file in the order of their time, as long as it is open.

    Args:
        path: the file.
        tenant: whose; all tenants' without one.

    Raises:
        ConfigError: there is no such file, or it is no ledger's; on the way, too, where it cannot be read any more.
        TurnStoreError: it cannot be read now; on the way, too.
    """
    with ExitStack() as stack:
        reader = TurnReader(path)
        stack.callback(reader.close)
        records = _Records(stack.enter_context(open_records(path)) if reader.has_table("records_schema") else None)
        yield (_exported(row, records) for row in reader.turns(tenant))


def _exported(row: Row, records: _Records) -> ExportedTurn:
    return ExportedTurn(
        id=row.id,
        tenant=row.tenant,
        conversation=row.conversation,
        number=row.number,
        policy=row.policy,
        epoch=row.epoch,
        sent=row.sent,
        tools=None if row.tools is None else row.tools.value,
        reply=None if row.reply is None else row.reply.sent.wire,
        record=records.of(row),
    )


class _Records:
    """The records of turns, a conversation's at a time; none where the file holds none."""

    def __init__(self, records: Records | None) -> None:
        self._records = records
        self._known: Lru[tuple[str, str], Sequence[TurnRecord]] = Lru(_CONVERSATIONS)

    def of(self, row: Row) -> TurnRecord | None:
        """A turn is taken after its request came and before the next one of the same number did."""
        if self._records is None:
            return None
        name = (row.conversation, row.tenant)
        found = self._known.get(name)
        if found is None or not found or found[-1].id < row.id:
            # Read again behind the last one: a running gateway may have written more.
            found = self._records.records(_OF_CONVERSATION, name)
            self._known.put(name, found)
        came = [one for one in found if one.number == row.number and one.id <= row.id and one.outcome != "refused"]
        return came[-1] if came else None
