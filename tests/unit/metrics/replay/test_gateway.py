"""Sessions on a gateway, over HTTP, in front of the fake engine; and the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.cli import main
from context.errors import EngineUnavailable
from engine.fake import FakeConfig
from metrics.experiment_client import GatewayClient
from metrics.replay.figures import Row
from metrics.replay.gateway import GatewayTarget
from metrics.replay.images import trace_images
from metrics.replay.options import Sizes
from metrics.replay.run import run
from metrics.replay.trace import read
from metrics.replay.traces import load_trace
from tests.api.rig import ADMIN, WatchedEngine, serving

SMALL = Sizes((56, 56), 0.1)
TOKEN = ADMIN["authorization"].removeprefix("Bearer ")


async def _rows(folder: Path, spec: str, *policies: str, config: FakeConfig | None = None) -> list[Row]:
    async with (
        serving(folder, WatchedEngine(config)) as (_, host, port),
        trace_images() as images,
        GatewayClient(f"http://{host}:{port}", TOKEN).connected() as client,
    ):
        target = await GatewayTarget.open(client, images)
        return await run(target, images, [load_trace(spec, SMALL)], policies)


async def test_a_session_over_http(tmp_path: Path) -> None:
    stable, sliding, again = await _rows(tmp_path, "t1:steps=8", "stable", "sliding", "stable")
    assert [one.engine for one in (stable, sliding)] == ["simulated", "simulated"]
    assert stable.breaks == {}
    assert sliding.breaks == {"policy_eviction": 5}
    assert (sliding.computed_tokens or 0) > (stable.computed_tokens or 0) > 0
    # Each session is a conversation of its own: the third finds nothing of the first.
    assert again.computed_tokens == stable.computed_tokens
    assert again.by_turn[0].read_tokens == stable.by_turn[0].read_tokens == 0
    assert stable.floor_tokens == again.floor_tokens == again.by_turn[-1].prompt_tokens
    assert stable.ttft_seconds is not None


async def test_a_refused_turn_is_told_and_the_session_goes_on(tmp_path: Path) -> None:
    (found,) = await _rows(tmp_path, "t4", "observe", config=FakeConfig(max_images_per_prompt=3))
    assert 0 < found.refused_turns < found.turns
    assert all("At most 3 image" in (turn.refused or "") for turn in found.by_turn if turn.refused)


async def test_an_unknown_policy_ends_it(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match="refused"):
        await _rows(tmp_path, "t2", "nobody")


def _run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["replay", *arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


SIZE = ("--image-size", "56x56", "--text-scale", "0.1")


def test_the_command_simulates(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    plot = tmp_path / "rows.png"
    specs = ("t1:steps=5", "t2")
    assert _run(*specs, "--simulate", "--policy", "stable", "sliding", "--json", "-", "--plot", str(plot), *SIZE) == 0
    rows = json.loads(capfd.readouterr().out)["rows"]
    found = [(row["trace"], row["policy"]) for row in rows]
    assert found == [(spec, policy) for spec in specs for policy in ("stable", "sliding")]
    wanted = {"turns", "prompt_tokens", "read_tokens", "write_tokens", "uncached_tokens", "floor_tokens", "breaks"}
    assert wanted | {"ttft_seconds", "computed_over_floor", "by_turn"} <= rows[0].keys()
    assert rows[0]["engine"] == "simulated"
    assert plot.exists()


def test_the_command_exports_a_trace_that_can_be_replayed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.jsonl"
    assert _run("t4", "--export", str(file), *SIZE) == 0
    assert len(read(file).turns) == 6
    assert _run(str(file), "t4", "--simulate", "--json", "-", *SIZE) == 0
    mine, named = json.loads(capfd.readouterr().out)["rows"]
    assert mine.pop("trace") == "mine"
    assert named.pop("trace") == "t4"
    assert mine == named


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("t1", "--simulate", "--url", "127.0.0.1:8000"), "needs no gateway"),
        (("t1", "--simulate", "--policy", "nobody"), "there is no policy 'nobody'"),
        (("t1", "--url", "127.0.0.1:8000", "--policy", "mine.yaml"), "knows policies by name"),
        (("t1", "--simulate", "--image-size", "large"), "such as 1280x800"),
        (("t1", "--simulate", "--text-scale", "0"), "factor above 0"),
        (("t1", "t2", "--export", "both.jsonl"), "writes one trace"),
        (("t1", "--simulate", "--plot", "rows.pdf"), "must end in .png"),
        (("t8", "--simulate"), "is neither one of t1"),
    ],
)
def test_a_bad_option_is_explained(
    arguments: tuple[str, ...],
    words: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert _run(*arguments) == 2
    assert words in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []
