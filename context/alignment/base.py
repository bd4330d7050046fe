"""What aligning two transcripts gives: types, no code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from context.images.base import ImageRef

DifferenceKind = Literal["inserted", "removed", "changed", "moved"]
# Those of context/plan.py::Cause that a client brings about.
DifferenceCause = Literal["client_edit", "client_window", "volatile_text"]
# May the second image stand for the first, which was sent in the same slot?
SlotMatch = Callable[[ImageRef, ImageRef], bool]


@dataclass(frozen=True, slots=True)
class Difference:
    """One place at which the new transcript does not repeat the old one.

    Attributes:
        kind, cause: what was done, and why as far as the transcripts tell.
        at: index in the new messages where what was sent stops being repeated. For a message that is gone, the place
            where it is missing: the index of the message that stands there now, or the number of messages.
        before: index in the old messages; None for what was inserted.
        after: index in the new messages; None for what was removed.
        part: index of the content part in message `at`, in the sense of `at`; None for the message as a whole or for
            what is not content (tool calls, name).
        character: offset in the part's text, in code points; None where it is not about text.
        detail: what differs, in words for people; holds no text of the client.
    """

    kind: DifferenceKind
    cause: DifferenceCause
    at: int
    before: int | None
    after: int | None
    part: int | None = None
    character: int | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference inside a message; `part` is an index in the new message. `gone` is text that left it."""

    kind: DifferenceKind
    cause: DifferenceCause
    part: int | None
    character: int | None
    detail: str
    gone: str | None = None


@dataclass(frozen=True, slots=True)
class MatchedImage:
    """An image that stands for another one in the same slot, as a policy allowed.

    `before` and `after` are (message, part) in the old and the new transcript.
    """

    before: tuple[int, int]
    after: tuple[int, int]
    old: ImageRef
    new: ImageRef


@dataclass(frozen=True, slots=True)
class Alignment:
    """Which messages of two transcripts are the same, and where they differ.

    Attributes:
        pairs: (old index, new index) of messages that mean the same, increasing in both. Their digests are equal,
            except where `matched_images` names an image of theirs.
        differences: in the order of the new transcript.
        matched_images: images that were let stand for others.
    """

    pairs: tuple[tuple[int, int], ...]
    differences: tuple[Difference, ...] = ()
    matched_images: tuple[MatchedImage, ...] = field(default=())

    @property
    def first(self) -> Difference | None:
        """Where the new request stops extending what was sent; None where it never does.

        All messages before `first.at` are pairs (k, k), so that what was sent for them may be replayed.
        """
        return self.differences[0] if self.differences else None
