"""T6: a long agent whose client shuffles its tools, rewrites old calls, and sums up twice."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from metrics.replay.material import Draft, Picture, Shown, words
from metrics.replay.options import Options
from metrics.replay.session import Step, build
from metrics.replay.t1 import call, tool
from metrics.replay.trace import Trace

DEFAULTS = {"events": "180", "compact": "on", "time": "off", "info": "off"}
_TOOLS = 14
_SCREENSHOT_EVERY = 5
_PHOTO, _SHUFFLED, _PERMUTED, _COMPACTED = 3, 60, 75, (100, 150)
# Of the past, in turns; what is older goes into the summary.
_KEPT_OF_PAST = 25
_SUMMARY_TOKENS = 700


def make(options: Options) -> Trace:
    """The session. The user's photo of turn 3 stays through both summaries."""
    seed, count = options.seed, options.number("events")
    head = [
        Draft("system", (words(options.tokens(900), seed, "system"),)),
        Draft("user", (words(options.tokens(120), seed, "task"),)),
    ]
    steps = [Step(_new(options, number), _reply(options, number)) for number in range(1, count + 1)]
    known = [tool(f"tool_{at:02}", options.tokens(60), seed) for at in range(_TOOLS)]
    shuffled = random.Random(f"{seed}-t6-tools").sample(known, _TOOLS)  # noqa: S311
    does_compact, is_timed, has_info = (options.switch(key) for key in ("compact", "time", "info"))

    def view(number: int, whole: Sequence[Draft]) -> list[Draft]:
        shown = _compacted(options, number, whole) if does_compact else list(whole)
        if number >= _PERMUTED:
            shown = [_permuted(draft) if draft.step < number else draft for draft in shown]
        if is_timed:
            clock = f"Time: 2026-11-05T12:{number // 60:02}:{number % 60:02}.{number * 37 % 1000:03}Z\n"
            shown[0] = replace(shown[0], content=(clock + str(shown[0].content[0]),))
        if has_info:
            info = f"<info-msg> {words(options.tokens(20), seed, 'info', number)} </info-msg>"
            shown[-1] = replace(shown[-1], content=(*shown[-1].content, info))
        return shown

    return build("t6", head, steps, view, lambda number: shuffled if number >= _SHUFFLED else known)


def _new(options: Options, number: int) -> tuple[Draft, ...]:
    """The result of the call before, now and then with a screenshot; in one turn a user's photo."""
    seed = options.seed
    made: list[Draft] = []
    if number > 1:
        chance = random.Random(f"{seed}-t6-{number}")  # noqa: S311
        length = round(50 * math.exp(chance.random() * math.log(40)))
        result = words(options.tokens(length), seed, "result", number)
        made.append(Draft("tool", (result,), {"tool_call_id": f"call_{number - 1}"}))
    if number == _PHOTO:
        photo = Shown(Picture(f"{seed}-t6-photo", *options.size(1280, 800)), "jpeg")
        made.append(Draft("user", (words(options.tokens(30), seed, "photo"), photo)))
    elif number % _SCREENSHOT_EVERY == 0:
        shot = Shown(Picture(f"{seed}-t6-{number}", *options.size(1280, 800)))
        made.append(Draft("user", (words(options.tokens(10), seed, "shot", number), shot)))
    elif number == 1:
        made.append(Draft("user", (words(options.tokens(20), seed, "begin"),)))
    return tuple(made)


def _reply(options: Options, number: int) -> Draft:
    said = words(options.tokens(40), options.seed, "reply", number)
    arguments = json.dumps({"target": f"row {number}", "amount": number})
    made = call(f"call_{number}", f"tool_{number % _TOOLS:02}", arguments)
    return Draft("assistant", (said,), {"tool_calls": [made]})


def _compacted(options: Options, number: int, whole: Sequence[Draft]) -> list[Draft]:
    """Without what went into the summary. A call and its result, which comes a turn later, stay together."""
    at = max((turn for turn in _COMPACTED if turn <= number), default=0)
    if not at:
        return list(whole)
    first = at - _KEPT_OF_PAST
    head = [draft for draft in whole if draft.step < 0]
    pinned = [draft for draft in whole if draft.step == _PHOTO and draft.role == "user"]
    summary = Draft("user", (f"Summary: {words(options.tokens(_SUMMARY_TOKENS), options.seed, 'summary', at)}",))
    rest = [
        draft
        for draft in whole
        if draft.step > first or (draft.step == first and draft.role == "assistant" and draft.extra)
    ]
    return [*head, *pinned, summary, *rest]


def _permuted(draft: Draft) -> Draft:
    calls: Sequence[dict[str, Any]] = draft.extra.get("tool_calls", ())
    if not calls:
        return draft
    turned = [
        {**one, "function": {**one["function"], "arguments": _turned(one["function"]["arguments"])}} for one in calls
    ]
    return replace(draft, extra={**draft.extra, "tool_calls": turned})


def _turned(arguments: str) -> str:
    return json.dumps(dict(reversed(json.loads(arguments).items())), separators=(",", ":"))
