"""What a store of turns keeps, what it promises, and how it says that it cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from blake3 import blake3

from context.errors import StillframeError
from context.frozen import frozen
from context.plan import SentMessage
from context.transcript import Message

Trouble = Literal["locked", "full", "read-only", "damaged", "gone", "unusable"]


# What to do about it, to stand behind the file's name.
_REMEDIES: Mapping[Trouble, str] = {
    "locked": "is locked by another program; close what has it open, or try again later",
    "full": "cannot be read, for the disk is full; free some space",
    "read-only": "cannot be read where nothing may be written beside it; copy it to a folder that can be written",
    "damaged": "is damaged, or no file of a gateway's; name another one",
    "gone": "is there no more; name another one",
    "unusable": "cannot be read; check its permissions and the disk that it lies on",
}


class TurnStoreError(StillframeError):
    """The store did not do what was asked of it. `trouble` says why; the message holds no path and no content."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(f"The ledger's file is {trouble}.")
        self.trouble: Trouble = trouble

    @property
    def remedy(self) -> str:
        """What is wrong and what to do about it, for who named the file."""
        return _REMEDIES[self.trouble]


@frozen
class Tools:
    """The tools of a turn. `data` is their JSON as sent, `digest` its name: equal tools are stored once."""

    digest: bytes
    data: bytes
    value: tuple[Mapping[str, Any], ...]


@frozen
class Blobs:
    """Messages as a store keeps them: JSON texts, and 64 bytes of digest and form for each of the client's."""

    digests: bytes
    client: bytes
    sent: bytes


@frozen
class Reply:
    """The answer to a turn; `chain` is the digest of the transcript with it as the last message, `name` what it is
    found by without the transcript before it (`reply_name`)."""

    client: Message
    sent: SentMessage
    chain: bytes
    cost: int
    name: bytes


@frozen
class Row:
    """A turn as what it adds to another one.

    Attributes:
        id: when it began, in nanoseconds since 1970; larger than its base's.
        base: the row that this one continues; None for one that is whole by itself.
        kept_client, kept_sent: how many of the base's messages, its reply among them, stay in front of these.
        client, sent: the messages behind those.
        chain: digest of the transcript at the end of the request.
        walked: rows and messages that are read to read this one, those that it does not keep among them.
        cost: bytes in memory, without tools and reply; an estimate.
        on_reply: whether the base's reply is among what is kept; needed by `add` alone.
    """

    id: int
    tenant: str
    conversation: str
    number: int
    base: int | None
    kept_client: int
    kept_sent: int
    client: tuple[Message, ...]
    sent: tuple[SentMessage, ...]
    chain: bytes
    tools: Tools | None
    state: Mapping[str, Any]
    epoch: int
    policy: str
    walked: int
    cost: int = 0
    reply: Reply | None = None
    on_reply: bool = False

    @property
    def length(self) -> int:
        """Client messages of the request."""
        return self.kept_client + len(self.client)


def replied(row: Row, reply: Reply) -> Row:
    """A row with its reply. Written out: `dataclasses.replace` takes ten times as long, for each chat."""
    return Row(
        row.id,
        row.tenant,
        row.conversation,
        row.number,
        row.base,
        row.kept_client,
        row.kept_sent,
        row.client,
        row.sent,
        row.chain,
        row.tools,
        row.state,
        row.epoch,
        row.policy,
        row.walked,
        row.cost,
        reply,
        row.on_reply,
    )


@frozen
class Addition:
    """A row as a store keeps it, without its reply.

    Attributes:
        id, tenant, base, on_reply, chain, length: the row's.
        tools: their digest and JSON.
        columns: all that the table of turns holds of it, in that order.
    """

    id: int
    tenant: str
    base: int | None
    on_reply: bool
    chain: bytes
    length: int
    tools: tuple[bytes, bytes] | None
    columns: tuple[int | str | bytes | None, ...]


@frozen
class Answer:
    """The reply to the turn `id` of `length` client messages, as a store keeps it. `name` is what the reply alone is
    found by; `columns` is all that the table of replies holds of it, in that order."""

    id: int
    tenant: str
    chain: bytes
    name: bytes
    length: int
    columns: tuple[int | str | bytes | None, ...]


Entry = Addition | Answer


@frozen
class Point:
    """Where a known transcript ends: `length` client messages, `at_reply` behind a turn's reply."""

    turn: int
    length: int
    at_reply: bool


def reply_name(digest: bytes) -> bytes:
    """A reply's message digest, told apart from the digests of chains."""
    return blake3(b"stillframe-reply\0" + digest).digest()


class KnownRows(Protocol):
    """Rows that need not be read, since they are in memory. Any thread may ask."""

    def __contains__(self, turn: object) -> bool: ...

    def newest(self, tenant: str, conversation: str) -> int | None:
        """The last of a conversation; None where there is none."""
        ...


class TurnStore(Protocol):
    """Where turns outlive the process. Every call may raise `TurnStoreError`; none changes what it is given.

    `probe` and `newest` are called on the event loop: they neither wait for a lock nor read more than a few pages.
    `find` and `load` have a thread, and what writes has another.
    """

    def probe(self, tenant: str, chain: Sequence[bytes], above: int) -> Point | None:
        """The longest prefix of `chain` that is known and longer than `above` messages."""
        ...

    def newest(self, tenant: str, conversation: str) -> int | None:
        """The last turn of a conversation."""
        ...

    def find(
        self, tenant: str, chain: Sequence[bytes], above: int, known: KnownRows | None, came: Sequence[Message] = ()
    ) -> tuple[Point, Row] | None:
        """As `probe`, with the row that `load` gives."""
        ...

    def load(self, tenant: str, turn: int, known: KnownRows | None, came: Sequence[Message] = ()) -> Row | None:
        """A row that is based on one of `known`, or on none, whatever it was added on. None when it is not there.

        `came`: messages that may be its client's in the same spelling. Those that are stand in it, and are not read.
        """
        ...

    def write(self, entries: Sequence[Entry]) -> list[int]:
        """Keep rows with their points, and replies with theirs and their names as other ones; all or, where it raises,
        none. Each stands behind what it needs. What is there already stays as it is.

        Gives the places of those that are not kept: the base is not there, or the base's reply that is needed, or the
        row that a reply belongs to.
        """
        ...

    def expire(self, before: int) -> tuple[list[int], bool]:
        """Delete rows that are older than `before` and that no other row needs, the newest of them first, some at a
        time. Gives those and whether there may be more."""
        ...

    def used_bytes(self) -> int:
        """Bytes that hold something."""
        ...

    def step(self, after: int) -> int | None:
        """The id some rows after `after`, of the last row when there are fewer; None when there is none."""
        ...

    def shrink(self) -> bool:
        """Give back some of what deleting freed; whether there is more."""
        ...

    def count(self) -> int:
        """Rows kept."""
        ...

    def file_bytes(self) -> int:
        """Bytes on disk; 0 when that cannot be told."""
        ...

    def close(self) -> None:
        """End it. No other call may be under way."""
        ...

    def discard(self) -> None:
        """Put what it holds out of the way, since it is damaged. Called once it is closed."""
        ...
