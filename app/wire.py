"""From the bytes of a chat request to what the gateway works with: checked, with its images found.

Only what the gateway needs is checked; every other parameter goes on as it came, for the engine to judge.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from app.call_limits import CallLimits, check_size, check_values
from app.json_body import parse_json
from app.lift import lift
from context.errors import ImageError, RequestError
from context.frozen import frozen
from context.images.base import ImageSource
from context.images.parts import parse_image_part
from context.layout.control import ControlTokens, neutralize_value
from context.transcript import ImagePart, begun_at

IMAGE_PARTS = frozenset({"image_url", "input_image"})
# Parts that hold text and go on as they came, by the name that the engine knows.
TEXT_PARTS: Mapping[str, str] = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
# What a client could use to reach another tenant's cache entries, or to make the same image another one.
DROPPED_KEYS = frozenset(
    {"cache_salt", "mm_processor_kwargs", "media_io_kwargs", "kv_transfer_params", "ec_transfer_params", "request_id"}
)
# The same, in the one place where an engine takes extra arguments as they come; and what would have KV events say that
# blocks were stored which were read.
_DROPPED_EXTRAS = frozenset({"kv_transfer_params", "ec_transfer_params", "kv_cache_report_mode"})
# An engine goes by a part's keys when they contradict its type: a text that brings these would be an image, of a
# client's uuid or from any address, that nobody has looked at.
# Source: vLLM 0.32, renderers/chat_utils.py::_parse_chat_message_content_mm_part.
_MEDIA_KEYS = frozenset(
    {"uuid", "input_audio"}
    | {f"{kind}_{form}" for kind in ("image", "audio", "video") for form in ("url", "embeds", "pil")}
    | {"prompt_embeds", "file"}
)
# Parameters that an engine hands to the chat template.
_SHOWN_KEYS = frozenset({"documents", "chat_template_kwargs"})
# Templates write a role as it is: it must not forge a turn.
_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,31}")
# Where tools stand, OpenAI's older name too, and what one looks like.
_TOOL_KEYS = (("tools", '{"type": "function", "function": {"name": ...}}'), ("functions", '{"name": ...}'))


@frozen
class FoundImage:
    """An image part: `messages[message].content[part]`; `history` when an assistant's message follows it. With `error`
    it says nowhere where its bytes are, and `source` names the place alone."""

    message: int
    part: int
    source: ImageSource
    history: bool
    error: ImageError | None = None


@frozen
class ChatCall:
    """A checked chat request. `body` is the client's own, without what is never forwarded; its images stand in it
    as the client sent them."""

    body: Mapping[str, Any]
    images: tuple[FoundImage, ...]
    stream: bool
    include_usage: bool

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The client's messages."""
        return self.body["messages"]

    @property
    def tools(self) -> list[Any] | None:
        """The client's tools; None where it sent none."""
        return self.body.get("tools")

    @property
    def model(self) -> str:
        """The model's name; empty where neither the client nor the engine has one."""
        return self.body.get("model") or ""

    def with_images(self, images: Mapping[tuple[int, int], ImagePart | Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The messages with what was found out about each image, or what stands for it, in place of its part."""
        messages = list(self.messages)
        for index in {message for message, _ in images}:
            content = list(messages[index]["content"])
            for (message, part), image in images.items():
                if message == index:
                    content[part] = image
            messages[index] = {**messages[index], "content": content}
        return messages

    def with_sent(
        self, messages: Sequence[Any], tools: Sequence[Any] | None, tokens: ControlTokens | None
    ) -> dict[str, Any]:
        """The body to forward: what is sent in place of what came, usage always asked for. `tokens` may not stand in
        what else a chat template may show."""
        body = {**self.body, "messages": messages}
        if tokens is not None:
            for key in _SHOWN_KEYS & body.keys():
                body[key] = neutralize_value(body[key], tokens)
        if tools is not None:
            body["tools"] = tools
        if self.stream:
            options = cast("dict[str, Any] | None", body.get("stream_options"))
            body["stream_options"] = {**(options or {}), "include_usage": True}
        return body


def parse_chat(raw: bytes | bytearray, *, default_model: str | None, limits: CallLimits) -> ChatCall:
    """Check a request body.

    Args:
        raw: the body's bytes. The images of the call may be views of them.
        default_model: stands in when the client names no model.
        limits: a request of more than these is refused, where it can be before it is parsed.

    Raises:
        RequestError: names the place and the remedy.
    """
    lifted = lift(raw)
    check_values(lifted.skeleton, limits)
    try:
        data = parse_json(lifted.skeleton)
    except RequestError:
        # The place of an error is one of the body as it came.
        parse_json(raw)
        raise
    call = _check_chat(data, lifted.texts, default_model, limits)
    used = sum(not isinstance(image.source.value, str) for image in call.images)
    if used == len(lifted.texts):
        return call
    # A data URL stands elsewhere than in an image part, in a text for example: it must go on as it is.
    return _check_chat(parse_json(raw), {}, default_model, limits)


def _check_chat(data: Any, texts: Mapping[str, memoryview], default_model: str | None, limits: CallLimits) -> ChatCall:
    if not isinstance(data, dict):
        raise RequestError("The body must be a JSON object.", code="invalid_body")
    body = {key: value for key, value in cast("dict[str, Any]", data).items() if key not in DROPPED_KEYS}
    if body.get("model") is None and default_model is not None:
        body["model"] = default_model
    _check_type(body, "model", str, "a string")
    _check_type(body, "stream", bool, "true or false")
    include_usage = bool(body.get("stream")) and _wants_usage(body)
    if isinstance(extras := body.get("vllm_xargs"), dict):
        given = cast("dict[str, Any]", extras)
        body["vllm_xargs"] = {key: value for key, value in given.items() if key not in _DROPPED_EXTRAS}
    _check_tools(body)
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestError(
            "messages must be a list of at least one message.", code="invalid_messages", param="messages"
        )
    body["messages"] = checked = cast("list[dict[str, Any]]", messages)
    check_size(checked, limits)
    images: list[FoundImage] = []
    for found in _find_images(checked, texts):
        if len(images) == limits.max_images:
            raise RequestError(
                f"The request has more images than the limit of {limits.max_images}. Send fewer, or raise "
                "images.max_images_per_request.",
                code="too_many_images",
                param=found.source.place,
            )
        images.append(found)
    return ChatCall(body, tuple(images), bool(body.get("stream")), include_usage)


def _wants_usage(body: Mapping[str, Any]) -> bool:
    """What a stream's options say. Those of no stream are the engine's to judge."""
    _check_type(body, "stream_options", dict, "an object")
    options = cast("dict[str, Any]", body.get("stream_options") or {})
    _check_type(options, "include_usage", bool, "true or false", "stream_options.")
    return bool(options.get("include_usage"))


def _check_tools(body: Mapping[str, Any]) -> None:
    """What is planned, compared and sent as a tool is one, under every policy; the rest is the engine's to judge."""
    for key, shown in _TOOL_KEYS:
        if body.get(key) is None:
            continue
        _check_type(body, key, list, "a list")
        for index, tool in enumerate(cast("list[Any]", body[key])):
            if not isinstance(tool, dict):
                at = f"{key}[{index}]"
                raise RequestError(f"{at} must be an object such as {shown}.", code="invalid_tool", param=at)


def _check_type(body: Mapping[str, Any], key: str, kind: type, words: str, at: str = "") -> None:
    value = body.get(key)
    if value is not None and not isinstance(value, kind):
        raise RequestError(f"{at}{key} must be {words}.", code="invalid_type", param=at + key)


def _find_images(messages: list[dict[str, Any]], texts: Mapping[str, memoryview]) -> Iterator[FoundImage]:
    roles = [_role(message, index) for index, message in enumerate(messages)]
    # What is asked about with a begun reply is new.
    last_reply = max((at for at, role in enumerate(roles[: begun_at(roles)]) if role == "assistant"), default=-1)
    for index, message in enumerate(messages):
        _check_calls(message, f"messages[{index}]")
        content = message.get("content")
        if content is None or isinstance(content, str):
            continue
        if not isinstance(content, list):
            raise RequestError(
                f"messages[{index}].content must be a string or a list of parts.",
                code="invalid_content",
                param=f"messages[{index}].content",
            )
        for position, part in enumerate(cast("list[Any]", content)):
            place = f"messages[{index}].content[{position}]"
            kind = _part_type(part, place)
            if kind in IMAGE_PARTS:
                yield _found_image(part, index, position, texts, index < last_reply)
            else:
                content[position] = _text_part(part, kind, place)


def _check_calls(message: dict[str, Any], place: str) -> None:
    """Calls and their results are told apart by their ids, which must be usable as such; the rest is the engine's."""
    _check_type(message, "tool_call_id", str, "a string", f"{place}.")
    _check_type(message, "tool_calls", list, "a list", f"{place}.")
    for index, call in enumerate(cast("list[Any]", message.get("tool_calls") or ())):
        at = f"{place}.tool_calls[{index}]"
        if not isinstance(call, dict):
            raise RequestError(f"{at} must be an object.", code="invalid_type", param=at)
        _check_type(cast("dict[str, Any]", call), "id", str, "a string", f"{at}.")
        _check_type(cast("dict[str, Any]", call), "function", dict, "an object", f"{at}.")


def _found_image(
    part: dict[str, Any], index: int, position: int, texts: Mapping[str, memoryview], history: bool
) -> FoundImage:
    place = f"messages[{index}].content[{position}]"
    try:
        source = parse_image_part(part, place)
    except ImageError as error:
        # Whether it fails the request depends on where it stands.
        return FoundImage(index, position, ImageSource("data", "", place), history, error)
    if isinstance(source.value, str) and source.value in texts:
        source = replace(source, value=texts[source.value])
    return FoundImage(index, position, source, history)


def _role(message: Any, index: int) -> str:
    role = cast("dict[str, Any]", message).get("role") if isinstance(message, dict) else None
    if not isinstance(role, str) or not role:
        raise RequestError(
            f"messages[{index}] must be an object with a role.", code="invalid_message", param=f"messages[{index}]"
        )
    if _ROLE.fullmatch(role) is None:
        raise RequestError(
            f"messages[{index}].role must be a word, such as user; up to 32 letters, digits, '-', '_' and '.'.",
            code="invalid_message",
            param=f"messages[{index}].role",
        )
    return role


def _part_type(part: Any, place: str) -> str:
    kind = cast("dict[str, Any]", part).get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str):
        raise RequestError(
            f'{place} must be an object with a type, such as {{"type": "text", "text": "..."}}.',
            code="invalid_content_part",
            param=place,
        )
    return kind


def _text_part(part: dict[str, Any], kind: str, place: str) -> dict[str, Any]:
    name = TEXT_PARTS.get(kind)
    if name is None:
        raise RequestError(
            f"{place} has the type {kind[:40]!r}; supported are text, refusal, image_url and input_image.",
            code="unsupported_part_type",
            param=f"{place}.type",
        )
    if not isinstance(part.get(name), str):
        raise RequestError(f"{place}.{name} must be a string.", code="invalid_content_part", param=f"{place}.{name}")
    if kind == name and not _MEDIA_KEYS & part.keys():
        return part
    return {key: value for key, value in part.items() if key not in _MEDIA_KEYS} | {"type": name}
