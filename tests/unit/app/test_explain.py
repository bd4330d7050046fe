"""The headers that say what happened to a turn."""

from __future__ import annotations

import pytest

from app.explain import client_conversation, plan_headers
from context.conversations import Begun
from context.plan import Healed, PrefixBreak, PromptPlan
from context.transcript import transcript


def begun(plan: PromptPlan) -> Begun:
    return Begun("one", "c1", 3, transcript([{"role": "user", "content": "hi"}], b"k"), plan, None, "stable")


def headers(plan: PromptPlan) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in plan_headers(begun(plan))}


def test_a_turn_that_extends_the_last_one_says_only_which_it_is() -> None:
    assert headers(PromptPlan((), None, 0)) == {"x-stillframe-conversation": "c1", "x-stillframe-turn": "3"}


def test_a_break_is_named_with_its_place() -> None:
    broken = PrefixBreak("client_edit", "client", 2, 1, 7, 900, "a text was changed")
    found = headers(PromptPlan((), None, 0, breaks=(broken,)))["x-stillframe-break"]
    assert found == "client_edit; actor=client; at=messages[2].content[1]; character=7; lost_tokens=900"


def test_what_was_healed_is_listed_and_the_list_is_bounded() -> None:
    healed = (Healed("tools", -1), *(Healed("key_order", number) for number in range(20)))
    found = headers(PromptPlan((), None, 0, healed=healed))["x-stillframe-healed"]
    assert found.startswith("tools@tools, key_order@messages[0], ")
    assert found.endswith(", +13")


@pytest.mark.parametrize(
    ("header", "body", "name"),
    [
        ("mine", {"prompt_cache_key": "other"}, ("mine", False)),
        (None, {"prompt_cache_key": "key"}, ("key", True)),
        (None, {"metadata": {"conversation_id": "m"}}, ("m", False)),
        (None, {"metadata": {"conversation_id": "m"}, "prompt_cache_key": "key"}, ("m", False)),
        (None, {"metadata": {"conversation_id": 7}, "prompt_cache_key": ["x"]}, (None, False)),
        (None, {"metadata": "text"}, (None, False)),
        ("", {}, (None, False)),
    ],
)
def test_a_client_may_name_its_conversation(
    header: str | None, body: dict[str, object], name: tuple[str | None, bool]
) -> None:
    assert client_conversation(header, body) == name


@pytest.mark.parametrize("name", ["two words", "größe", "a\r\nset-cookie: x", "x" * 200, "\ud83d"])
def test_a_name_that_cannot_stand_in_a_header_gets_a_digest(name: str) -> None:
    found, _ = client_conversation(None, {"prompt_cache_key": name})
    assert found is not None
    assert len(found) == 32
    assert found.isalnum()
    assert (found, True) == client_conversation(None, {"prompt_cache_key": name})
