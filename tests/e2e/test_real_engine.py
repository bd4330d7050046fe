"""The gateway as a user runs it: the command, the real engine, the OpenAI client, the experiment, a crash, a stop."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
from PIL import Image, ImageDraw

from engine.demo_model import bundled_folder
from engine.demo_model.evaluate import (
    GROUPS,
    answer_over_http,
    answer_with_transformers,
    ask_all,
    questions,
    summary,
    wire_messages,
)
from tests.e2e.figures import below_the_card

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
_START_SECONDS = 300
# Of each group, about a second each; what is too few right answers goes by their number.
_QUESTIONS = 40 if os.environ.get("STILLFRAME_LONG") == "1" else 16


@dataclass(slots=True)
class Served:
    """A running `stillframe serve`."""

    process: subprocess.Popen[str]
    url: str
    data: Path
    environment: dict[str, str]

    @property
    def admin(self) -> dict[str, str]:
        return {"authorization": f"Bearer {(self.data / 'admin-token').read_text()}"}

    def ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health/ready", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def cores(self) -> list[psutil.Process]:
        return [
            child for child in psutil.Process(self.process.pid).children() if "EngineCore" in " ".join(child.cmdline())
        ]


def wait_for(what: Callable[[], bool], seconds: float) -> None:
    """Poll another process, which gives nothing to wait on."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, f"not within {seconds} seconds"
        time.sleep(0.1)


