"""Images in tool results, of which many templates and engines take text alone."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, Literal

from context.layout.groups import tool_groups
from context.layout.names import marker
from context.plan import SentMessage
from context.transcript import ImagePart, parts_of, text_part

ToolImages = Literal["pass", "hoist"]
_TOOL_ROLES = frozenset(("tool", "function"))


def hoist(
    sent: Sequence[SentMessage], client: Sequence[Mapping[str, Any]], fresh: Container[int]
) -> tuple[list[SentMessage], tuple[ImagePart, ...]]:
    """Take the images of tool results out of them. Nothing is mutated.

    A marker stands in an image's place. A group that has a fresh message gets its images in one user message behind the
    whole group, in order and each under its marker, in place of the one that it had; never inside, for an engine wants
    a call's results directly behind it. A group that is still open gets none: a result that comes later would stand
    behind it. Its images wait, in this turn and in each that follows, until it is closed. Messages that are added
    behind change nothing before them.

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
            if group.is_open:
                waiting += [image for one in ours for image in _taken_out(one, client, fresh)]
            continue
        images: list[ImagePart] = []
        laid_out += sent[done : group.start]
        for one in ours:
            mine = _taken_out(one, client, fresh)
            laid_out.append(SentMessage(_with_markers(one.wire), one.source) if mine else one)
            images += mine
        done = group.stop
        while done < len(sent) and sent[done].origin == "hoisted":
            done += 1
        if group.is_open:
            waiting += images
        elif images:
            payload = [part for image in images for part in (text_part(marker(image.ref)), image)]
            laid_out.append(SentMessage({"role": "user", "content": payload}, None, "hoisted"))
    return [*laid_out, *sent[done:]], tuple(waiting)


def _taken_out(one: SentMessage, client: Sequence[Mapping[str, Any]], fresh: Container[int]) -> list[ImagePart]:
    """The images of a tool result that are to stand elsewhere, or do."""
    if one.source is None or one.wire["role"] not in _TOOL_ROLES or not (one.source in fresh or not one.images):
        return []
    return [part for part in parts_of(client[one.source]) if isinstance(part, ImagePart)]


def _with_markers(wire: Mapping[str, Any]) -> dict[str, Any]:
    parts = [text_part(marker(part.ref)) if isinstance(part, ImagePart) else part for part in parts_of(wire)]
    return {**wire, "content": parts}
