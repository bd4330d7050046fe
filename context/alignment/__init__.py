"""Aligns what a client sent before with what it sends now, and says where and why they differ.

What matters is the first place at which the new request stops being an extension of what was sent: the engine can
read its caches up to there and no further. Hence three rules of the end:

- Messages behind the last old one extend what was sent: no difference.
- A new transcript that ends early repeats what was sent as far as it goes, so that all of it can be read: the client
  went back (regenerates, branches), no difference.
- Where both go on, but differently, it depends on what the client treats as history. An assistant message behind that
  place says that history was changed, which is reported. Without one the client asks another question at this point: a
  branch, no difference. A last message that lost its image or holds another time is no other question: it is reported.

Pure functions: nothing is mutated, nothing is read or written.
"""

from __future__ import annotations

from collections.abc import Sequence

from context.alignment.base import Alignment, Difference, Finding, MatchedImage, SlotMatch
from context.alignment.heals import heals
from context.alignment.moves import followed, moved_messages
from context.alignment.order import common
from context.alignment.parts import compare
from context.alignment.steps import Run, Step, runs_of_removed, steps_between
from context.layout.patterns import BUILTIN, Patterns
from context.transcript import ImagePart, Message

__all__ = ["Alignment", "Difference", "MatchedImage", "SlotMatch", "align", "heals"]


def align(
    old: Sequence[Message],
    new: Sequence[Message],
    *,
    patterns: Patterns = BUILTIN,
    slot_match: SlotMatch | None = None,
) -> Alignment:
    """Pair the messages that mean the same and classify what differs.

    Time grows with the number of messages and the length of the texts that differ; equal messages are never looked
    into. Behind an edit, places inside messages are given for the next 128 messages that differ.

    Args:
        old: the client's messages as they were sent before.
        new: its messages now.
        patterns: what counts as volatile text.
        slot_match: says whether an image may stand for the one that was sent in the same slot: everything before it
            is paired, or differs in a way that a policy may undo (`client_window`, `volatile_text`). It is asked
            once for each such image. None: no image may stand for another.
    """
    pairs = common([message.digest for message in old], [message.digest for message in new])
    steps, tail = steps_between(old, new, pairs)
    judge = _Judge(old, new, steps, tail, patterns)
    found = judge.run(slot_match)
    kept, fork = judge.counted(found)
    differences = [difference for one in found[:kept] for difference in one] + fork
    places = {step.after for step in steps[:kept]}
    matched = tuple(one for one in judge.matched if one.after[0] in places)
    inserted = [step.after for step in steps if step.before is None and step.after is not None]
    made = followed(differences, new, inserted, patterns)
    return Alignment(tuple(sorted(pairs + judge.pairs)), tuple(made), matched)


# Behind an edit nothing of what was sent can be used, so that places are of interest to people alone: for so many
# messages. A client that sends thousands that all differ must not hold up the others.
MAX_PLACES_BEHIND_EDIT = 128
# A difference with the text that went with it.
_Found = tuple[Difference, str | None]