def served_by(data: Path, **settings: str) -> Generator[Served]:
    """A gateway with the real engine and settings of its own, given without their prefix."""
    given = {f"STILLFRAME_{key}": value for key, value in settings.items()}
    # How many of them run is said to the tests alone: to the gateway it would be a setting that there is not.
    around = {key: value for key, value in os.environ.items() if key != "STILLFRAME_LONG"}
    environment = around | {"STILLFRAME_DATA_DIR": str(data), "STILLFRAME_ENGINE__KV_CACHE_GIB": "1"} | given
    log = (data / "log").open("w")
    process = subprocess.Popen(
        [sys.executable, "-m", "app.cli", "serve", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env=environment,
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[3].removesuffix("/v1")
        served = Served(process, url, data, environment)
        wait_for(served.ready, _START_SECONDS)
        yield served
    finally:
        process.kill()
        process.communicate()
        log.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    yield from served_by(tmp_path_factory.mktemp("data"))


def picture(text: str) -> str:
    image = Image.new("RGB", (448, 336), "white")
    ImageDraw.Draw(image).text((40, 40), text, fill="black")
    out = io.BytesIO()
    image.save(out, "PNG")
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()


def messages(text: str) -> list[Any]:
    part = {"type": "image_url", "image_url": {"url": picture(text)}}
    return [
        {"role": "system", "content": "You look at pictures and say what is there. " * 8},
        {"role": "user", "content": [part, {"type": "text", "text": "What is in this picture?"}]},
    ]


def test_the_demo_model_answers_as_its_card_says(served: Served) -> None:
    """On questions that nobody has measured it with: the card's are of seed 1."""
    card = json.loads((bundled_folder() / "scores.json").read_text())
    answer = answer_over_http(f"{served.url}/v1", "demo")
    found = summary(asyncio.run(ask_all(answer, GROUPS, _QUESTIONS, seed=20_000)))
    assert below_the_card(found["groups"], card["groups"]) == [], found["groups"]


def test_transformers_gives_the_same_answers(served: Served) -> None:
    chats = [chat for group in GROUPS[:3] for _, chat in questions(group, 8, seed=20_001)]
    over_http, local = answer_over_http(f"{served.url}/v1", "demo"), answer_with_transformers(str(bundled_folder()))

    async def both() -> list[tuple[str, str]]:
        return [(await over_http(wire_messages(chat)), await local(wire_messages(chat))) for chat in chats]

    pairs = asyncio.run(both())
    assert sum(one == two for one, two in pairs) >= len(pairs) - 1
    assert len({one for one, _ in pairs}) > 5


def test_the_second_identical_chat_costs_nothing_but_its_tail(served: Served) -> None:
    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="not needed")
    block = httpx.get(f"{served.url}/admin/state", headers=served.admin).json()["engine"]["block_tokens"]
    before = _metric(served, "stillframe_sent_image_bytes_total")
    for attempt in (1, 2):
        raw = client.chat.completions.with_raw_response.create(model="demo", messages=messages("A"), max_tokens=4)
        answer = raw.parse()
        sent, before = _metric(served, "stillframe_sent_image_bytes_total") - before, before
        record = httpx.get(f"{served.url}/admin/requests/{raw.headers['x-request-id']}", headers=served.admin).json()
        if attempt == 1:
            assert sent > 0
            assert record["encoder_runs"] == 1
            before += sent
            continue
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        full = (answer.usage.prompt_tokens - 1) // block * block
        assert answer.usage.prompt_tokens_details.cached_tokens == full
        assert sent == 0
        assert record["encoder_runs"] == 0


def test_tools_and_streaming_through_the_client(served: Served) -> None:
    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="not needed")
    tool: Any = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    stream = client.chat.completions.create(
        model="demo", messages=messages("B"), max_tokens=4, tools=[tool], stream=True, seed=1
    )
    chunks = list(stream)
    assert all(chunk.choices for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason is not None


def test_the_readme_examples_run(served: Served) -> None:
    readme = (ROOT / "README.md").read_text().replace("http://127.0.0.1:8000", served.url)
    curl = next(block for block in _blocks(readme, "bash") if "curl" in block)
    shown = subprocess.run(["bash", "-euc", curl], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    first, second = shown.splitlines()
    assert "'cached_tokens': 0" in first
    assert "'cached_tokens': 0" not in second
    (python,) = _blocks(readme, "python")
    shown = subprocess.run([sys.executable, "-c", python], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    prompt, read = (int(word) for word in shown.splitlines()[1].split() if word.isdigit())
    assert read == (prompt - 1) // 32 * 32


def _blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


def test_the_experiment_is_as_expected(served: Served, tmp_path: Path) -> None:
    file, plot = tmp_path / "rows.json", tmp_path / "rows.png"
    command = [sys.executable, "-m", "app.cli", "experiment", "--url", served.url]
    done = subprocess.run(
        [*command, "--json", str(file), "--plot", str(plot)], env=served.environment, capture_output=True, text=True
    )
    rows = {(row["group"], row["path"]): row for row in json.loads(file.read_text())["rows"]}
    assert {key: row["verdict"] for key, row in rows.items() if row["verdict"] != "ok"} == {}
    assert done.returncode == 0
    assert len(rows) == 16
    read = {key: row["read_tokens"] for key, row in rows.items()}
    assert read["A", "gateway"] == (rows["A", "gateway"]["prompt_tokens"] - 1) // 32 * 32
    assert read["F", "gateway"] == read["A", "gateway"] > read["F", "direct"]
    assert rows["D", "gateway"]["encoder_hits"] > 0 == rows["D", "gateway"]["encoder_runs"]
    assert read["E", "gateway"] > read["D", "gateway"]
    assert Image.open(plot).size[0] > 800


def test_a_client_that_leaves_frees_the_engine(served: Served) -> None:
    body = {"model": "demo", "messages": messages("C"), "max_tokens": 8000, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{served.url}/v1/chat/completions", json=body, timeout=60) as response:
        chunks = response.iter_bytes()
        assert next(chunks)
        assert _metric(served, "stillframe_running_requests") == 1
    wait_for(lambda: _metric(served, "stillframe_running_requests") == 0, 5)
    # The engine's own gauge moves with its next step.
    httpx.post(f"{served.url}/v1/chat/completions", json={"messages": messages("A"), "max_tokens": 1}, timeout=60)
    wait_for(lambda: _metric(served, "vllm:num_requests_running") == 0, 5)
    assert _metric(served, "vllm:num_requests_waiting") == 0


def test_a_dead_engine_core_is_said_and_started_again(served: Served) -> None:
    (core,) = served.cores()
    core.kill()
    wait_for(lambda: not served.ready(), 10)
    refused = httpx.post(f"{served.url}/v1/chat/completions", json={"messages": messages("A")}, timeout=60)
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "engine_unavailable"
    assert httpx.get(f"{served.url}/health/live").status_code == 200
    wait_for(served.ready, _START_SECONDS)
    body = {"messages": messages("A"), "max_tokens": 1}
    assert httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=60).status_code == 200


def test_it_stops_and_leaves_nothing_behind(served: Served) -> None:
    children = psutil.Process(served.process.pid).children(recursive=True)
    assert children
    served.process.send_signal(signal.SIGTERM)
    assert served.process.wait(60) == 0
    _, alive = psutil.wait_procs(children, timeout=5)
    assert alive == []
    log = (served.data / "log").read_text()
    assert "nanobind: leaked" not in log
    assert "Traceback" not in log


def _metric(served: Served, name: str) -> float:
    text = httpx.get(f"{served.url}/metrics").text
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.split("{")[0].split(" ")[0] == name)
