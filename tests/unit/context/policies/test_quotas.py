"""Quotas: what counts for which, and which image is named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from context.errors import RequestError
from context.plan import PromptPlan, SentMessage
from context.policies.quotas import ImageCounts, Quotas, check_quotas, count_images
from context.transcript import ImagePart, Transcript, parts_of, transcript
from tests.unit.context.transcripts import image, text


def estimate(wire: Mapping[str, Any]) -> int:
    """Three for a message, ten for an image."""
    return 3 + 10 * sum(isinstance(part, ImagePart) for part in parts_of(wire))


def wire(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def came(*wires: dict[str, Any]) -> Transcript:
    return transcript(wires, b"key")


CLIENT = came(wire(text("a"), image("one")), wire(image("two"), image("one")))
SENT = tuple(SentMessage(message.wire, at) for at, message in enumerate(CLIENT.messages))
PLAN = PromptPlan(SENT, None, 0, tail=(text("again"), image("three")))


def refusal(quotas: Quotas, plan: PromptPlan = PLAN, before: tuple[SentMessage, ...] = ()) -> RequestError:
    with pytest.raises(RequestError) as caught:
        check_quotas(quotas, plan, CLIENT, before, estimate)
    assert (caught.value.code, caught.value.status) == ("quota_exceeded", 400)
    return caught.value


def test_the_tail_counts_and_each_count_is_its_own() -> None:
    assert count_images(PLAN, (), estimate) == ImageCounts(4, 3, 3, 40)
    assert count_images(PLAN, SENT[:1], estimate) == ImageCounts(4, 3, 2, 40)
    assert count_images(PromptPlan((), None, 0), SENT, estimate) == ImageCounts(0, 0, 0, 0)


def test_what_is_within_its_quotas_passes() -> None:
    check_quotas(Quotas(), PLAN, CLIENT, (), estimate)
    check_quotas(Quotas(4, 3, 3, 40), PLAN, CLIENT, (), estimate)
    check_quotas(Quotas(max_new_images=1), PLAN, CLIENT, SENT, estimate)


@pytest.mark.parametrize(
    ("quotas", "place"),
    [
        ({"max_images": 0}, "messages[0].content[1]"),
        ({"max_images": 1}, "messages[1].content[0]"),
        ({"max_images": 2}, "messages[1].content[1]"),
        ({"max_unique_images": 1}, "messages[1].content[0]"),
        ({"max_new_images": 1}, "messages[1].content[0]"),
        ({"max_visual_tokens": 29}, "messages[1].content[1]"),
        ({"max_unique_images": 1, "max_images": 2}, "messages[1].content[1]"),
    ],
)
def test_the_first_image_beyond_is_named(quotas: dict[str, int], place: str) -> None:
    error = refusal(Quotas(**quotas))
    assert error.param == place
    assert place in error.message


def test_an_image_that_the_gateway_put_elsewhere_is_named_where_the_client_has_it() -> None:
    moved = SentMessage(wire(text("[hoisted]"), image("two")), None, "hoisted")
    assert refusal(Quotas(max_images=0), PromptPlan((moved,), None, 0)).param == "messages[1].content[0]"
    # In its message, but no more at the same part.
    shifted = SentMessage(wire(image("one")), 0)
    assert refusal(Quotas(max_images=0), PromptPlan((shifted,), None, 0)).param == "messages[0].content[1]"
    # In the tail: where the client showed it last.
    tail = PromptPlan(SENT[:1], None, 0, tail=(image("one"),))
    assert refusal(Quotas(max_images=1), tail).param == "messages[1].content[1]"


def test_an_image_that_the_client_has_cut_has_no_place() -> None:
    stale = SentMessage(wire(image("gone")), None, "stale")
    assert refusal(Quotas(max_images=0), PromptPlan((stale,), None, 0)).param == "messages"
    assert "Send fewer images" in refusal(Quotas(max_images=0), PromptPlan((stale,), None, 0)).message


def test_the_message_says_the_count_its_value_and_the_limit() -> None:
    error = refusal(Quotas(max_new_images=1), before=SENT[:1])
    assert "2 images that the turn before did not send" in error.message
    assert "quota max_new_images is 1" in error.message
