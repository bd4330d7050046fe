"""Who may have a request answered with approximate KV of its images: a policy, and a client where it is allowed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import from_json, to_json

from app.image_reuse import remedy
from engine import asgi
from engine.base import ChatRequest, EngineHealth, EngineInfo, EngineReply
from tests.api.rig import CHAT, JSON, Rig, WatchedEngine, ask, image, running, text, user
from tests.api.test_engine_checks import checked

REUSE = "x-stillframe-reuse"
POLICY = 'name: mine\nversion: "1"\nkind: stable\nreuse: {{mode: position_independent, ratio: {ratio}}}\n'


class ReusingEngine(WatchedEngine):
    """The fake engine, as one that keeps images' KV; `ratios` has what it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.ratios: list[float | None] = []
        self.profiles: list[bool] = []
        self.has_profile = False

    def info(self) -> EngineInfo:
        return replace(super().info(), reuses_images=True, has_layer_profile=self.has_profile)

    @asynccontextmanager
    async def chat(self, request: ChatRequest) -> AsyncGenerator[EngineReply]:
        self.ratios.append(request.reuse.ratio if request.reuse else None)
        self.profiles.append(request.reuse is not None and request.reuse.profile)
        async with super().chat(request) as reply:
            yield reply


def gateway(folder: Path, engine: WatchedEngine, ratio: float | str | None = None, *, header: bool = False) -> Any:
    environment = {"REUSE_HEADER": str(header).lower()}
    if ratio is not None:
        file = folder / "mine.yaml"
        file.write_text(POLICY.format(ratio=ratio))
        environment["POLICY"] = str(file)
    return running(folder, engine=engine, environment=environment)


async def asked(rig: Rig, headers: Mapping[str, str] | None = None, **body: Any) -> Any:
    return await rig.chat(ask(user(text("what is it"), image("base.png")), **body), headers or {})


@pytest.mark.parametrize(
    ("of_policy", "header", "expected"),
    [
        (None, None, None),
        (0.05, None, 0.05),
        (1, None, None),
        (0, None, 0.0),
        (None, "0.3", 0.3),
        (0.05, "0.3", 0.3),
        (0.05, "off", None),
        (0.05, "1", None),
    ],
)
async def test_the_client_s_word_goes_before_the_policy_s(
    tmp_path: Path, of_policy: float | None, header: str | None, expected: float | None
) -> None:
    engine = ReusingEngine()
    async with gateway(tmp_path, engine, of_policy, header=True) as rig:
        engine.ratios.clear()
        answer = await asked(rig, {"x-stillframe-explain": "1"} | ({REUSE: header} if header else {}))
        assert answer.status == 200, answer.body
        assert engine.ratios == [expected]
        told = None if expected is None else f"position_independent; ratio={expected:g}"
        assert answer.headers.get(REUSE) == told
        in_force = {"ratio": expected, "profile": False, "by": "client" if header else "policy"}
        assert answer.json["stillframe"].get("reuse") == (None if expected is None else in_force)


@pytest.mark.parametrize(
    ("allowed", "header", "code"),
    [
        (False, "0.05", "reuse_not_allowed"),
        (True, "much", "invalid_reuse"),
        (True, "1.5", "invalid_reuse"),
        (True, "0.5;", "invalid_reuse"),
        (True, "0.5; layers", "invalid_reuse"),
    ],
)
async def test_a_header_that_may_not_be_or_says_nothing_is_refused(
    tmp_path: Path, allowed: bool, header: str, code: str
) -> None:
    async with gateway(tmp_path, ReusingEngine(), header=allowed) as rig:
        answer = await asked(rig, {REUSE: header})
        assert (answer.status, answer.error["code"], answer.error["param"]) == (400, code, REUSE)


@pytest.mark.parametrize("header", ["0.3; profile", "0.3;profile", " 0.3 ;  profile "])
async def test_a_client_may_want_its_share_by_layer_where_the_engine_knows_its_layers(
    tmp_path: Path, header: str
) -> None:
    engine = ReusingEngine()
    async with gateway(tmp_path, engine, header=True) as rig:
        answer = await asked(rig, {REUSE: header})
        assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "no_reuse_profile", REUSE)
        engine.has_profile = True
        answer = await asked(rig, {REUSE: header})
        assert (engine.ratios[-1], engine.profiles[-1]) == (0.3, True)
        assert answer.headers.get(REUSE) == "position_independent; ratio=0.3; profile"
        answer = await asked(rig, {REUSE: "0.3"})
        assert (engine.ratios[-1], engine.profiles[-1]) == (0.3, False)
        assert answer.headers.get(REUSE) == "position_independent; ratio=0.3"


@pytest.mark.parametrize("has_profile", [True, False])
async def test_a_policy_may_want_it_by_layer_and_is_told_of_where_the_engine_cannot(
    tmp_path: Path, has_profile: bool, caplog: pytest.LogCaptureFixture
) -> None:
    engine = ReusingEngine()
    engine.has_profile = has_profile
    async with gateway(tmp_path, engine, "0.2, profile: true") as rig:
        await checked(rig, "template_appends", "yes")
        answer = await asked(rig)
        assert (engine.ratios[-1], engine.profiles[-1]) == (0.2, True)
        assert answer.headers.get(REUSE) == f"position_independent; ratio=0.2{'; profile' if has_profile else ''}"
    said = [one for one in caplog.records if "no profile of its layers, so that mine has all" in one.getMessage()]
    assert len(said) == (not has_profile)


