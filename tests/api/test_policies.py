"""Policies through HTTP: which one is in force, what a request may hold, and what its client is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.settings import load
from context.errors import ConfigError
from tests.api.rig import Answer, Rig, ask, image, running, text, user

EXPLAIN = {"x-stillframe-explain": "1"}
POLICY = "x-stillframe-policy"
MINE = 'name: mine\nversion: "7"\nkind: {kind}\n'
PICTURES = ("base.png", "flat_rgb.png", "gray_l.png")


def write(folder: Path, text: str, name: str = "mine.yaml") -> str:
    file = folder / name
    file.write_text(text)
    return str(file)


def history(*names: str) -> list[dict[str, Any]]:
    """A message with each picture, and answers between."""
    made: list[dict[str, Any]] = []
    for number, name in enumerate(names):
        made += [user(text(f"picture {number}"), image(name)), {"role": "assistant", "content": f"seen {number}"}]
    return made[:-1]


async def told(rig: Rig, body: dict[str, Any], **headers: str) -> Any:
    """The plan of a request that was answered."""
    answer = await rig.chat(body, EXPLAIN | {name.replace("_", "-"): value for name, value in headers.items()})
    assert answer.status == 200, answer.body
    return answer.json["stillframe"]


def refused(answer: Answer, code: str) -> Any:
    assert (answer.status, answer.error["code"]) == (400, code)
    return answer.error


async def test_the_default_is_in_force_and_named(tmp_path: Path) -> None:
    async with running(tmp_path, environment={"POLICY": "batched"}) as rig:
        assert (await rig.chat(ask("hi"))).headers[POLICY] == "batched"


async def test_a_policy_from_a_file(tmp_path: Path) -> None:
    file = write(tmp_path, MINE.format(kind="sliding") + "sliding: {keep_images: 1, marker: true}\n")
    async with running(tmp_path, environment={"POLICY": file}) as rig:
        answer = await rig.chat(ask(*history(*PICTURES[:2])), EXPLAIN)
        assert answer.headers[POLICY] == "mine"
        assert answer.json["stillframe"]["policy"] == {"name": "mine", "version": "7"}
        sent = rig.engine.sent[-1]["messages"]
        assert [part["type"] for part in sent[0]["content"]] == ["text", "text"]
        assert [part["type"] for part in sent[2]["content"]] == ["text", "image_url"]


async def test_the_first_rule_that_fits_counts_and_a_header_goes_before_all(tmp_path: Path) -> None:
    rules = (
        "[{tenant: alice, model: 'q*', policy: sliding}, {tenant: alice, policy: batched}, "
        "{model: '*f?ke*', policy: observe}]"
    )
    environment = {"AUTH__KEYS": "{alice: a, bob: b}", "POLICY_RULES": rules, "POLICY": "reference"}
    async with running(tmp_path, environment=environment) as rig:

        async def chosen(key: str, model: str, **headers: str) -> str:
            answer = await rig.chat(ask("hi", model=model), {"authorization": f"Bearer {key}", **headers})
            return answer.headers[POLICY]

        known = rig.engine.info().models[0]
        assert "fake" in known
        assert await chosen("a", "qwen") == "sliding"
        assert await chosen("a", known) == "batched"
        assert await chosen("b", known) == "observe"
        assert await chosen("b", "other") == "reference"
        assert await chosen("a", known, **{POLICY: "summary"}) == "summary"


async def test_a_header_may_name_what_the_settings_list(tmp_path: Path) -> None:
    file = write(tmp_path, MINE.format(kind="stable"))
    async with running(tmp_path, environment={"POLICY_HEADERS": f"[observe, {file}]"}) as rig:
        for name in ("observe", "mine"):
            assert (await rig.chat(ask("hi"), {POLICY: name})).headers[POLICY] == name
        for name in ("stable", "batched", "nonsense", "", file):
            error = refused(await rig.chat(ask("hi"), {POLICY: name}), "unknown_policy")
            assert error["param"] == POLICY
            assert "Send one of observe, mine" in error["message"]


async def test_a_conversation_may_change_its_policy(rig: Rig) -> None:
    messages = history(*PICTURES[:2])
    await rig.chat(ask(*messages), {POLICY: "stable"})
    body = ask(*messages, {"role": "assistant", "content": "ok"}, "and now?")
    plan = await told(rig, body, x_stillframe_policy="observe")
    assert (plan["policy"]["name"], plan["turn"]) == ("observe", 2)


def test_settings_that_name_a_policy_that_cannot_be_used(tmp_path: Path) -> None:
    bad = write(tmp_path, MINE.format(kind="batched") + "batched: {high: 1, low: 2}\n")
    with pytest.raises(ConfigError, match=r"mine.yaml:4: batched.high: must be above low"):
        load(environment={"STILLFRAME_POLICY": bad}).policies()
    one, other = (write(tmp_path, MINE.format(kind=kind), f"{kind}.yaml") for kind in ("stable", "sliding"))
    both = load(environment={"STILLFRAME_POLICY": one, "STILLFRAME_POLICY_HEADERS": f"[{other}]"})
    with pytest.raises(ConfigError, match=r"sliding.yaml: name: .*stable.yaml has this name, too"):
        both.policies()
    with pytest.raises(ConfigError, match=r"a tenant that auth.keys does not have: alice"):
        load(
            environment={
                "STILLFRAME_AUTH__KEYS": "{alice: a}",
                "STILLFRAME_POLICY_RULES": "[{tenant: bob, policy: stable}]",
            }
        )


async def test_the_plan_is_told_where_it_is_asked_for_alone(rig: Rig) -> None:
    body = ask(*history(*PICTURES[:2]))
    for headers in ({}, {"x-stillframe-explain": "0"}):
        assert "stillframe" not in (await rig.chat(body, headers)).json
        streamed = await rig.chat({**body, "stream": True}, headers)
        assert b'"stillframe":' not in streamed.body


async def test_a_plan_holds_places_ids_and_counts_and_no_text(rig: Rig) -> None:
    messages = history(*PICTURES[:2])
    first = await told(rig, ask(*messages), x_stillframe_conversation="c")
    ids = [one["images"] for one in first["sent"]]
    assert [len(one) for one in ids] == [1, 0, 1]
    assert all(len(one) == 64 for images in ids for one in images)
    assert (first["turn"], first["replayed"], first["breaks"], first["epoch"]) == (1, 0, [], 0)
    assert first["tail"] == []
    changed = [user(text("picture zero"), image(PICTURES[0])), *messages[1:]]
    body = ask(*changed, {"role": "assistant", "content": "ok"}, "secret words")
    answer = await rig.chat(body, {**EXPLAIN, "x-stillframe-conversation": "c"})
    plan = answer.json["stillframe"]
    assert (plan["conversation"], plan["turn"]) == ("c", 2)
    broken = plan["breaks"][0]
    assert set(broken) == {"cause", "actor", "place", "message", "part", "character", "lost_tokens", "detail"}
    assert (broken["cause"], broken["actor"], broken["place"]) == ("client_edit", "client", "messages[0].content[0]")
    assert broken["lost_tokens"] > 0
    assert [one["source"] for one in plan["sent"]] == list(range(5))
    assert {one["role"] for one in plan["sent"]} == {"user", "assistant"}
    assert {one["origin"] for one in plan["sent"]} == {"client"}
    counts = plan["estimates"]
    assert (counts["images"], counts["unique_images"]) == (2, 2)
    assert 0 < counts["visual_tokens"] < counts["prompt_tokens"]
    shown = str(plan)
    assert not any(words in shown for words in ("picture", "secret", "seen 0"))


async def test_an_explained_answer_is_the_answer(rig: Rig) -> None:
    body = ask("hi", seed=1, temperature=0)
    plain, explained = (await rig.chat(body)).json, (await rig.chat(body, EXPLAIN)).json
    assert explained.keys() - plain.keys() == {"stillframe"}
    assert explained["choices"] == plain["choices"]


@pytest.mark.parametrize("usage", [False, True])
async def test_a_stream_ends_with_the_plan(rig: Rig, usage: bool) -> None:
    body = ask(user(text("what?"), image()), stream=True, stream_options={"include_usage": usage})
    answer = await rig.chat(body, EXPLAIN)
    *rest, last, end = answer.events
    assert end == "[DONE]"
    assert (last["object"], last["choices"]) == ("chat.completion.chunk", [])
    assert last["stillframe"]["turn"] == 1
    assert len(last["stillframe"]["sent"]) == 1
    assert not any("stillframe" in event for event in rest)
    assert bool(rest[-1]["choices"]) is not usage
    # And is no part of the reply that the next turn goes on from.
    said = "".join(event["choices"][0]["delta"].get("content") or "" for event in rest if event["choices"])
    turns = ask(*body["messages"], {"role": "assistant", "content": said}, "and?")
    assert (await told(rig, turns))["replayed"] == 2


async def test_the_tail_is_told_by_its_kinds(rig: Rig) -> None:
    plan = await told(rig, ask(*history(*PICTURES[:2])), x_stillframe_policy="reference")
    assert plan["tail"] == ["text", "image"]
    assert [one["images"] for one in plan["sent"]] == [[], [], []]
    assert plan["estimates"]["images"] == 1


async def test_pins_keep_an_image(tmp_path: Path) -> None:
    file = write(tmp_path, MINE.format(kind="batched") + "batched: {high: 2, low: 1}\n")
    async with running(tmp_path, environment={"POLICY": file}) as rig:
        messages = history(*PICTURES)
        first = (await told(rig, ask(messages[0])))["sent"][0]["images"][0]
        plan = await told(rig, ask(*messages))
        assert [len(one["images"]) for one in plan["sent"]] == [0, 0, 0, 0, 1]
    async with running(tmp_path / "other", environment={"POLICY": file}) as rig:
        plan = await told(rig, ask(*messages), x_stillframe_pin=f"{'0' * 64}, {first}")
        assert plan["sent"][0]["images"] == [first]


@pytest.mark.parametrize(
    ("pins", "told"),
    [("abc", "item 1 is not"), (f"{'a' * 64},{'A' * 64}", "item 2 is not"), (",".join(["a" * 64] * 65), "up to 64")],
)
async def test_pins_are_checked(rig: Rig, pins: str, told: str) -> None:
    error = refused(await rig.chat(ask("hi"), {"x-stillframe-pin": pins}), "invalid_pin")
    assert error["param"] == "x-stillframe-pin"
    assert told in error["message"]


@pytest.mark.parametrize(
    ("quota", "value", "place"),
    [
        ("max_images: 2", "3 images, repeats included", "messages[4].content[1]"),
        ("max_unique_images: 1", "2 different images", "messages[4].content[1]"),
        ("max_new_images: 0", "2 images that the turn before did not send", "messages[0].content[1]"),
        ("max_visual_tokens: 1", "visual tokens", "messages[0].content[1]"),
    ],
)
async def test_a_request_beyond_a_quota_is_refused(tmp_path: Path, quota: str, value: str, place: str) -> None:
    name, _, limit = quota.partition(": ")
    file = write(tmp_path, MINE.format(kind="stable") + f"quotas: {{{quota}}}\n")
    async with running(tmp_path, environment={"POLICY": file}) as rig:
        error = refused(await rig.chat(ask(*history(PICTURES[0], PICTURES[0], PICTURES[1]))), "quota_exceeded")
        assert error["param"] == place
        assert value in error["message"]
        assert f"quota {name} is {limit}" in error["message"]
        assert rig.engine.wire == []


async def test_quotas_count_what_is_sent_and_new_is_what_was_not(tmp_path: Path) -> None:
    """The policy sends one image of three, and only one of them is new."""
    text = MINE.format(kind="sliding") + "sliding: {keep_images: 1}\nquotas: {max_images: 1, max_new_images: 1}\n"
    async with running(tmp_path, environment={"POLICY": write(tmp_path, text)}) as rig:
        assert (await rig.chat(ask(*history(*PICTURES)))).status == 200
    text = MINE.format(kind="stable") + "quotas: {max_new_images: 1}\n"
    async with running(tmp_path / "other", environment={"POLICY": write(tmp_path, text)}) as rig:
        messages = history(*PICTURES)
        for end in (1, 3, 5, 5):
            assert (await rig.chat(ask(*messages[:end]))).status == 200
