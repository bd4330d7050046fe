"""Tokens that came from a pool of images' KV, and conversations that the engine keeps apart because of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from context.images.base import ImageRef
from context.plan import Actor, PrefixBreak, PromptPlan, SentMessage
from context.transcript import ImagePart
from metrics.attribution import Attribution, Cache, Left, attribute
from metrics.kv_mirror.base import MirrorView
from metrics.usage import Usage, with_loaded

CACHE = Cache("salt", "model")
BEFORE = Left(prompt_tokens=400, completion_tokens=1, replied=True, messages=4, cache=CACHE)


def text(at: int) -> SentMessage:
    return SentMessage({"role": "assistant" if at % 2 else "user", "content": f"words {at}"}, at)


def picture(at: int) -> SentMessage:
    part = ImagePart(ImageRef(f"{at:064x}", 64, 64, "image/png", 9))
    return SentMessage({"role": "user", "content": [{"type": "text", "text": "look"}, part]}, at)


# Messages of 100 tokens each: an image second and fifth, of which the turn before had the first.
PLAN = PromptPlan(sent=(text(0), picture(1), text(2), text(3), picture(4)), tools=None, replayed=4)
BY_CLIENT = PrefixBreak("salt", "client", 1)
SALTED = replace(PLAN, breaks=(BY_CLIENT,), unread_from=(1, 0))


def found(
    plan: PromptPlan,
    read: int,
    view: MirrorView | None = None,
    loaded: int = 0,
    by: Actor | None = None,
    *,
    was_exact: bool = False,
) -> Attribution:
    return attribute(
        plan,
        BEFORE,
        Usage(500, 1, read, 0, 500 - read),
        view,
        16,
        cache=CACHE,
        estimate=lambda _: 100,
        loaded_tokens=loaded,
        apart_by=by,
        was_exact=was_exact,
    )


@pytest.mark.parametrize("view", [None, MirrorView(96), MirrorView(16), MirrorView(240)])
def test_what_another_allowance_costs_is_salt_wherever_the_engine_says_that_it_begins(view: MirrorView | None) -> None:
    read = 96 if view is None else view.common_tokens or 0
    one = found(SALTED, read, view)
    assert (one.cause, one.actor, one.lost_tokens, one.break_token) == ("salt", "client", 400 - read, read)


def test_without_such_a_break_it_was_the_template() -> None:
    assert found(PLAN, 96, MirrorView(96)).cause == "template"
    # But where the engine itself has said so, behind the answer.
    for view in (None, MirrorView(96)):
        said = found(PLAN, 96, view, by="policy")
        assert (said.cause, said.actor) == ("salt", "policy")
    assert found(PLAN, 96, MirrorView(restarted=True), by="policy").cause == "engine_eviction"


def test_an_engine_that_was_started_anew_has_lost_it_itself() -> None:
    late = replace(SALTED, unread_from=(3, 0), breaks=(replace(BY_CLIENT, message=3),))
    assert found(late, 0, MirrorView(restarted=True)).cause == "engine_eviction"
    assert found(late, 0, MirrorView()).cause == "salt"


def test_loaded_tokens_are_not_lost_and_have_no_cause() -> None:
    assert found(SALTED, 96, MirrorView(96)).lost_tokens == 304
    # Of two images that are as large one had been sent before.
    half = found(SALTED, 96, MirrorView(96), loaded=150)
    assert (half.cause, half.expected_read, half.lost_tokens) == ("salt", 400, 304 - 75)
    said = found(PLAN, 96, MirrorView(96), loaded=150, by="client")
    assert (said.cause, said.lost_tokens) == ("salt", 304 - 75)
    assert found(PLAN, 96, MirrorView(96), loaded=400, by="client").cause is None
    # The other one has no more tokens than stand behind what was expected.
    nothing = found(SALTED, 96, MirrorView(96), loaded=400)
    assert (nothing.cause, nothing.actor, nothing.lost_tokens, nothing.expected_read) == (None, None, 0, 400)


def test_what_is_loaded_of_a_new_image_was_not_expected() -> None:
    plan = replace(PLAN, sent=(text(0), text(1), text(2), text(3), picture(4)))
    assert found(plan, 96, MirrorView(96), loaded=90).lost_tokens == 304
    # More than the new message can hold.
    assert found(plan, 96, MirrorView(96), loaded=150).lost_tokens == 304 - 50


def test_loaded_tokens_are_a_part_of_the_prompt_of_their_own() -> None:
    told = with_loaded(Usage(500, 1, 100, 160, 240), 200)
    assert (told.read_tokens, told.write_tokens, told.loaded_tokens, told.uncached_tokens) == (100, 160, 200, 40)
    derived = with_loaded(Usage(500, 1, 100, 400, 0, write_derived=True), 200)
    assert (derived.write_tokens, derived.loaded_tokens, derived.uncached_tokens) == (200, 200, 0)
    # No more than there are, whatever is said.
    most = with_loaded(Usage(500, 1, 100, 160, 240), 1000)
    assert (most.write_tokens, most.loaded_tokens, most.uncached_tokens) == (160, 240, 0)
    assert with_loaded(Usage(500, 1), 200) == Usage(500, 1)


def test_a_salt_that_was_only_supposed_is_no_cause_once_the_engine_has_said_that_nothing_stood_apart() -> None:
    lost = found(SALTED, 96, MirrorView(96), was_exact=True)
    assert (lost.cause, lost.lost_tokens) == ("template", 304)
    assert found(SALTED, 96, MirrorView(304), was_exact=True).cause == "engine_eviction"
    # It is the client's all the same where this turn is kept apart.
    assert found(SALTED, 96, MirrorView(96), by="client", was_exact=True).cause == "salt"
    # What the client has changed as well counts then.
    edited = replace(SALTED, replayed=3, reports=(PrefixBreak("client_edit", "client", 3),))
    assert found(edited, 304, MirrorView(304), was_exact=True).cause == "client_edit"
    assert found(edited, 96, MirrorView(96)).cause == "salt"
