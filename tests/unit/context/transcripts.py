"""Messages for the tests of transcripts, and short ways to say what an alignment found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from context.alignment import Alignment, Difference
from context.images.base import ImageRef
from context.transcript import ImagePart, Message, message_of


def ref(name: str, width: int = 1280, height: int = 800) -> ImageRef:
    """An image that is known by `name` alone."""
    return ImageRef(name.encode().hex().ljust(64, "0"), width, height, "image/png", 1000)


def image(name: str, detail: str | None = None) -> ImagePart:
    return ImagePart(ref(name), detail)


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def says(role: str, *parts: str | ImagePart | dict[str, Any], **more: Any) -> Message:
    """A message: one string is a string, anything else parts."""
    if len(parts) == 1 and isinstance(parts[0], str):
        return message_of({"role": role, "content": parts[0], **more})
    listed = [text(part) if isinstance(part, str) else part for part in parts]
    return message_of({"role": role, "content": listed or None, **more})


def system(*parts: str | ImagePart) -> Message:
    return says("system", *parts)


def user(*parts: str | ImagePart | dict[str, Any]) -> Message:
    return says("user", *parts)


def reply(*parts: str | ImagePart) -> Message:
    return says("assistant", *parts)


def calls(identity: str, arguments: str = "{}", name: str = "click") -> Message:
    function = {"name": name, "arguments": arguments}
    return says("assistant", tool_calls=[{"id": identity, "type": "function", "function": function}])


def result(identity: str, *parts: str | ImagePart | dict[str, Any]) -> Message:
    return says("tool", *parts, tool_call_id=identity)


def agent(steps: int, first: int = 1) -> list[Message]:
    """A GUI agent's history: instructions, a task, then for each step an action and a screenshot."""
    made = [system("You use a computer."), user("Book a table for two.")]
    for step in range(first, first + steps):
        made += [calls(f"c{step}", f'{{"x": {step}}}'), result(f"c{step}", f"Step {step} done.", image(f"s{step}"))]
    return made


def without_images(message: Message, placeholder: str | None = None) -> Message:
    """The message with each image gone, or with a text in its place."""
    parts: Sequence[Any] = [
        text(placeholder) if isinstance(part, ImagePart) and placeholder else part
        for part in message.parts
        if placeholder or not isinstance(part, ImagePart)
    ]
    return message_of({**message.wire, "content": list(parts)})


def at_time(second: int) -> str:
    """Instructions with a time in them, as clients write it."""
    return f"Be brief. Current Date & Time: 2026-04-12T23:38:{second:02}.919Z. Use tools."


CHAT = [
    system("You help with photos."),
    user("What is this?", image("cat")),
    reply("A cat."),
    user("And its colour?"),
    reply("Black."),
]
NEXT = user("Thanks!")


def brief(found: Alignment) -> list[tuple[str, str, int, int | None, int | None]]:
    """Each difference as (kind, cause, at, part, character)."""
    return [(one.kind, one.cause, one.at, one.part, one.character) for one in found.differences]


def only(found: Alignment) -> Difference:
    (difference,) = found.differences
    return difference


def replaced(messages: Sequence[Message], index: int, *by: Message) -> list[Message]:
    return [*messages[:index], *by, *messages[index + 1 :]]
