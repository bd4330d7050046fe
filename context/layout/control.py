"""A model's control tokens, typed in text.

A tokenizer makes the special token of `<|image_pad|>` wherever these characters stand. In a user's text they would
forge a turn, or stand for an image that is not there, which has brought workers down (CVE-2026-44222).

A space goes in behind the first character: `< |image_pad|>`. Special tokens are matched letter by letter, so the text
is cut into ordinary tokens; a reader still sees what was written; and unlike a full-width form or a zero-width
character the space survives a tokenizer's Unicode normalization (NFKC would turn the former back, strippers of
invisible characters the latter). It is added at every place where a token starts, and no token holds a space, so the
result holds none: a second run changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, cast

from pydantic_core import from_json, to_json

from context.errors import ConfigError

_CHATML = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
_LLAMA = ("<s>", "</s>", "<unk>", "<pad>")
# Only what frames a message or stands for a payload. Markers that users and models write on purpose are left alone:
# grounding (<|box_start|>, <|object_ref_start|>), fill-in-the-middle, <think>, <tool_call>. Nor is `<image>` a token
# of every model: in most texts it is markup.
FAMILIES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "qwen_vl": (
            *_CHATML,
            "<|vision_start|>",
            "<|vision_end|>",
            "<|vision_pad|>",
            "<|image_pad|>",
            "<|video_pad|>",
        ),
        "llava": (*_LLAMA, "<image>", "<video>"),
        "llava_onevision": (*_CHATML, "<image>", "<video>"),
        "smolvlm": (
            *_CHATML,
            "<image>",
            "<fake_token_around_image>",
            "<global-img>",
            "<end_of_utterance>",
            *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
        ),
    }
)
_CALL_KEYS = ("tool_calls", "function_call")
_PART_TEXTS = ("text", "refusal")


@dataclass(frozen=True, slots=True)
class ControlTokens:
    """Tokens to look for; made by `control_tokens`."""

    tokens: tuple[str, ...]
    starts: re.Pattern[str] = field(repr=False)

    def in_text(self, text: str) -> bool:
        """Whether any of them stands in the text."""
        return any(token in text for token in self.tokens)


def control_tokens(tokens: Iterable[str], *, where: str = "policy", key: str = "control_tokens") -> ControlTokens:
    """A set of tokens, such as `FAMILIES["qwen_vl"]` or all special tokens of a tokenizer.

    Raises:
        ConfigError: a token that a space cannot break: shorter than two characters, or with white space in it.
    """
    chosen = tuple(dict.fromkeys(tokens))
    for token in chosen:
        if len(token) < 2 or re.search(r"\s", token):
            raise ConfigError(
                where,
                key,
                f"{token!r} can't be neutralized. Name tokens of two or more characters without white space.",
            )
    # Lookahead: one character is consumed at a time, so that tokens which overlap are all found. (?!) finds nothing.
    alternatives = "|".join(map(re.escape, chosen)) or "(?!)"
    return ControlTokens(chosen, re.compile(f"(?=(?:{alternatives}))."))


DEFAULT_TOKENS = control_tokens(FAMILIES["qwen_vl"])


def neutralize(text: str, tokens: ControlTokens = DEFAULT_TOKENS) -> str:
    """The text without control tokens; the same object when it holds none."""
    return tokens.starts.sub(r"\g<0> ", text) if tokens.in_text(text) else text


def neutralize_value(value: Any, tokens: ControlTokens = DEFAULT_TOKENS) -> Any:
    """A JSON value, such as tool definitions, without control tokens in its strings and keys."""
    if isinstance(value, str):
        return neutralize(value, tokens)
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value).items()
        return {neutralize(key, tokens): neutralize_value(one, tokens) for key, one in items}
    if isinstance(value, list):
        return [neutralize_value(one, tokens) for one in cast("list[Any]", value)]
    return value


def neutralize_message(
    wire: Mapping[str, Any], tokens: ControlTokens = DEFAULT_TOKENS
) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """A message of any role without control tokens in anything that a template may show: its texts, names and ids, the
    arguments of its calls, and keys that are not known here. Nothing is mutated.

    Text parts that stand side by side are read as one text, for a template joins them: half a token in each is a
    token.

    Args:
        wire: the message. Its role is looked at elsewhere.
        tokens: what to look for.

    Returns:
        The message, the same object when nothing was found; and the places in it that changed, such as `content[1]`.
    """
    made: dict[str, Any] = {}
    changed: list[str] = []
    for key, value in wire.items():
        if key == "content" and isinstance(value, list):
            parts, places = _neutralize_parts(cast("list[Any]", value), tokens)
            if places:
                made[key] = parts
                changed += [f"content[{index}]" for index in places]
        elif key != "role":
            clean = _neutralize_calls(value, tokens) if key in _CALL_KEYS else neutralize_value(value, tokens)
            if clean != value:
                made[key] = clean
                changed.append(key)
    return ({**wire, **made} if changed else wire), tuple(changed)


def _neutralize_parts(parts: Sequence[Any], tokens: ControlTokens) -> tuple[list[Any], list[int]]:
    """The parts, and the indices of those that changed."""
    made = list(parts)
    changed: list[int] = []
    run: list[int] = []
    for index in range(len(parts) + 1):
        if index < len(parts) and _text_key(parts[index]):
            run.append(index)
            continue
        texts = [cast("str", parts[at][_text_key(parts[at])]) for at in run]
        for at, text, clean in zip(run, texts, _neutralize_run(texts, tokens), strict=True):
            if clean != text:
                made[at] = {**parts[at], _text_key(parts[at]): clean}
                changed.append(at)
        run = []
    return made, changed


def _neutralize_run(texts: Sequence[str], tokens: ControlTokens) -> list[str]:
    """Texts that follow each other directly. A space goes where its token starts, whichever text that is."""
    joined = "".join(texts)
    if not tokens.in_text(joined):
        return list(texts)
    starts = [match.start() for match in tokens.starts.finditer(joined)]
    made: list[str] = []
    offset = done = 0
    for text in texts:
        pieces: list[str] = []
        taken = 0
        while done < len(starts) and starts[done] < offset + len(text):
            end = starts[done] - offset + 1
            pieces.append(text[taken:end])
            taken, done = end, done + 1
        made.append(" ".join([*pieces, text[taken:]]))
        offset += len(text)
    return made


def _text_key(part: Any) -> str:
    """The key of a part's text; empty for a part that has none."""
    if not isinstance(part, Mapping):
        return ""
    return next((key for key in _PART_TEXTS if isinstance(cast("Mapping[str, Any]", part).get(key), str)), "")


def _neutralize_calls(calls: Any, tokens: ControlTokens) -> Any:
    """Calls with their arguments read as JSON: an engine does so too, and `\\u003c|` is `<|` to it."""
    if isinstance(calls, list):
        return [_neutralize_calls(call, tokens) for call in cast("list[Any]", calls)]
    if not isinstance(calls, Mapping):
        return calls
    return {
        key: _neutralize_arguments(one, tokens)
        if key == "arguments" and isinstance(one, str)
        else _neutralize_calls(one, tokens)
        if key == "function"
        else neutralize_value(one, tokens)
        for key, one in cast("Mapping[str, Any]", calls).items()
    }


def _neutralize_arguments(arguments: str, tokens: ControlTokens) -> str:
    try:
        value = from_json(arguments, allow_inf_nan=False)
    except ValueError:
        return neutralize(arguments, tokens)
    clean = neutralize_value(value, tokens)
    return to_json(clean).decode() if clean != value else arguments
