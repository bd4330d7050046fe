"""What vLLM refuses before it runs anything, in its order and words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from engine.fake.config import FakeConfig
from engine.fake.errors import Refused, invalid, is_object
from engine.fake.processor import ImagePart
from engine.fake.sequence import Prompt

_MAX_CHOICES = 128
_GREEDY_TEMPERATURE = 1e-5
_MAX_SALT_CHARACTERS = 128
_FORBIDDEN_IN_SALT = frozenset("@/\\\0")
# What each parameter that is looked at may be, and its name in pydantic's words.
_INTEGERS = ("n", "max_tokens", "max_completion_tokens", "min_tokens", "top_logprobs")
_KINDS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "model": ((str,), "string"),
    "temperature": ((int, float), "number"),
    "stream": ((bool,), "boolean"),
    "stream_options": ((dict,), "dictionary"),
    "logprobs": ((bool,), "boolean"),
    "tools": ((list,), "list"),
    "tool_choice": ((str, dict), "string"),
    "chat_template_kwargs": ((dict,), "dictionary"),
    "stop": ((str, list), "list"),
    "stop_token_ids": ((list,), "list"),
} | dict.fromkeys(_INTEGERS, ((int,), "integer"))
_ITEMS: Mapping[str, tuple[type, str]] = {"stop": (str, "string"), "stop_token_ids": (int, "integer")}


def check_body(config: FakeConfig, body: Mapping[str, Any]) -> None:
    """The parameters of a chat completion.

    Source: vLLM 0.32, entrypoints/openai/chat_completion/protocol.py::ChatCompletionRequest and
    entrypoints/serve/engine/serving.py::BaseServing._check_model; sampling_params.py::SamplingParams.

    Raises:
        Refused: one of them is not accepted.
    """
    _check_kinds(body)
    model, salt, choices = body.get("model"), body.get("cache_salt"), body.get("n")
    if model and model != config.model:
        raise Refused(f"The model `{model}` does not exist.", status=404, type="NotFoundError", param="model")
    if salt is not None:
        _check_salt(salt, refused=config.refuses_cache_salt)
    if choices is not None and not 1 <= choices <= _MAX_CHOICES:
        raise Refused(f"n must be at least 1 and at most {_MAX_CHOICES}, got {choices}.", param="n")
    temperature = body.get("temperature")
    if choices and choices > 1 and temperature is not None and temperature < _GREEDY_TEMPERATURE:
        raise Refused(f"n must be 1 when using greedy sampling, got {choices}.")
    if body.get("stream_options") is not None and not body.get("stream"):
        raise Refused("Stream options can only be defined when `stream=True`.", param="stream_options")
    if body.get("tool_choice", "none") not in ("none", None) and not body.get("tools"):
        raise Refused("When using `tool_choice`, `tools` must be set.", param="tool_choice")


def check_images(config: FakeConfig, parts: list[ImagePart]) -> None:
    """The images of a prompt, before they are loaded. An engine that knows no uuid loses them here, from `parts`.

    Source: vLLM 0.32, multimodal/processing/context.py::BaseProcessingInfo.validate_num_items.

    Raises:
        Refused: too many, or one without data on an engine that knows no uuid.
    """
    most = config.max_images_per_prompt
    if len(parts) > most:
        message = f"At most {most} image(s) may be provided in one prompt."
        raise Refused(f"{message} Set `--limit-mm-per-prompt` to increase this limit.", param="image")
    if not config.accepts_uuid:
        if any(part.url is None for part in parts):
            raise invalid("image_url: Input should be a valid dictionary", "body.messages")
        parts[:] = [ImagePart(None, part.url) for part in parts]


def check_text_length(config: FakeConfig, length: int) -> None:
    """A prompt's tokens while each image is still one (renderers/params.py::TokenizeParams._token_len_check).

    Raises:
        Refused: too many.
    """
    most = config.max_model_tokens
    if length > most:
        raise Refused(
            f"This model's maximum context length is {most} tokens. However, your prompt contains {length} "
            "input tokens, which exceeds this limit even without any output tokens. "
            "Please reduce the length of the input prompt.",
            param="input_tokens",
        )


def check_prompt(config: FakeConfig, prompt: Prompt) -> None:
    """A prompt with its images' tokens.

    Source: vLLM 0.32, entrypoints/serve/utils/api_utils.py::get_max_tokens and
    v1/engine/input_processor.py::InputProcessor._validate_model_input.

    Raises:
        Refused: it is too long, or an image is too large for the encoder cache.
    """
    length, most, capacity = len(prompt.tokens), config.max_model_tokens, config.encoder_cache_size
    if length > most:
        raise Refused(f"Input length ({length}) exceeds model's maximum context length ({most}).")
    for image in prompt.images:
        if image.tokens > capacity:
            raise Refused(
                f"The decoder prompt contains a(n) image item with {image.tokens} embedding tokens, "
                f"which exceeds the pre-allocated encoder cache size {capacity}."
            )


def _check_kinds(body: Mapping[str, Any]) -> None:
    """The shapes of the parameters. vLLM takes some in another spelling, such as a number in quotes; no client needs
    that."""
    for key, (kinds, name) in _KINDS.items():
        value = body.get(key)
        if value is not None and (not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)):
            raise invalid(f"{key}: Input should be a valid {name}", f"body.{key}")
    for key, (kind, name) in _ITEMS.items():
        values: Any = body.get(key)
        if isinstance(values, list) and any(type(one) is not kind for one in cast("list[Any]", values)):
            raise invalid(f"{key}: Input should be a valid {name}", f"body.{key}")
    if is_object(choice := body.get("tool_choice")):
        function = choice.get("function")
        if not is_object(function) or not isinstance(function.get("name"), str):
            raise invalid("tool_choice: Field required: function.name", "body.tool_choice")


def _check_salt(salt: Any, *, refused: bool) -> None:
    """Source: vLLM 0.32, entrypoints/generate/base/protocol.py::validate_cache_salt."""
    if refused:
        raise Refused("Unrecognized request argument supplied: cache_salt", param="cache_salt")
    if not isinstance(salt, str) or not salt:
        raise Refused("Parameter 'cache_salt' must be a non-empty string if provided.", param="cache_salt")
    if len(salt) > _MAX_SALT_CHARACTERS or _FORBIDDEN_IN_SALT & set(salt):
        message = "Parameter 'cache_salt' must be at most 128 characters and must not contain '@', '/', '\\\\', or NUL."
        raise Refused(message, param="cache_salt")
