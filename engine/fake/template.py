"""A chat to the text of a prompt: OpenAI's messages to a template's, and two templates.

Source: vLLM 0.32, renderers/chat_utils.py::_parse_chat_message_content, _postprocess_messages and
_get_full_multimodal_text_prompt, renderers/hf.py::_detect_content_format; transformers 5,
utils/chat_template_utils.py::_cached_compile_jinja_template.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import NoneType
from typing import Any, NoReturn, Protocol, cast

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from context.errors import ConfigError
from engine.fake.errors import Refused, invalid, is_object
from engine.fake.processor import ImagePart

PLACEHOLDER = "<|vision_start|><|image_pad|><|vision_end|>"
_TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal", "thinking"})
_ITERATES_CONTENT = re.compile(r"for\s+\w+\s+in\s+[\w.]+(\.content|\[['\"]content['\"]\])")

Conversation = list[dict[str, Any]]


class Template(Protocol):
    """Renders a conversation. `wraps_parts` says whether it takes content as a list of parts or as one text."""

    @property
    def wraps_parts(self) -> bool: ...

    def render(self, conversation: Conversation, tools: list[dict[str, Any]] | None, options: Mapping[str, Any]) -> str:
        """The prompt's text, with one placeholder for each image.

        Raises:
            Refused: the template cannot render this.
        """
        ...


class ChatMLTemplate:
    """The built-in template, in Qwen's form."""

    wraps_parts = True

    def render(self, conversation: Conversation, tools: list[dict[str, Any]] | None, options: Mapping[str, Any]) -> str:
        """See `Template.render`."""
        out: list[str] = []
        if tools:
            system = conversation[0] if conversation and conversation[0]["role"] == "system" else None
            conversation = conversation[1:] if system else conversation
            described = "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in tools)
            first = _text(system["content"]) + "\n\n" if system else ""
            out.append(f"<|im_start|>system\n{first}# Tools\n<tools>{described}\n</tools><|im_end|>\n")
        for message in conversation:
            calls = "".join(
                f"\n<tool_call>\n{json.dumps(call['function'], ensure_ascii=False)}\n</tool_call>"
                for call in message.get("tool_calls", ())
            )
            text = _text(message["content"])
            if message["role"] == "tool":
                text = f"<tool_response>\n{text}\n</tool_response>"
            out.append(f"<|im_start|>{message['role']}\n{text}{calls}<|im_end|>\n")
        if options.get("add_generation_prompt", True):
            out.append("<|im_start|>assistant\n")
        return "".join(out)


