"""What differs between two messages that stand in the same slot."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic_core import to_json

from context.alignment.base import DifferenceCause, DifferenceKind, Finding, SlotMatch
from context.alignment.order import common
from context.alignment.texts import PLACEHOLDER_CHARACTERS, spells, text_finding
from context.layout.patterns import BUILTIN, Patterns
from context.layout.volatile import first_difference
from context.transcript import ImagePart, Message, canonical, canonical_parts

# Keys whose names may be told: they are the wire's words, not the client's.
_KNOWN_KEYS = frozenset(("name", "tool_call_id", "reasoning_content", "reasoning", "refusal", "function_call", "audio"))


@dataclass(slots=True)
class Comparison:
    """Findings in the order of the new message's parts, and pairs of parts whose images a policy let match."""

    findings: list[Finding] = field(default_factory=list[Finding])
    matched: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])


def compare(old: Message, new: Message, patterns: Patterns = BUILTIN, match: SlotMatch | None = None) -> Comparison:
    """Say what differs. Equal messages give nothing.

    Args:
        old, new: what was sent, and what came in its slot.
        patterns: what counts as volatile text.
        match: whether an image may stand for the one that was in its slot; None where none may.
    """
    walk = _Walk(_Side.of(old), _Side.of(new), patterns, match)
    walk.run()
    walk.found.findings.sort(key=lambda finding: cast("int", finding.part))
    walk.found.findings += _outside_content(canonical(old.wire), canonical(new.wire))
    return walk.found


@dataclass(frozen=True, slots=True)
class _Side:
    """A message's parts, each with a key that is equal where the part means the same."""

    parts: Sequence[Any]
    keys: list[Hashable]

    @classmethod
    def of(cls, message: Message) -> _Side:
        return cls(message.parts, [_key(part) for part in canonical_parts(message.wire)])

    def text(self, index: int) -> str | None:
        part = self.parts[index]
        text = None if isinstance(part, ImagePart) else part.get("text")
        return text if isinstance(text, str) else None

    def image(self, index: int) -> ImagePart | None:
        part = self.parts[index]
        return part if isinstance(part, ImagePart) else None

    def count(self, indices: Sequence[int]) -> tuple[int, int]:
        """How many of the parts are texts, and how many images."""
        texts = sum(self.text(index) is not None for index in indices)
        return texts, sum(self.image(index) is not None for index in indices)


def _key(part: Any) -> Hashable:
    if isinstance(part, list) and all(one is None or isinstance(one, str) for one in cast("list[Any]", part)):
        return tuple(cast("list[str | None]", part))
    return to_json(part)


