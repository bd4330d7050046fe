"""Policies by share of the conversations: each conversation has one, for its life."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from app import settings as settings_module
from context.errors import ConfigError
from context.images.service import ImageService
from context.policies.choice import Policies, PolicyRule
from metrics.records import queries
from metrics.records.queries import open_records
from tests.api.rig import Rig, ask, image, running, text, user

_HALF = {"POLICY_RULES": "[{share: 0.5, policy: batched}]"}
_NAMED = "x-stillframe-conversation"


async def _policy(rig: Rig, *messages: Any, **headers: str) -> str:
    answer = await rig.chat(ask(*messages), {name.replace("_", "-"): value for name, value in headers.items()})
    assert answer.status == 200, answer.body
    return answer.headers["x-stillframe-policy"]


async def test_about_as_many_conversations_as_were_asked_for(tmp_path: Path) -> None:
    rules = "[{share: 0.2, policy: batched}, {share: 0.3, policy: sliding}]"
    async with running(tmp_path, environment={"POLICY_RULES": rules}) as rig:
        given = [await _policy(rig, f"conversation {number}") for number in range(200)]
        # By their beginning, so again the same.
        assert [await _policy(rig, f"conversation {number}") for number in range(20)] == given[:20]
    assert 20 <= given.count("batched") <= 62
    assert 36 <= given.count("sliding") <= 86
    assert given.count("stable") == 200 - given.count("batched") - given.count("sliding")
    with open_records(tmp_path / "ledger.db") as records:
        kept = {one.policy: one.conversations for one in queries.heaps_of_conversations(records)}
        assert set(kept) == {"stable", "batched", "sliding"}


async def test_a_conversation_keeps_its_policy(tmp_path: Path) -> None:
    """Through turns, a new start, a beginning that the client cuts, and shares that change."""
    histories: list[list[Any]] = [[user(f"{number}: the beginning of a chat")] for number in range(12)]
    given: list[str] = []

    async def go_on(rig: Rig) -> list[str]:
        found: list[str] = []
        for history in histories:
            answer = await rig.chat(ask(*history))
            found.append(answer.headers["x-stillframe-policy"])
            said = answer.json["choices"][0]["message"]["content"]
            history += [{"role": "assistant", "content": said}, user("and then, what came after that?")]
        return found

    async with running(tmp_path, environment=_HALF) as rig:
        given = await go_on(rig)
        assert set(given) == {"stable", "batched"}
        assert await go_on(rig) == given
    async with running(tmp_path, environment={"POLICY_RULES": "[{share: 1, policy: batched}]"}) as rig:
        for history in histories:
            del history[:2]
        assert await go_on(rig) == given
        assert await _policy(rig, "a new one") == "batched"


async def test_a_name_decides_whatever_is_said(tmp_path: Path) -> None:
    async with running(tmp_path, environment=_HALF) as rig:
        given = {name: await _policy(rig, "first", **{_NAMED: name}) for name in map(str, range(16))}
        assert set(given.values()) == {"stable", "batched"}
        for name, policy in given.items():
            assert await _policy(rig, "something else", **{_NAMED: name}) == policy


async def test_the_header_goes_before_shares(tmp_path: Path) -> None:
    environment = {"POLICY_RULES": "[{share: 1, policy: batched}]", "POLICY_HEADERS": "[sliding]"}
    async with running(tmp_path, environment=environment) as rig:
        assert await _policy(rig, "a", x_stillframe_policy="sliding") == "sliding"
        assert await _policy(rig, "b") == "batched"


async def test_a_turn_that_chose_its_policy_says_nothing_of_the_next_ones(tmp_path: Path) -> None:
    few = {"POLICY_RULES": "[{share: 0.001, policy: batched}]", "POLICY_HEADERS": "[batched]"}
    async with running(tmp_path, environment=few) as rig:
        history: list[Any] = [user("the beginning")]
        given: list[str] = []
        for asked in ({}, {"x_stillframe_policy": "batched"}, {}):
            given.append(await _policy(rig, *history, **asked))
            history += [{"role": "assistant", "content": "mine"}, user("and then?")]
    assert given == ["stable", "batched", "stable"]


def test_a_rule_behind_takes_what_shares_leave() -> None:
    rules = [PolicyRule("batched", share=0.5), PolicyRule("sliding", tenant="alice")]
    policies = Policies.load("stable", rules)
    for tenant, rest in (("alice", "sliding"), ("bob", "stable")):
        choices = policies.choose(model="m", tenant=tenant, header=None)
        assert {choices.of(tenant, str(number), None).name for number in range(40)} == {"batched", rest}


def test_shares_of_a_later_group_are_of_what_an_earlier_one_leaves() -> None:
    rules = [PolicyRule("batched", model="q*", share=0.5), PolicyRule("sliding", share=0.5)]
    choices = Policies.load("stable", rules).choose(model="qwen", tenant="alice", header=None)
    given = [choices.of("alice", str(number), None).name for number in range(1000)]
    assert 440 <= given.count("batched") <= 560
    assert 190 <= given.count("sliding") <= 310
    assert 190 <= given.count("stable") <= 310


async def test_one_key_for_all_conversations_does_not_put_all_under_one_policy(tmp_path: Path) -> None:
    async with running(tmp_path, environment=_HALF) as rig:
        given: set[str] = set()
        for number in range(16):
            answer = await rig.chat({**ask(f"conversation {number}"), "prompt_cache_key": "app"})
            given.add(answer.headers["x-stillframe-policy"])
    assert given == {"batched", "stable"}


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ("[{share: 0.7, policy: batched}, {share: 0.4, policy: sliding}]", r"come to 1\.1; make them 1 at most"),
        ("[{share: 0, policy: batched}]", "greater than 0"),
        ("[{share: 1.5, policy: batched}]", "less than or equal to 1"),
    ],
)
def test_shares_that_are_none_stop_the_start(rules: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        settings_module.load(environment={"STILLFRAME_POLICY_RULES": rules})


def test_shares_of_other_requests_are_counted_apart() -> None:
    rules = "[{share: 0.7, policy: batched, model: 'a*'}, {share: 0.7, policy: sliding, model: 'b*'}]"
    loaded = settings_module.load(environment={"STILLFRAME_POLICY_RULES": rules})
    assert [rule.share for rule in loaded.policy_rules] == [0.7, 0.7]
    tenths = ", ".join(["{share: 0.1, policy: batched}"] * 10)
    settings_module.load(environment={"STILLFRAME_POLICY_RULES": f"[{tenths}]"})


_SLOTS = """
name: slots-{number}
version: "1"
kind: stable
match: {{reencoded_images: slot, max_distance: {number}}}
"""


async def test_several_policies_that_match_images_wait_once_for_the_hashes(tmp_path: Path) -> None:
    for number in (4, 6, 8):
        (tmp_path / f"{number}.yaml").write_text(_SLOTS.format(number=number))
    arms = ", ".join(f"{{share: 0.5, policy: {tmp_path}/{number}.yaml}}" for number in (4, 6))
    environment = {"POLICY": f"{tmp_path}/8.yaml", "POLICY_RULES": f"[{arms}]"}
    waits: set[FrameType] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        # A coroutine is called anew each time that it goes on; its frame stays.
        if event == "call" and frame.f_code is ImageService.hashed.__code__:
            waits.add(frame)

    async with running(tmp_path / "data", environment=environment) as rig:
        sys.setprofile(note)
        try:
            policy = await _policy(rig, user(text("look"), image()))
        finally:
            sys.setprofile(None)
    assert policy in ("slots-4", "slots-6")
    assert len(waits) == 1
