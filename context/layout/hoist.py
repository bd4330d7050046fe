"""Images in messages whose role many templates and engines take text from alone: tool results and system messages."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, Literal

from context.images.base import ImageRef
from context.layout.groups import tool_groups
from context.plan import SentMessage
from context.transcript import ImagePart, parts_of

ToolImages = Literal["pass", "hoist"]
_TOOL_ROLES = frozenset(("tool", "function"))
_SYSTEM_ROLES = frozenset(("system", "developer"))


def marker(ref: ImageRef) -> str:
    """The text that stands for an image: its whole id, so that no other image can be meant, and its size in pixels."""
    return f"[image_id {ref.image_id} {ref.width}x{ref.height}]"


def lay_out_tool_images(
    wires: Sequence[Mapping[str, Any]], mode: ToolImages, *, first: int = 0
) -> tuple[SentMessage, ...]:
    """Messages as they are sent, with images of tool results where `mode` says. Nothing is mutated.

    `pass` leaves every message as it is. `hoist` puts a marker in an image's place, and behind the whole tool group
    (never inside: an engine wants a call's results directly behind it) one user message with the group's images in
    order, each under its marker. A second run changes nothing, and neither do messages that are added behind.

    Args:
        wires: messages with `ImagePart`s, whole tool groups.
        mode: `pass` or `hoist`.
        first: the index of `wires[0]` in the client's messages, for `SentMessage.source`.
    """
    sent = [SentMessage(wire, first + index) for index, wire in enumerate(wires)]
    if mode == "pass":
        return tuple(sent)
    laid_out: list[SentMessage] = []
    done = 0
    for group in tool_groups(wires):
        laid_out += sent[done : group.start]
        payload: list[Any] = []
        for one in sent[group.start : group.stop]:
            is_result = one.wire["role"] in _TOOL_ROLES and bool(one.images)
            laid_out.append(SentMessage(_with_markers(one.wire), one.source) if is_result else one)
            if is_result:
                payload += [part for image in one.images for part in (_text(marker(image.ref)), image)]
        if payload:
            laid_out.append(SentMessage({"role": "user", "content": payload}, None, "hoisted"))
        done = group.stop
    return (*laid_out, *sent[done:])


def hoist(
    sent: Sequence[SentMessage], client: Sequence[Mapping[str, Any]], fresh: Container[int]
) -> tuple[list[SentMessage], tuple[ImagePart, ...]]:
    """`lay_out_tool_images` for messages of which some were sent before. Nothing is mutated.

    A group that has a fresh message gets its images in one user message behind it, in place of the one that it had. A
    group that is still open gets none: a result that comes later would stand behind it.

    Args:
        sent: what is sent, in order.
        client: the client's messages.
        fresh: indices in `client` of those that are sent for the first time.

    Returns:
        What is sent, and the images of open groups, which stand nowhere in it.
    """
    laid_out: list[SentMessage] = []
    waiting: list[ImagePart] = []
    done = 0
    for group in tool_groups([one.wire for one in sent]):
        ours = sent[group.start : group.stop]
        if not any(one.source in fresh for one in ours if one.source is not None):
            continue
        images: list[ImagePart] = []
        laid_out += sent[done : group.start]
        for one in ours:
            mine: list[ImagePart] = []
            if one.source is not None and one.wire["role"] in _TOOL_ROLES and (one.source in fresh or not one.images):
                mine = [part for part in parts_of(client[one.source]) if isinstance(part, ImagePart)]
            laid_out.append(SentMessage(_with_markers(one.wire), one.source) if mine else one)
            images += mine
        done = group.stop
        while done < len(sent) and sent[done].origin == "hoisted":
            done += 1
        if group.is_open:
            waiting += images
        elif images:
            payload = [part for image in images for part in (_text(marker(image.ref)), image)]
            laid_out.append(SentMessage({"role": "user", "content": payload}, None, "hoisted"))
    return [*laid_out, *sent[done:]], tuple(waiting)


def images_in_system(wires: Sequence[Mapping[str, Any]]) -> tuple[tuple[int, int], ...]:
    """Message and part of every image in a system or developer message, in order."""
    return tuple(
        (index, position)
        for index, wire in enumerate(wires)
        if wire["role"] in _SYSTEM_ROLES
        for position, part in enumerate(parts_of(wire))
        if isinstance(part, ImagePart)
    )


def _with_markers(wire: Mapping[str, Any]) -> dict[str, Any]:
    parts = [_text(marker(part.ref)) if isinstance(part, ImagePart) else part for part in parts_of(wire)]
    return {**wire, "content": parts}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
