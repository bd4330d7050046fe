"""Estimates grow with what is there, and never with how an image is written."""

from __future__ import annotations

from context.estimates import message_tokens, text_tokens
from context.images.base import ImageRef
from context.transcript import ImagePart


def image(width: int, height: int) -> ImagePart:
    return ImagePart(ImageRef("ab" * 32, width, height, "image/png", 5_000_000))


def test_text_is_counted_by_its_length() -> None:
    assert text_tokens("") == 0
    assert text_tokens("four") == 1
    assert message_tokens({"role": "user", "content": "x" * 400}) == 104
    assert message_tokens({"role": "user", "content": [{"type": "text", "text": "x" * 400}]}) == 104


def test_an_image_is_counted_by_its_pixels() -> None:
    small, large = (message_tokens({"role": "user", "content": [image(*size)]}) for size in ((64, 64), (1280, 800)))
    assert small == 4 + 4
    assert large == 4 + 46 * 29
    assert message_tokens({"role": "user", "content": [image(100_000, 20)]}) > 100


def test_calls_are_counted_and_nothing_is_something() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"at": [1, 2, 3]}'}}
    assert message_tokens({"role": "assistant", "content": None}) == 4
    assert message_tokens({"role": "assistant", "content": None, "tool_calls": [call]}) > 20