class _Judge:
    """Classifies the steps, in order."""

    def __init__(
        self,
        old: Sequence[Message],
        new: Sequence[Message],
        steps: Sequence[Step],
        tail: int,
        patterns: Patterns,
    ) -> None:
        self.old, self.new, self.steps, self.tail, self.patterns = old, new, steps, tail, patterns
        self.runs = runs_of_removed(old, steps)
        self.moved = moved_messages(old, new, steps, tail, self.runs)
        self.arrived = {after: before for before, after in self.moved.items()}
        self.told: set[int] = set()
        self.pairs: list[tuple[int, int]] = []
        self.matched: list[MatchedImage] = []

    def run(self, match: SlotMatch | None) -> list[list[_Found]]:
        """What differs at each step. Slots that hold nothing but images that a policy lets match become pairs."""
        found: list[list[_Found]] = []
        edited = 0
        for index, step in enumerate(self.steps):
            if step.before is None or step.after is None:
                found.append(self._lone(step))
            else:
                look = not edited or len(found) - edited < MAX_PLACES_BEHIND_EDIT
                found.append((self._slot if look else self._glance)(step.before, step.after, match))
                if not found[-1]:
                    # Nothing differs but images that may: the slot is a pair.
                    self.pairs.append((step.before, step.after))
                    self.tail = max(self.tail, index + 1)
            if any(difference.cause == "client_edit" for difference, _ in found[-1]):
                match, edited = None, edited or len(found)
        return found

    def _slot(self, before: int, after: int, match: SlotMatch | None) -> list[_Found]:
        compared = compare(self.old[before], self.new[after], self.patterns, match)
        for one, two in compared.matched:
            was, now = self.old[before].parts[one], self.new[after].parts[two]
            if isinstance(was, ImagePart) and isinstance(now, ImagePart):
                self.matched.append(MatchedImage((before, one), (after, two), was.ref, now.ref))
        return [(_placed(finding, before, after), finding.gone) for finding in compared.findings]

    def _glance(self, before: int, after: int, _: SlotMatch | None) -> list[_Found]:
        lost = any(self.old[before].images) and not any(self.new[after].images)
        cause = "client_window" if lost else "client_edit"
        return [(Difference("changed", cause, after, before, after, detail="the message differs"), None)]

    def _lone(self, step: Step) -> list[_Found]:
        before = self.arrived.get(step.at) if step.before is None else step.before
        if before is None:
            return [
                (Difference("inserted", "client_edit", step.at, None, step.at, detail="a message was inserted"), None)
            ]
        if before in self.moved:
            return self._moved(before, step.at)
        run = self.runs[before]
        cause = "client_window" if run.window else "client_edit"
        return [(Difference("removed", cause, step.at, before, None, detail=run.detail), self._whole_text(before, run))]

    def _moved(self, before: int, at: int) -> list[_Found]:
        """Told once, where it is first missed or met."""
        if before in self.told:
            return []
        self.told.add(before)
        after = self.moved[before]
        detail = f"a message moved from {before} to {after}"
        return [(Difference("moved", "client_edit", at, before, after, detail=detail), None)]

    def _whole_text(self, index: int, run: Run) -> str | None:
        """The text of a removed message that is nothing else, to be looked for further on."""
        parts = self.old[index].parts
        text = parts[0].get("text") if len(parts) == 1 and not isinstance(parts[0], ImagePart) else None
        return text if isinstance(text, str) and not run.window else None

    def counted(self, found: Sequence[Sequence[_Found]]) -> tuple[int, list[_Found]]:
        """How many steps stand where history was changed, and the fork behind them; the module says what ends count."""
        history = self._answered(self.tail)
        kept = self.tail
        for index in range(self.tail, len(self.steps)):
            step = self.steps[index]
            shared = step.before is not None and step.after is not None
            if shared and (history or any(difference.cause != "client_edit" for difference, _ in found[index])):
                kept = index + 1
        rest = self.steps[kept:]
        gone = next((step.before for step in rest if step.before is not None), None)
        came = next((step.after for step in rest if step.after is not None), None)
        if gone is None or came is None or not self._answered(kept):
            return kept, []
        return kept, [(self._fork(gone, came), None)]

    def _fork(self, gone: int, came: int) -> Difference:
        found = compare(self.old[gone], self.new[came], self.patterns).findings
        part, character = (found[0].part, found[0].character) if found else (None, None)
        detail = "the conversation goes on differently from here"
        return Difference("changed", "client_edit", came, gone, came, part, character, detail)

    def _answered(self, start: int) -> bool:
        """Whether the client says that the model answered from this step on."""
        return any(self.new[step.after].role == "assistant" for step in self.steps[start:] if step.after is not None)


def _placed(finding: Finding, before: int, after: int) -> Difference:
    return Difference(
        finding.kind, finding.cause, after, before, after, finding.part, finding.character, finding.detail
    )
