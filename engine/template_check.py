"""What a model's chat template does to the caches and to images, asked once through the engine's `/tokenize`.

Nothing is generated. An engine without that route leaves everything unknown.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pydantic_core import from_json, to_json

from context.errors import EngineError, RequestError
from context.images.png import write_png
from engine.base import Engine

_MAX_ANSWER_BYTES = 1024 * 1024
_JSON = {"content-type": "application/json"}
_SIDE = 56


@dataclass(frozen=True, slots=True)
class TemplateFindings:
    """What was found out; None where it could not be.

    Attributes:
        extends: the prompt of a turn begins with the prompt of the turn before it. Where it does not, the prefix cache
            is lost from the last reply on in every turn, whatever is sent.
        system_images, tool_images: images in system messages and in tool results are shown to the model.
    """

    extends: bool | None = None
    system_images: bool | None = None
    tool_images: bool | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What somebody should know, with the remedy."""
        found: list[str] = []
        if self.extends is False:
            found.append(
                "the chat template writes the last turn in another way than history, so that no prompt begins with the "
                "one before; look for an option of the template that keeps history as it was, such as preserve_thinking"
            )
        if self.tool_images is False:
            found.append("images in tool results do not reach the model; use a policy with layout.tool_images: hoist")
        return tuple(found)


async def check_template(engine: Engine) -> TemplateFindings:
    """Ask an engine that is ready. Never fails."""
    info = engine.info()
    if not info.models:
        return TemplateFindings()
    try:
        return TemplateFindings(
            await _extends(engine, info.models[0]),
            await _shows(engine, info.models[0], _in_system),
            await _shows(engine, info.models[0], _in_result),
        )
    except (EngineError, RequestError):
        return TemplateFindings()


async def _extends(engine: Engine, model: str) -> bool | None:
    head = [{"role": "user", "content": "one"}]
    reply = {"role": "assistant", "content": "two"}
    asked = await _tokens(engine, model, head)
    later = await _tokens(engine, model, [*head, reply, {"role": "user", "content": "three"}])
    if asked is None or later is None:
        return None
    return later[: len(asked)] == asked


async def _shows(engine: Engine, model: str, place: Any) -> bool | None:
    """Whether an image costs tokens there, where it costs some in a user's message."""
    text: Sequence[Any] = [{"type": "text", "text": "see"}]
    with_image = [*text, _picture()]
    plain = await _tokens(engine, model, place(text, text))
    of_user = await _tokens(engine, model, place(text, with_image))
    if plain is None or of_user is None or len(of_user) == len(plain):
        return None
    there = await _tokens(engine, model, place(with_image, text))
    # A placeholder's own marks are a few tokens more or less from role to role.
    return there is not None and 2 * (len(there) - len(plain)) >= len(of_user) - len(plain)


def _in_system(there: Sequence[Any], of_user: Sequence[Any]) -> list[Any]:
    return [{"role": "system", "content": there}, {"role": "user", "content": of_user}]


def _in_result(there: Sequence[Any], of_user: Sequence[Any]) -> list[Any]:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    return [
        {"role": "user", "content": of_user},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": there},
    ]


def _picture() -> Mapping[str, Any]:
    data = write_png(_SIDE, _SIDE, [b"\x80" * (3 * _SIDE * _SIDE)])
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(data).decode()}"}}


async def _tokens(engine: Engine, model: str, messages: Sequence[Any]) -> list[Any] | None:
    """A prompt's tokens; None where the engine does not say."""
    body = to_json({"model": model, "messages": messages, "add_generation_prompt": True})
    async with engine.forward("POST", "/tokenize", headers=_JSON, body=[body]) as reply:
        if reply.status != 200:
            return None
        try:
            answer: Any = from_json(await reply.read(_MAX_ANSWER_BYTES))
        except ValueError:
            return None
    tokens: Any = cast("dict[str, Any]", answer).get("tokens") if isinstance(answer, dict) else None
    return cast("list[Any]", tokens) if isinstance(tokens, list) else None
