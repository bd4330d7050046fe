"""Prompt tokens of messages for one model, corrected by what its engine reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

from pydantic_core import to_json

from context.estimates import SAID_KEYS
from context.plan import SentMessage
from context.tokens.calibration import Calibration
from context.tokens.texts import Budget, TextCounter
from context.tokens.visual import VisualRule
from context.transcript import ImagePart, parts_of

# <|im_start|>, the role, a newline; <|im_end|>, a newline. Other templates take about as many.
_MESSAGE_TOKENS = 5
# <tool_call>, {"name": "...", "arguments": ...}, </tool_call>, and newlines.
_CALL_TOKENS = 14
_SIZES = 4096
# Reports that are all taken in, and how many then go by for each that is.
_FIRST_REPORTS, _LATER_REPORTS = 32, 8
# Role and content are all that most messages have.
_PLAIN_KEYS = 2


class Estimator:
    """Estimates for one model. Called from one event loop; memory is bounded.

    Calibration changes numbers from then on: what headers say, and whether a high water is reached. It changes no
    decision that was made, for that stands in the sent form, which is replayed and never made anew. A plan asks for the
    same message more than once, and must hear the same: give it `frozen()`.

    Data of images is never counted: images are counted by their size. A text that holds a data URL is text.
    """

    def __init__(self, texts: TextCounter, rule: VisualRule) -> None:
        """`texts` may be shared by the estimators of one vocabulary."""
        self._texts = texts
        self._rule = rule
        self._marks = rule.marks
        self._image: Callable[[int, int], int] = lru_cache(maxsize=_SIZES)(rule.tokens)
        self._calibration = Calibration()
        self._reports = 0

    @property
    def calibration(self) -> Calibration:
        """What the engine's reports have taught."""
        return self._calibration

    def message_tokens(self, wire: Mapping[str, Any]) -> int:
        """Prompt tokens of a message as it is sent, by the factors of now."""
        return self.frozen()(wire)

    def uncorrected(self, wire: Mapping[str, Any]) -> tuple[int, int]:
        """Text and visual tokens of a message as it is sent, whatever engines have reported."""
        return self._parts(wire, self._texts.budget())

    def frozen(self) -> Callable[[Mapping[str, Any]], int]:
        """`message_tokens` with the factors of now, for one request.

        Of texts that were never seen, it counts some ten thousand characters and takes the rest by their bytes.
        """
        factors, budget, parts = self._calibration.factors, self._texts.budget(), self._parts
        of_text, of_images = factors.text, factors.visual

        def estimate(wire: Mapping[str, Any]) -> int:
            text, visual = parts(wire, budget)
            return round(text * of_text + visual * of_images)

        return estimate

    def observe(
        self,
        sent: Iterable[SentMessage],
        tools: Sequence[Mapping[str, Any]] | None,
        prompt_tokens: int,
        visual_tokens: int | None = None,
    ) -> None:
        """Learn from what the engine says of a prompt.

        Nothing is learned from a prompt that has more new text than a request may have counted, nor, after the first
        reports, from most: they cost as much as an estimate of the whole.

        Args:
            sent, tools: the prompt, its tail included.
            prompt_tokens: what the engine counted.
            visual_tokens: how many of them were images; None where it does not say.
        """
        self._reports += 1
        if self._reports > _FIRST_REPORTS and self._reports % _LATER_REPORTS:
            return
        budget = self._texts.budget()
        text = visual = 0
        for one in sent:
            more = self._parts(one.wire, budget)
            text, visual = text + more[0], visual + more[1]
        text += sum(self._texts.tokens(_json(tool), budget) for tool in tools or ())
        if budget.chars > 0:
            self._calibration.observe(text, visual, prompt_tokens, visual_tokens)

    def _parts(self, wire: Mapping[str, Any], budget: Budget) -> tuple[int, int]:
        """Text and visual tokens of a message, not corrected."""
        content, count = wire.get("content"), self._texts.tokens
        if isinstance(content, str) and len(wire) == _PLAIN_KEYS:
            return _MESSAGE_TOKENS + count(content, budget), 0
        text, visual = _MESSAGE_TOKENS, 0
        for part in parts_of(wire):
            if isinstance(part, ImagePart):
                text += self._marks
                visual += self._image(part.ref.width, part.ref.height)
                continue
            for key, value in part.items():
                if isinstance(value, str) and key != "type":
                    text += count(value, budget)
        for key in SAID_KEYS:
            if isinstance(said := wire.get(key), str):
                text += count(said, budget)
        for call in wire.get("tool_calls") or ():
            text += _CALL_TOKENS
            for one in _texts_of(call):
                text += count(one, budget)
        return text, visual


def _texts_of(call: Any) -> tuple[str, ...]:
    """What a prompt holds of a tool call: its name and arguments; the whole where it has another shape."""
    function: Any = cast("dict[str, Any]", call).get("function") if isinstance(call, dict) else None
    if isinstance(function, dict):
        named = cast("dict[str, Any]", function)
        name, arguments = named.get("name"), named.get("arguments")
        if isinstance(name, str) and isinstance(arguments, str):
            return name, arguments
    return (_json(call),)


def _json(value: Any) -> str:
    return to_json(value).decode()