async def test_a_body_cannot_ask_for_it(tmp_path: Path) -> None:
    params = {"stillframe": {"mode": "position_independent", "ratio": 0.05}}
    engine = ReusingEngine()
    async with gateway(tmp_path, engine) as rig:
        answer = await asked(rig, kv_transfer_params=params, vllm_xargs={"kv_transfer_params": params})
        assert answer.status == 200, answer.body
        assert engine.ratios[-1] is None
        assert "kv_transfer_params" not in str(engine.sent[-1])


async def test_a_request_without_images_has_nothing_to_use_again_and_other_engines_say_nothing(tmp_path: Path) -> None:
    engine = ReusingEngine()
    async with gateway(tmp_path, engine, 0.05) as rig:
        await rig.chat(ask("hi"))
        assert engine.ratios[-1] is None
    other = tmp_path / "other"
    other.mkdir()
    async with gateway(other, WatchedEngine(), 0.05) as rig:
        assert REUSE not in (await asked(rig)).headers


@pytest.mark.parametrize(("engine", "warnings"), [(WatchedEngine, 1), (ReusingEngine, 0)])
async def test_a_policy_that_the_engine_cannot_follow_is_told_of_once(
    tmp_path: Path, engine: type[WatchedEngine], warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with gateway(tmp_path, engine(), 0.05) as rig:
        await checked(rig, "template_appends", "yes")
    said = [
        record for record in caplog.records if "keeps no KV of images, so that mine computes all" in record.getMessage()
    ]
    assert len(said) == warnings


async def test_a_client_that_wants_it_of_an_engine_that_cannot_is_told_what_to_set(tmp_path: Path) -> None:
    async with gateway(tmp_path, WatchedEngine(), header=True) as rig:
        answer = await asked(rig, {REUSE: "0.05"})
        assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "no_image_kv", REUSE)
        assert "set engine.vllm.image_kv" in answer.error["message"]
        # It wants nothing that is not done.
        assert [(await asked(rig, {REUSE: word})).status for word in ("off", "1")] == [200, 200]


@pytest.mark.parametrize(("engine", "also"), [(WatchedEngine, True), (ReusingEngine, False)])
async def test_who_may_not_ask_is_told_all_that_is_missing(
    tmp_path: Path, engine: type[WatchedEngine], also: bool
) -> None:
    async with gateway(tmp_path, engine()) as rig:
        answer = await asked(rig, {REUSE: "0.05"})
        assert (answer.status, answer.error["code"]) == (400, "reuse_not_allowed")
        assert "switch reuse_header on" in answer.error["message"]
        assert ("set engine.vllm.image_kv" in answer.error["message"]) == also


class StartingEngine(WatchedEngine):
    """One that has not begun to say what it can."""

    def health(self) -> EngineHealth:
        return EngineHealth("starting", "it loads")


async def test_while_the_engine_loads_nothing_is_said_of_what_it_cannot(tmp_path: Path) -> None:
    async with gateway(tmp_path, StartingEngine(), header=True) as rig:
        answer = await asked(rig, {REUSE: "0.05; profile"})
        assert (answer.status, answer.error["code"]) == (503, "engine_unavailable")


@pytest.mark.parametrize(
    ("headers", "expected"), [(("0.3", "off"), None), (("0.3", "0.05"), None), (("0.3", " 0.3"), 0.3)]
)
async def test_a_header_given_twice_counts_where_both_say_the_same(
    tmp_path: Path, headers: tuple[str, str], expected: float | None
) -> None:
    engine = ReusingEngine()
    async with gateway(tmp_path, engine, header=True) as rig:
        # Mappings hold a header once: the second one is written by hand.
        async def twice(scope: Any, receive: Any, send: Any) -> None:
            scope["headers"] += [(REUSE.encode(), value.encode()) for value in headers]
            await rig.app(scope, receive, send)

        body = to_json(ask(user(text("what is it"), image("base.png"))))
        async with asgi.call(twice, "POST", CHAT, headers=JSON, body=[body]) as reply:
            said = from_json(await reply.read())
        if expected is None:
            assert reply.status == 400
            assert (said["error"]["code"], said["error"]["param"]) == ("repeated_header", REUSE)
        else:
            assert (reply.status, engine.ratios[-1]) == (200, expected)


@pytest.mark.parametrize(("engine", "warnings"), [(WatchedEngine, 1), (ReusingEngine, 0)])
async def test_a_header_that_the_engine_cannot_follow_is_told_of_at_the_start(
    tmp_path: Path, engine: type[WatchedEngine], warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with gateway(tmp_path, engine(), header=True) as rig:
        await checked(rig, "template_appends", "yes")
    said = [record.getMessage() for record in caplog.records if "reuse_header is on, but" in record.getMessage()]
    assert len(said) == warnings
    assert all("set engine.vllm.image_kv, or switch reuse_header off" in line for line in said)


def test_who_serves_an_upstream_is_not_told_to_set_what_it_does_not_read() -> None:
    assert remedy(EngineInfo("remote")).startswith("serve the model with the embedded engine and engine.vllm.image_kv")
    assert remedy(EngineInfo("vllm")) == "set engine.vllm.image_kv"
