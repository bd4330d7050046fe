"""Quotas of one request, counted on what is to be sent. A policy file sets them; none is set by default.

max_images          occurrences: the same image twice counts twice
max_unique_images   different images
max_new_images      images that the turn before did not send, each once: the engine may have to encode them
max_visual_tokens   prompt tokens of all occurrences
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from context.errors import RequestError
from context.plan import PromptPlan, SentMessage
from context.policies.base import Estimate, part_tokens
from context.transcript import ImagePart, Transcript

_WORDS = {
    "max_images": "images, repeats included",
    "max_unique_images": "different images",
    "max_new_images": "images that the turn before did not send",
    "max_visual_tokens": "visual tokens",
}

# The place of an image that the client does not send any more.
_NOWHERE = "messages"


@dataclass(frozen=True, slots=True)
class Quotas:
    """Bounds of one request; None where there is none."""

    max_images: int | None = None
    max_unique_images: int | None = None
    max_new_images: int | None = None
    max_visual_tokens: int | None = None

    @property
    def is_set(self) -> bool:
        """Whether there is any bound."""
        return self != _NONE


_NONE = Quotas()


@dataclass(frozen=True, slots=True)
class ImageCounts:
    """The counts of one plan that quotas bound; visual tokens are an estimate."""

    images: int
    unique_images: int
    new_images: int
    visual_tokens: int


def count_images(plan: PromptPlan, before: Sequence[SentMessage], estimate: Estimate) -> ImageCounts:
    """Count what is to be sent.

    Args:
        plan: what is to be sent, its tail included.
        before: what the turn before sent; empty when there is none.
        estimate: prompt tokens of a message.
    """
    images = [image for image, _, _ in _occurrences(plan)]
    unique = {image.ref.image_id for image in images}
    tokens = sum(part_tokens(one, estimate) for one in images)
    return ImageCounts(len(images), len(unique), len(unique - _ids(before)), tokens)


def check_quotas(
    quotas: Quotas,
    plan: PromptPlan,
    client: Transcript,
    before: Sequence[SentMessage],
    estimate: Estimate,
) -> None:
    """Refuse a plan that is beyond a quota.

    Args:
        quotas: the bounds.
        plan: what is to be sent.
        client: what came, for the place in it.
        before: what the turn before sent.
        estimate: prompt tokens of a message.

    Raises:
        RequestError: `quota_exceeded`, for the first quota in the order above: the count, its value, the limit, and
            the first image beyond it.
    """
    if not quotas.is_set:
        return
    known, seen = _ids(before), set[str]()
    weights: dict[str, list[int]] = {name: [] for name in _WORDS}
    places: list[tuple[ImagePart, SentMessage | None, int]] = []
    for image, message, part in _occurrences(plan):
        is_first = image.ref.image_id not in seen
        seen.add(image.ref.image_id)
        weights["max_images"].append(1)
        weights["max_unique_images"].append(is_first)
        weights["max_new_images"].append(is_first and image.ref.image_id not in known)
        weights["max_visual_tokens"].append(part_tokens(image, estimate))
        places.append((image, message, part))
    for name, words in _WORDS.items():
        limit: int | None = getattr(quotas, name)
        if limit is not None and (total := sum(weights[name])) > limit:
            place = _place(client, *places[_first_beyond(weights[name], limit)])
            raise _exceeded(f"{total} {words}", f"{name} is {limit}", place)


def _exceeded(count: str, quota: str, place: str) -> RequestError:
    remedy = "Send fewer images" if place == _NOWHERE else f"Leave out {place}"
    return RequestError(
        f"This request would send {count}; the policy's quota {quota}. {remedy}, or raise the quota.",
        code="quota_exceeded",
        param=place,
    )


def _occurrences(plan: PromptPlan) -> Iterator[tuple[ImagePart, SentMessage | None, int]]:
    """Every image in the order of the prompt, with its message and the index of its part; the tail has no message."""
    for message in plan.sent:
        content = message.wire.get("content")
        if isinstance(content, list):
            for part, one in enumerate(content):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
                if isinstance(one, ImagePart):
                    yield one, message, part
    for part, one in enumerate(plan.tail):
        if isinstance(one, ImagePart):
            yield one, None, part


def _ids(sent: Iterable[SentMessage]) -> set[str]:
    return {image.ref.image_id for message in sent for image in message.images}


def _first_beyond(weights: Sequence[int], limit: int) -> int:
    total = 0
    for at, weight in enumerate(weights):
        total += weight
        if total > limit:
            return at
    raise AssertionError("the sum is beyond the limit")


def _place(client: Transcript, image: ImagePart, message: SentMessage | None, part: int) -> str:
    """Where the client has put the image. What the gateway moved or recalled is looked up, newest first."""
    source = message.source if message is not None else None
    if source is not None:
        here = [index for index, one in client.messages[source].images if one.ref.image_id == image.ref.image_id]
        if here:
            return f"messages[{source}].content[{part if part in here else here[0]}]"
    for at in range(len(client) - 1, -1, -1):
        for index, one in client.messages[at].images:
            if one.ref.image_id == image.ref.image_id:
                return f"messages[{at}].content[{index}]"
    return _NOWHERE
