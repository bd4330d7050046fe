"""What the fake engine says: a script, an echo, a tool call, or words that follow from the prompt.

The same prompt always gets the same answer, so that a replayed conversation stays block for block the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, cast

from engine.fake.config import FakeConfig
from engine.fake.errors import Refused, is_object
from engine.fake.sequence import FinishReason
from engine.fake.tokenizer import Tokenizer

_WORDS = (
    "amber",
    "basin",
    "cedar",
    "delta",
    "ember",
    "fjord",
    "grove",
    "harbor",
    "island",
    "juniper",
    "kelp",
    "lagoon",
    "meadow",
    "nectar",
    "ocean",
    "pebble",
    "quarry",
    "ridge",
    "sable",
    "timber",
    "umber",
    "valley",
    "willow",
    "zephyr",
)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function call; `arguments` is JSON text."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Answer:
    """One choice, planned whole: `tokens` in their order and the text that each adds (`texts`, as long).

    `stop_reason` is the stop string or token that ended it. With a `call`, the texts are not shown.
    """

    tokens: list[int]
    texts: list[str]
    reason: FinishReason
    stop_reason: str | int | None = None
    call: ToolCall | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request says about the length of its answer."""

    max_tokens: int
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()
    keep_stop: bool = False
    ignore_end: bool = False


def limits(body: Mapping[str, Any], room_tokens: int) -> Limits:
    """Read a request's limits; `room_tokens` is what the prompt leaves of the context.

    Source: vLLM 0.32, entrypoints/serve/utils/api_utils.py::get_max_tokens, sampling_params.py::SamplingParams.

    Raises:
        Refused: a limit is impossible.
    """
    asked = body.get("max_completion_tokens")
    asked = body.get("max_tokens") if asked is None else asked
    if asked is not None and (not isinstance(asked, int) or isinstance(asked, bool)):
        raise Refused("max_tokens: Input should be a valid integer", param="body.max_tokens", type="Bad Request")
    allowed = room_tokens if asked is None else min(asked, room_tokens)
    if allowed < 1:
        raise Refused(f"max_tokens must be at least 1, got {allowed}.", param="max_tokens")
    stop: Any = body.get("stop") or ()
    return Limits(
        max_tokens=allowed,
        min_tokens=body.get("min_tokens") or 0,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_tokens=tuple(body.get("stop_token_ids") or ()),
        keep_stop=bool(body.get("include_stop_str_in_output")),
        ignore_end=bool(body.get("ignore_eos")),
    )


def answer_text(config: FakeConfig, body: Mapping[str, Any], seed: bytes, turn: int) -> str | None:
    """The text to say, or None where nothing but the prompt decides."""
    if config.script:
        return config.script[turn % len(config.script)]
    if not config.echo:
        return None
    for message in reversed(body["messages"]):
        if message.get("role") == "user":
            content = message.get("content")
            given = cast("list[Any]", [content] if isinstance(content, str) else content or [])
            texts = [part if isinstance(part, str) else part.get("text") for part in given]
            return "\n".join(str(text) for text in texts if text)
    return ""


def tool_call(config: FakeConfig, body: Mapping[str, Any]) -> ToolCall | None:
    """The call to make: when the request demands one, or offers tools and the configuration says so."""
    tools: Sequence[Mapping[str, Any]] = body.get("tools") or ()
    choice: Any = body.get("tool_choice", "auto" if tools else "none")
    if not tools or choice in ("none", None) or (choice == "auto" and not config.tool_calls):
        return None
    function = cast("Mapping[str, Any]", tools[0]["function"])
    if isinstance(choice, Mapping):
        name = cast("Mapping[str, Any]", choice).get("function", {}).get("name")
        function = next((tool["function"] for tool in tools if tool["function"]["name"] == name), None)
        if function is None:
            message = "The tool specified in `tool_choice` does not match any of the specified `tools`"
            raise Refused(message, param="tool_choice")
    parameters: Mapping[str, Any] = function.get("parameters") or {}
    properties, required = parameters.get("properties"), parameters.get("required")
    # A schema is a client's JSON: nobody has said that it is one.
    known: Mapping[str, Any] = properties if is_object(properties) else {}
    keys = [key for key in cast("list[Any]", required) if isinstance(key, str)] if isinstance(required, list) else []
    arguments = {key: _sample(known.get(key)) for key in keys}
    return ToolCall(function["name"], json.dumps(arguments))


def _sample(schema: Any) -> Any:
    given: Mapping[str, Any] = schema if is_object(schema) else {}
    choices, kind = given.get("enum"), given.get("type", "string")
    if isinstance(choices, list) and choices:
        return cast("list[Any]", choices)[0]
    samples: dict[str, Any] = {"integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}, "null": None}
    return samples.get(kind, "amber") if isinstance(kind, str) else "amber"


def plan_answer(
    config: FakeConfig, tokenizer: Tokenizer, body: Mapping[str, Any], bounds: Limits, prompt: bytes, turn: int
) -> Answer:
    """Plan one choice. `prompt` is a digest of the prompt, different for each choice of a request."""
    call = tool_call(config, body)
    if call is not None:
        text = f'<tool_call>\n{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}\n</tool_call>'
    else:
        text = answer_text(config, body, prompt, turn)
    wanted = tokenizer.encode(_words(prompt, config.answer_tokens) if text is None else text)
    wanted = wanted[: config.answer_tokens] if text is None else wanted
    natural = len(wanted)
    target = bounds.max_tokens if bounds.ignore_end else bounds.min_tokens
    if natural < target:
        filler = wanted or [tokenizer.end_token]
        wanted = (filler * (target // len(filler) + 1))[:target]
    tokens = wanted if bounds.ignore_end else [*wanted, tokenizer.end_token]
    # vLLM looks for the end token before it counts: an answer that just fits has stopped by itself.
    fits = len(tokens) <= bounds.max_tokens and not bounds.ignore_end
    tokens, reason = tokens[: bounds.max_tokens], _reason(fits)
    answer = Answer(tokens, tokenizer.decode_each(tokens), reason, call=call)
    return _stopped(answer, bounds)


def _reason(stopped: bool) -> FinishReason:
    return "stop" if stopped else "length"


def _words(seed: bytes, count: int) -> str:
    digest = blake2b(seed, digest_size=64).digest()
    return " ".join(_WORDS[digest[at % 64] % len(_WORDS)] for at in range(count))


def _stopped(answer: Answer, bounds: Limits) -> Answer:
    """Cut the answer after the token that completes a stop string, or at a stop token."""
    shown = ""
    for number, (token, text) in enumerate(zip(answer.tokens, answer.texts, strict=True)):
        shown += text
        if number + 1 <= bounds.min_tokens:
            continue
        tokens, texts = answer.tokens[: number + 1], answer.texts[: number + 1]
        if token in bounds.stop_tokens:
            texts[-1] = text if bounds.keep_stop else ""
            return Answer(tokens, texts, "stop", token, answer.call)
        found = [(shown.find(stop), stop) for stop in bounds.stop if stop and stop in shown]
        if found:
            at, stop = min(found)
            end = at + len(stop) if bounds.keep_stop else at
            return Answer(tokens, _cut_texts(texts, end), "stop", stop, answer.call)
    return answer


def _cut_texts(texts: list[str], end: int) -> list[str]:
    kept: list[str] = []
    for text in texts:
        kept.append(text[: max(0, end)])
        end -= len(text)
    return kept
