"""Who may have a request answered with approximate KV of its images: a policy, and a client where it is allowed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.base import ChatRequest, EngineInfo, EngineReply
from tests.api.rig import Rig, WatchedEngine, ask, image, running, text, user
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
        answer = await asked(rig, {REUSE: header} if header else {})
        assert answer.status == 200, answer.body
        assert engine.ratios == [expected]
        told = None if expected is None else f"position_independent; ratio={expected:g}"
        assert answer.headers.get(REUSE) == told


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