class _Walk:
    """Goes through the parts that are not the same, run by run."""

    def __init__(self, old: _Side, new: _Side, patterns: Patterns, match: SlotMatch | None) -> None:
        self.old, self.new, self.patterns, self.match = old, new, patterns, match
        self.found = Comparison()

    def run(self) -> None:
        pairs = [*common(self.old.keys, self.new.keys), (len(self.old.keys), len(self.new.keys))]
        gaps: list[tuple[range, range]] = []
        one, two = 0, 0
        for left, right in pairs:
            gaps.append((range(one, left), range(two, right)))
            one, two = left + 1, right + 1
        moved_old, moved_new = self._moved(gaps)
        for olds, news in gaps:
            olds_left = [index for index in olds if index not in moved_old]
            news_left = [index for index in news if index not in moved_new]
            if olds_left or news_left:
                self._gap(olds_left, news_left, news.stop)

    def _moved(self, gaps: Sequence[tuple[range, range]]) -> tuple[set[int], set[int]]:
        """Parts that stand elsewhere in the new message. Each is reported where it is first missed or met."""
        missing: dict[Hashable, list[tuple[int, int]]] = {}
        for olds, news in gaps:
            for index in olds:
                place = min(news.start + index - olds.start, news.stop)
                missing.setdefault(self.old.keys[index], []).append((index, place))
        moved: tuple[set[int], set[int]] = set(), set()
        for _, news in gaps:
            for index in news:
                if places := missing.get(self.new.keys[index]):
                    was, place = places.pop(0)
                    what = "an image" if self.new.image(index) else "a part"
                    self._add(
                        "moved", "client_edit", min(place, index), f"{what} moved from part {was} to part {index}"
                    )
                    moved[0].add(was)
                    moved[1].add(index)
        return moved

    def _gap(self, olds: list[int], news: list[int], end: int) -> None:
        (old_texts, old_images), (new_texts, new_images) = self.old.count(olds), self.new.count(news)
        if old_images and new_texts == len(news) > 0 and self._flattened(olds, news):
            return
        spare_texts, spare_images = new_texts - old_texts, new_images - old_images
        labels = bool(old_images) and not news
        while olds or news:
            if not olds:
                self._inserted(news.pop(0))
            elif not news:
                self._removed(olds.pop(0), end, labels)
            elif (kind := self._kind(self.old, olds[0])) == (other := self._kind(self.new, news[0])):
                self._changed(olds.pop(0), news.pop(0))
            elif kind == "image" and other == "text" and spare_texts > 0 and self._is_short(news[0]):
                spare_texts -= 1
                olds.pop(0)
                self._add("changed", "client_window", news.pop(0), "an image was replaced by a text")
            elif kind == "text" and other == "image" and spare_images > 0:
                spare_images -= 1
                self._inserted(news.pop(0))
            elif kind == "other" or other != "other":
                self._removed(olds.pop(0), news[0], labels)
            else:
                self._inserted(news.pop(0))

    @staticmethod
    def _kind(side: _Side, index: int) -> str:
        return "image" if side.image(index) else "other" if side.text(index) is None else "text"

    def _is_short(self, index: int) -> bool:
        return len(self.new.text(index) or "") <= PLACEHOLDER_CHARACTERS

    def _flattened(self, olds: Sequence[int], news: Sequence[int]) -> bool:
        """Texts and images of the old message as one text, with or without short words for the images."""
        texts = [self.new.text(index) or "" for index in news]
        if not spells("\n".join(texts), [self.old.text(index) for index in olds]):
            return False
        first = self.old.text(olds[0])
        character = None if first is None else first_difference(first, texts[0])
        self._add("changed", "client_window", news[0], "an image was replaced by a text", character)
        return True

    def _changed(self, old: int, new: int) -> None:
        before, after = self.old.text(old), self.new.text(new)
        if before is not None and after is not None:
            self._found(text_finding(before, after, new, self.patterns))
            return
        one, two = self.old.image(old), self.new.image(new)
        if one is None or two is None:
            self._add("changed", "client_edit", new, "the part differs")
        elif one.ref.image_id == two.ref.image_id:
            self._add("changed", "client_edit", new, "the image's detail option differs")
        elif self.match is not None and _detail(one) == _detail(two) and self.match(one.ref, two.ref):
            self.found.matched.append((old, new))
        else:
            self._add("changed", "client_edit", new, "another image in its place")

    def _inserted(self, new: int) -> None:
        self._add("inserted", "client_edit", new, f"{self._noun(self.new, new)} was inserted")

    def _removed(self, old: int, place: int, labels: bool) -> None:
        text = self.old.text(old)
        # A short text that goes with its image is the image's label.
        window = self.old.image(old) or (labels and text is not None and len(text) <= PLACEHOLDER_CHARACTERS)
        cause = "client_window" if window else "client_edit"
        self._add("removed", cause, place, f"{self._noun(self.old, old)} was removed", gone=None if window else text)

    @staticmethod
    def _noun(side: _Side, index: int) -> str:
        return {"image": "an image", "text": "a text part", "other": "a part"}[_Walk._kind(side, index)]

    def _add(
        self,
        kind: DifferenceKind,
        cause: DifferenceCause,
        part: int,
        detail: str,
        character: int | None = None,
        gone: str | None = None,
    ) -> None:
        self._found(Finding(kind, cause, part, character, detail, gone))

    def _found(self, finding: Finding) -> None:
        if finding.cause == "client_edit":
            # What comes behind an edit is in no slot that was sent.
            self.match = None
        self.found.findings.append(finding)


def _detail(part: ImagePart) -> str | None:
    return None if part.detail == "auto" else part.detail


def _outside_content(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Finding]:
    """Differences in what is not content, all of them the client's edits."""
    for key in sorted((old.keys() | new.keys()) - {"content"}):
        before, after = old.get(key), new.get(key)
        if before == after and to_json(before) == to_json(after):
            continue
        if key == "tool_calls":
            detail = _calls_detail(before or [], after or [])
        elif key == "role" or key in _KNOWN_KEYS:
            detail = f"{key} {'was removed' if after is None else 'was inserted' if before is None else 'differs'}"
        else:
            detail = "another key of the message differs"
        yield Finding("changed", "client_edit", None, None, detail)


def _calls_detail(old: Sequence[Any], new: Sequence[Any]) -> str:
    for index, (before, after) in enumerate(zip(old, new, strict=False)):
        if to_json(before) == to_json(after):
            continue
        # A call that was read as one is [id, name, arguments, what else it held].
        if isinstance(before, list) and isinstance(after, list):
            named = zip(
                ("the id differs", "the name differs", "the arguments differ"),
                cast("list[Any]", before),
                cast("list[Any]", after),
                strict=False,
            )
            for words, one, two in named:
                if to_json(one) != to_json(two):
                    return f"tool_calls[{index}]: {words}"
        return f"tool_calls[{index}] differs"
    return "a tool call was removed" if len(old) > len(new) else "a tool call was inserted"
