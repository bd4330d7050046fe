"""T1: a GUI agent, one screenshot a step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from metrics.replay.material import Draft, Part, Picture, Shown, words
from metrics.replay.options import Options
from metrics.replay.session import Step, build
from metrics.replay.trace import Trace
from metrics.replay.windows import window

DEFAULTS = {"steps": "60", "window": "all", "images": "1", "calls": "on", "time": "off"}
_SAME_EVERY, _CALLS_EVERY = 7, 20
_TOOLS = ("click", "type", "scroll", "wait")


def make(options: Options) -> Trace:
    """The session. Every 7th screenshot equals the one before: nothing had happened."""
    count, images, seed = options.number("steps"), options.number("images", most=4), options.seed
    head = [
        Draft("system", (words(options.tokens(2_300), seed, "system"),)),
        Draft("user", (words(options.tokens(120), seed, "task"),)),
    ]
    calling = {
        step for step in range(_CALLS_EVERY, count, _CALLS_EVERY) if options.switch("calls") and step < 3 * _CALLS_EVERY
    }
    steps = [
        Step(_asked(options, step, images, called=step - 1 in calling), _reply(options, step, calls=step in calling))
        for step in range(1, count + 1)
    ]
    if options.switch("time"):
        cut = window(options.text("window"), "trace t1")
        return build(
            "t1", head, steps, lambda number, whole: _timed(number, cut(number, whole)), lambda _: tools(options)
        )
    return build("t1", head, steps, window(options.text("window"), "trace t1"), lambda _: tools(options))


def tools(options: Options) -> tuple[dict[str, Any], ...]:
    """The agent's tools."""
    return tuple(tool(name, options.tokens(60), options.seed) for name in _TOOLS)


def tool(name: str, description_tokens: int, seed: str) -> dict[str, Any]:
    """A tool with two parameters."""
    properties = {"target": {"type": "string"}, "amount": {"type": "integer"}}
    parameters = {"type": "object", "properties": properties, "required": ["target"]}
    described = words(description_tokens, seed, name)
    return {"type": "function", "function": {"name": name, "description": described, "parameters": parameters}}


def call(identity: str, name: str, arguments: str) -> dict[str, Any]:
    """A call of a tool."""
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def _asked(options: Options, step: int, images: int, *, called: bool) -> tuple[Draft, ...]:
    width, height = options.size(1280, 800)
    # A screenshot is named after the step that first showed it.
    shot = step - 1 if step % _SAME_EVERY == 0 else step
    parts: list[Part] = [words(options.tokens(40), options.seed, "step", step)]
    parts += [Shown(Picture(f"{options.seed}-t1-{shot}-{image}", width, height)) for image in range(images)]
    results = [
        Draft(
            "tool", (words(options.tokens(20), options.seed, "result", step, at),), {"tool_call_id": _id(step - 1, at)}
        )
        for at in (0, 1)
        if called
    ]
    return (*results, Draft("user", tuple(parts)))


def _reply(options: Options, step: int, *, calls: bool) -> Draft:
    said = words(options.tokens(120), options.seed, "reply", step)
    if not calls:
        return Draft("assistant", (said,))
    arguments = [json.dumps({"target": "icon", "amount": step + at}) for at in (0, 1)]
    made = [call(_id(step, at), _TOOLS[at], arguments[at]) for at in (0, 1)]
    return Draft("assistant", (said,), {"tool_calls": made})


def _id(step: int, at: int) -> str:
    return f"call_{step}_{at}"


def _timed(number: int, shown: Sequence[Draft]) -> list[Draft]:
    clock = f"Time now: 2026-11-05 12:{number // 6:02}:{number % 6 * 10 + 3:02}\n"
    return [replace(shown[0], content=(clock + str(shown[0].content[0]),)), *shown[1:]]
