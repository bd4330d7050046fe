"""The demonstration as a user runs it: on an upstream, interrupted, and on the real engine as the README says."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from PIL import Image

from metrics.demo_plan import make_plan

ROOT = Path(__file__).parents[2]
# One may be wrong: it is asked to count, which is no yardstick.
MIN_RIGHT = 7


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "app.cli", "demo", *arguments]


def _environment(folder: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("STILLFRAME_", "FORCE_COLOR"))}
    return kept | {
        "STILLFRAME_DATA_DIR": str(folder),
        "STILLFRAME_ENGINE__KV_CACHE_GIB": "1",
        "PYTHONIOENCODING": "utf-8",
        "PYTHONUNBUFFERED": "1",
    }


@contextmanager
def fake_engine(*arguments: str) -> Generator[str]:
    """A fake engine in another process."""
    fake = subprocess.Popen(
        [sys.executable, "-m", "engine.fake", "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert fake.stdout is not None
        yield f"{fake.stdout.readline().split()[-1]}/v1"
    finally:
        fake.kill()
        fake.communicate()


def test_it_plays_on_an_upstream(tmp_path: Path) -> None:
    arguments = ("--seed", "2", "--json", "-", "--save", str(tmp_path / "a" / "b"))
    with fake_engine("--echo") as upstream:
        command, environment = _command("--upstream", upstream, *arguments), _environment(tmp_path)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["seed"], len(told["turns"])) == (2, 8)
    # An upstream cannot tell; unknown is not zero.
    assert {turn["encoder_runs"] for turn in told["turns"]} == {None}
    # Each answer is the beginning of its question.
    assert all(turn["answer"] and turn["question"].startswith(turn["answer"]) for turn in told["turns"])
    assert all(f"A  {turn['answer'][:30]}" in done.stderr for turn in told["turns"])
    assert all(f"✗ wrong (right: {turn['expected']})\n" in done.stderr for turn in told["turns"])
    assert "0 of 8 answers right." in done.stderr
    assert "Starting a gateway and its upstream." in done.stderr
    assert "Turn 8 of 8" in done.stderr
    _assert_saved(tmp_path / "a" / "b", seed=2)


def _assert_saved(folder: Path, seed: int) -> None:
    sizes = [(picture.scene.width, picture.scene.height) for picture in make_plan(seed).pictures]
    for number, size in enumerate(sizes, 1):
        with Image.open(folder / f"picture-{number}.png") as image:
            assert (image.format, image.size) == ("PNG", size)


def test_a_gateway_that_is_not_there_is_said(tmp_path: Path) -> None:
    command = _command("--url", "http://127.0.0.1:9")
    done = subprocess.run(command, env=_environment(tmp_path), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "stillframe: There is no gateway at http://127.0.0.1:9. Start one with 'stillframe serve'.\n"


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("behind", ["", "trap '' INT; "], ids=["in front", "behind a script"])
def test_it_can_be_interrupted_while_it_waits(tmp_path: Path, kind: signal.Signals, behind: str) -> None:
    with subprocess.Popen(
        ["/bin/sh", "-c", f'{behind}exec "$@"', "sh", *_command("--upstream", "http://127.0.0.1:9/v1")],
        env=_environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as demo:
        assert demo.stderr is not None
        said = ""
        while "Waiting for the engine." not in said:
            said += demo.stderr.readline()
        demo.send_signal(kind)
        assert demo.wait(30) == 130
        assert demo.stderr.read().splitlines()[-1] == "stillframe: interrupted"


def test_it_can_be_interrupted_in_the_middle_of_an_answer(tmp_path: Path) -> None:
    """The gateway stops although the engine would go on for minutes."""
    with (
        # An engine that its gateway asks nothing: what it would be asked takes as long.
        fake_engine("--decode-seconds-per-token", "60") as upstream,
        subprocess.Popen(
            _command("--upstream", upstream),
            env=_environment(tmp_path)
            | {"STILLFRAME_UPSTREAMS__ACCEPTS_UUID": "true", "STILLFRAME_UPSTREAMS__ACCEPTS_CACHE_SALT": "true"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as demo,
    ):
        assert demo.stdout is not None
        assert demo.stderr is not None
        assert demo.stdout.readline().startswith("Prompt tokens of each turn")
        demo.send_signal(signal.SIGINT)
        assert demo.wait(30) == 130
        said = demo.stderr.read()
        assert said.splitlines()[-1] == "stillframe: interrupted"
        assert "Traceback" not in said


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_the_readme_command_on_the_real_engine(tmp_path: Path) -> None:
    block = next(
        b for b in re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.S) if "stillframe demo" in b
    )
    arguments = shlex.split(next(line for line in block.splitlines() if "demo" in line))[2:]
    command = _command(*arguments, "--json", str(tmp_path / "turns.json"))
    environment = _environment(tmp_path / "data") | {"PYTHONPATH": str(ROOT)}
    demo = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert demo.returncode == 0, demo.stderr
    assert "Starting a gateway and its engine; about a minute." in demo.stderr
    for log in (demo.stdout, demo.stderr):
        assert "Traceback" not in log
    _assert_saved(tmp_path / "pictures", seed=0)
    told = json.loads((tmp_path / "turns.json").read_text())
    turns: list[dict[str, Any]] = told["turns"]
    assert told["totals"]["right"] >= MIN_RIGHT
    assert f"{told['totals']['right']} of 8 answers right." in demo.stdout
    assert [turn["turn"] for turn in turns[1:] if turn["read_tokens"] < turn["history_tokens"]] == [7]
    assert turns[0]["read_tokens"] == 0 < turns[6]["read_tokens"]
    assert [turn["encoder_runs"] for turn in turns] == [2, 0, 0, 1, 0, 0, 0, 0]
    # A picture that ends inside of the last block that was read is needed once more; what moved is needed whole.
    assert turns[6]["encoder_hits"] == 2
    assert all(turn["encoder_hits"] <= 1 for turn in turns if turn["turn"] != 7)


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_an_interrupt_leaves_no_engine_behind(tmp_path: Path) -> None:
    with subprocess.Popen(
        _command(), env=_environment(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as demo:
        process = psutil.Process(demo.pid)
        end = time.monotonic() + 300
        while not (cores := [c for c in process.children() if "EngineCore" in " ".join(c.cmdline())]):
            assert time.monotonic() < end
            assert demo.poll() is None
            time.sleep(0.1)
        children = process.children(recursive=True)
        assert set(cores) <= set(children)
        demo.send_signal(signal.SIGINT)
        assert demo.wait(60) == 130
        _, alive = psutil.wait_procs(children, timeout=5)
        assert alive == []
        assert demo.stderr is not None
        said = demo.stderr.read()
    assert said.splitlines()[-1] == "stillframe: interrupted"
    assert "Traceback" not in said