def _text(content: str | list[dict[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return "".join(part["text"] if part["type"] == "text" else PLACEHOLDER for part in content)


class CheckpointTemplate:
    """A checkpoint's own jinja template, run in a sandbox.

    Raises:
        ConfigError: the folder has no chat template, or it is not valid jinja.
    """

    def __init__(self, folder: Path) -> None:
        source = _template_source(folder)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        functions = cast("dict[str, Any]", environment.globals)
        functions |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ConfigError("fake engine", "checkpoint", "its chat template is not valid jinja") from error
        self.wraps_parts = _ITERATES_CONTENT.search(source) is not None

    def render(self, conversation: Conversation, tools: list[dict[str, Any]] | None, options: Mapping[str, Any]) -> str:
        """See `Template.render`."""
        try:
            return self._template.render(messages=conversation, tools=tools, **options)
        except jinja2.TemplateError as error:
            raise Refused("The chat template cannot render these messages.") from error


def _template_source(folder: Path) -> str:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text()
    settings = folder / "tokenizer_config.json"
    source = json.loads(settings.read_text()).get("chat_template") if settings.is_file() else None
    if not isinstance(source, str):
        raise ConfigError("fake engine", "checkpoint", "the folder holds no chat template")
    return source


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def parse_tools(tools: Sequence[Any] | None) -> list[dict[str, Any]] | None:
    """Tools as vLLM gives them to a template: known keys only, in its order, with null for what was left out.

    Raises:
        Refused: there are none, or one is no tool.
    """
    if tools is None:
        return None
    if not tools:
        message = "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely."
        raise Refused(message, param="tools")
    parsed: list[dict[str, Any]] = []
    for tool in tools:
        if not is_object(tool):
            raise invalid("Input should be a valid dictionary", "body.tools")
        known = tool.get("function")
        if not is_object(known) or not isinstance(known.get("name"), str):
            raise invalid("Field required: function.name", "body.tools")
        if not isinstance(known.get("parameters"), (Mapping, NoneType)):
            raise invalid("function.parameters: Input should be a valid dictionary", "body.tools")
        shown = {key: known.get(key) for key in ("name", "description", "parameters")}
        optional = {key: known[key] for key in ("strict", "defer_loading") if known.get(key) is not None}
        parsed.append({"type": "function", "function": shown | optional})
    return parsed


def parse_messages(messages: Sequence[Any], *, wraps_parts: bool) -> tuple[Conversation, list[ImagePart]]:
    """Messages as vLLM gives them to a template, and the images in their order.

    Raises:
        Refused: a message or a part is not what OpenAI's protocol says.
    """
    images: list[ImagePart] = []
    conversation: Conversation = []
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(cast("Mapping[str, Any]", message).get("role"), str):
            raise invalid("Field required: role", f"body.messages.{number}.role")
        conversation.append(_message(cast("Mapping[str, Any]", message), images, wraps_parts))
    return conversation, images


def _message(message: Mapping[str, Any], images: list[ImagePart], wraps_parts: bool) -> dict[str, Any]:
    role = "system" if message["role"] == "developer" else message["role"]
    content = message.get("content")
    if content is not None and not isinstance(content, (str, list)):
        raise invalid("content: Input should be a valid string or list", "body.messages")
    given: list[Any] = [] if content is None else [content] if isinstance(content, str) else cast("list[Any]", content)
    already = len(images)
    parts = [part for part in (_part(part, images) for part in given) if part is not None]
    shown: dict[str, Any] = {"role": role, "content": parts if wraps_parts else _joined(parts, len(images) - already)}
    if role == "assistant" and (calls := message.get("tool_calls")):
        if not isinstance(calls, list):
            raise invalid("tool_calls: Input should be a valid list", "body.messages")
        shown["tool_calls"] = [_tool_call(call) for call in cast("list[Any]", calls)]
    if role == "tool":
        if "tool_call_id" in message:
            shown["tool_call_id"] = message["tool_call_id"]
        if wraps_parts and all(part["type"] == "text" for part in parts):
            shown["content"] = "\n".join(part["text"] for part in parts)
    if isinstance(message.get("name"), str):
        shown["name"] = message["name"]
    return shown


def _joined(parts: list[dict[str, Any]], images: int) -> str:
    texts = "\n".join(part["text"] for part in parts if part["type"] == "text")
    return "\n".join([PLACEHOLDER] * images + ([texts] if texts else []))


def _part(part: Any, images: list[ImagePart]) -> dict[str, Any] | None:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, Mapping):
        raise invalid("Input should be a valid dictionary", "body.messages")
    given = cast("Mapping[str, Any]", part)
    kind, uuid = given.get("type"), given.get("uuid")
    if kind is not None and not isinstance(kind, str):
        raise invalid("type: Input should be a valid string", "body.messages")
    if kind in _TEXT_PARTS and uuid is None:
        text = given.get("thinking" if kind == "thinking" else "refusal" if kind == "refusal" else "text")
        return None if text is None else {"type": "text", "text": str(text)}
    if "image_url" not in given:
        raise Refused(f"Unsupported chat content part type: {kind!r}.", param="type")
    url = given["image_url"]
    url = cast("Mapping[str, Any]", url).get("url") if isinstance(url, Mapping) else url
    if url is None and uuid is None:
        raise invalid("image_url.url: Input should be a valid string", "body.messages")
    images.append(ImagePart(None if uuid is None else str(uuid), None if url is None else str(url)))
    return {"type": "image"}


def _tool_call(call: Any) -> dict[str, Any]:
    if not is_object(call):
        raise invalid("tool_calls: Input should be a valid dictionary", "body.messages")
    function = call.get("function")
    if call.get("type", "function") != "function" or not is_object(function):
        raise Refused("chat completions only support assistant tool_calls of type 'function'.", param="tool_calls")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = None
    return {**call, "function": dict(function) | {"arguments": arguments if isinstance(arguments, dict) else {}}}
