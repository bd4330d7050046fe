"""The benchmark's arithmetic, and a whole small run in which a plain relay stands for the gateway."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from PIL import Image
from pydantic_core import from_json

from metrics.bench import BenchConfig, BenchError, bodies, exposition, run, stages
from metrics.bench.load import Reply, connect, fetch, quantile
from metrics.bench.processes import Server, serving
from metrics.bench.result import BenchResult, Row, Spread, added_latency_rows
from tests.contract.remote_fixtures import Exchange, Received, scripted

_RELAY = (sys.executable, "-m", "metrics.bench.relay", "--port", "{port}", "--upstream", "{upstream}")
_BRIEF = BenchConfig(
    gateway_command=_RELAY,
    ready_path="/v1/models",
    rounds=2,
    small_requests=10,
    image_requests=2,
    throughput_requests=32,
    clients=4,
    large_images=1,
    memory_requests=4,
    memory_body_bytes=200_000,
    leaving_requests=60,
)

_HISTOGRAM = """# TYPE lag histogram
lag_bucket{{le="0.01"}} {0}
lag_bucket{{le="0.02"}} {1}
lag_bucket{{le="+Inf"}} {2}
lag_count {2}
lag_sum 1
"""


@pytest.mark.parametrize(("share", "expected"), [(0.5, 2.0), (0.75, 3.0), (0.99, 4.0), (0.0, 1.0)])
def test_quantile_is_a_sample(share: float, expected: float) -> None:
    assert quantile([4.0, 1.0, 3.0, 2.0], share) == expected


class TestExposition:
    def test_only_what_came_between_two_readings_counts(self) -> None:
        before = exposition.buckets(_HISTOGRAM.format(0, 0, 1000), "lag")
        after = exposition.buckets(_HISTOGRAM.format(50, 100, 1100), "lag")
        assert before is not None
        assert after is not None
        assert exposition.quantile_between(before, after, 0.99) == pytest.approx(0.0198)
        assert exposition.quantile_between({}, after, 0.99) == 0.02

    def test_what_is_not_there_is_unknown(self) -> None:
        text = _HISTOGRAM.format(1, 2, 3)
        assert exposition.buckets(text, "other") is None
        assert exposition.value(text, "tasks") is None
        same = exposition.buckets(text, "lag") or {}
        assert exposition.quantile_between(same, same, 0.99) is None

    def test_value(self) -> None:
        assert exposition.value("# TYPE tasks gauge\ntasks 7.0\n", "tasks") == 7.0


class TestVerdicts:
    @pytest.mark.parametrize(
        ("bound", "value", "verdict"),
        [
            ("at most", 2.0, "pass"),
            ("at most", 2.1, "fail"),
            ("below", 2.0, "fail"),
            ("at least", 2.0, "pass"),
            ("at least", 1.9, "fail"),
            ("at most", None, "unknown"),
        ],
    )
    def test_a_limit(self, bound: str, value: float | None, verdict: str) -> None:
        assert Row("m", value, "ms", bound, 2.0).verdict == verdict  # pyright: ignore[reportArgumentType]

    def test_unknown_does_not_pass(self) -> None:
        good = Row("m", 1.0, "ms", "at most", 2.0)
        assert BenchResult((good, Row("figure", 5.0, "ms"))).passed
        assert not BenchResult((good, Row("m", None, "ms", "at most", 2.0))).passed

    def test_the_gateway_is_judged_by_what_it_adds(self) -> None:
        spreads = {
            "direct": Spread(0.010, 0.020, 0.0),
            "relay": Spread(0.012, 0.022, 0.0),
            "gateway": Spread(0.0125, 0.021, 0.0),
            "direct by uuid": Spread(0.0005, 0.001, 0.0),
        }
        rows = {row.measure: row for row in added_latency_rows({"1 MB image seen before": spreads})}
        assert rows["1 MB image seen before: added at p50"].value == pytest.approx(2.5)
        assert rows["1 MB image seen before: added at p99"].value == pytest.approx(1.0)
        ratio = rows["1 MB image seen before: added at p50, against the relay"]
        assert (ratio.value, ratio.verdict) == (pytest.approx(1.25), "pass")
        assert rows["1 MB image seen before: p50 over a direct call by uuid"].value == pytest.approx(12.0)

    def test_no_ratio_to_a_relay_within_the_noise(self) -> None:
        spreads = {"direct": Spread(2, 2, 0), "relay": Spread(1, 1, 0), "gateway": Spread(3, 3, 0)}
        rows = added_latency_rows({"1 MB image seen before": spreads})
        assert rows[-1].verdict == "unknown"


class TestBodies:
    def test_a_picture_has_about_the_size_and_its_own_pixels(self) -> None:
        first, same, other = (bodies.noise_png(100_000, seed) for seed in (1, 1, 2))
        assert first == same != other
        assert 95_000 < len(_decoded(first)) < 110_000

    def test_large_pictures_have_twelve_megapixels_and_fit_a_request(self) -> None:
        jpeg, *_, png = made = bodies.large_pictures(4, seed=1)
        assert len(set(made)) == 4
        for url, kind in ((jpeg, "JPEG"), (png, "PNG")):
            content = _decoded(url)
            assert len(content) < 20 * 1024 * 1024
            with Image.open(io.BytesIO(content)) as picture:
                assert (picture.format, picture.width * picture.height) == (kind, 12_000_000)


def _decoded(url: bytes) -> bytes:
    return base64.b64decode(url.partition(b",")[2])


class TestProcesses:
    async def test_one_that_ends_says_why(self) -> None:
        command = (sys.executable, "-c", "import sys; sys.exit('no such thing')")
        with pytest.raises(BenchError, match="no such thing"):
            async with serving("gateway", command, ready_path="/", timeout_seconds=30):
                pass

    async def test_one_that_never_answers_is_ended(self, tmp_path: Path) -> None:
        told = tmp_path / "pid"
        program = f"import os, pathlib, time; pathlib.Path({str(told)!r}).write_text(str(os.getpid())); time.sleep(600)"
        with pytest.raises(BenchError, match="was not ready"):
            async with serving("gateway", (sys.executable, "-c", program), ready_path="/", timeout_seconds=2):
                pass
        with pytest.raises(ProcessLookupError):
            os.kill(int(told.read_text()), 0)

    async def test_what_a_process_has(self) -> None:
        command = (sys.executable, "-m", "engine.fake", "--port", "{port}")
        async with serving("fake engine", command, ready_path="/v1/models", timeout_seconds=60) as server:
            assert 1 << 20 < server.memory_bytes() <= server.peak_memory_bytes()
            assert server.cpu_seconds() > 0
            files = server.open_files()
            connections = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
            # An answer to a later connection: the earlier ones were taken.
            await fetch(server.port, "/health")
            assert server.open_files() == files + 3
            for _, writer in connections:
                writer.close()
                await writer.wait_closed()

    async def test_a_peak_does_not_go_down(self) -> None:
        size = 64 << 20
        program = (
            "import mmap, socket, sys\n"
            f"held = mmap.mmap(-1, {size}); held.write(b'x' * {size}); held.close()\n"
            "listener = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n"
            "while True:\n"
            "    connection, _ = listener.accept()\n"
            "    connection.recv(4096)\n"
            "    connection.sendall(b'HTTP/1.1 200 OK\\r\\ncontent-length: 0\\r\\n\\r\\n')\n"
            "    connection.close()\n"
        )
        command = (sys.executable, "-c", program, "{port}")
        async with serving("holder", command, ready_path="/", timeout_seconds=60) as server:
            assert server.peak_memory_bytes() >= server.memory_bytes() + size


@asynccontextmanager
async def _fake_engine() -> AsyncGenerator[Server]:
    command = (sys.executable, "-m", "engine.fake", "--port", "{port}")
    async with serving("fake engine", command, ready_path="/v1/models", timeout_seconds=60) as engine:
        yield engine


async def _send(server: Server, request: bytes) -> Reply:
    connection = await connect(server.port)
    try:
        return await connection.send(request)
    finally:
        connection.leave()


class TestStages:
    async def test_by_its_uuid_a_picture_does_not_travel(self) -> None:
        picture = bodies.noise_png(100_000, 1)
        async with _fake_engine() as engine:
            model = await stages.first_model(engine)
            unknown = bodies.chat(model, "what is this?", b"", uuid="never sent")
            assert (await _send(engine, unknown)).status == 400
            named = await stages.named_image(engine, model, picture)
            answer = await _send(engine, named)
            shown = await _send(engine, bodies.chat(model, "what is this?", picture))
        assert len(named) < 1000
        assert answer.status == shown.status == 200
        # It stands for the same picture.
        by_uuid, in_full = (from_json(reply.body)["usage"] for reply in (answer, shown))
        assert by_uuid["prompt_tokens"] == in_full["prompt_tokens"]
        images = [usage["prompt_tokens_details"]["multimodal_tokens"]["image"] for usage in (by_uuid, in_full)]
        assert images[0] == images[1] > 0

    async def test_the_memory_stage_sends_as_many_pictures_as_it_says_each_once(self) -> None:
        ticks: list[None] = []
        async with _fake_engine() as engine:
            model = await stages.first_model(engine)
            before = engine.peak_memory_bytes()
            peak = await stages.peak_memory(engine, model, _BRIEF, lambda: ticks.append(None))
            assert before <= peak <= engine.peak_memory_bytes()
            lines = (await stages.metrics_of(engine)).splitlines()
        seen = {line.partition("{")[0]: int(line.rpartition(" ")[2]) for line in lines if line.startswith("vllm:mm_")}
        assert len(ticks) == _BRIEF.memory_requests
        assert seen == {"vllm:mm_cache_queries_total": _BRIEF.memory_requests, "vllm:mm_cache_hits_total": 0}

    async def test_the_relay_hands_on_what_it_gets(self) -> None:
        async def upstream(request: Received, exchange: Exchange) -> bool:
            await exchange.answer(418, b"[" + request.body + b"]", {"content-type": "text/x-answer"})
            return True

        request = bodies.chat("m", "hello", bodies.noise_png(300_000, 1))
        async with scripted(upstream) as scripted_:
            command = [part.replace("{upstream}", scripted_.url) for part in _RELAY]
            async with serving("relay", command, ready_path="/v1/models", timeout_seconds=60) as relay:
                answer = await _send(relay, request)
            (received,) = scripted_.chats
        assert (received.method, received.path) == ("POST", "/v1/chat/completions")
        assert received.body == request.partition(b"\r\n\r\n")[2]
        assert (answer.status, answer.body) == (418, b"[" + received.body + b"]")


@pytest.mark.slow
async def test_a_whole_run_with_a_relay_as_the_gateway() -> None:
    result = await run(_BRIEF)
    shown = json.loads(json.dumps(result.to_json()))
    rows = {row["measure"]: row for row in shown["rows"]}
    assert set(shown["latency"]) == {"small body", "1 MB image seen before"}
    assert {"direct", "relay", "gateway"} == set(shown["latency"]["small body"])
    assert {"direct", "relay", "gateway", "direct by uuid"} == set(shown["latency"]["1 MB image seen before"])
    spreads = [spread for body in shown["latency"].values() for spread in body.values()]
    assert all(0 < spread["p50_seconds"] <= spread["p99_seconds"] for spread in spreads)
    assert rows["requests left in the engine"]["value"] == 0
    assert rows["sockets and files leaked"]["value"] == 0
    memory = rows["peak memory, 4 clients with 5 MB bodies"]
    assert (memory["unit"], memory["bound"], memory["limit"]) == ("MB", "below", 400.0)
    assert memory["verdict"] == ("pass" if memory["value"] < 400 else "fail")
    # A relay reports none of the gateway's metrics: that is not a pass.
    assert rows["tasks leaked"]["verdict"] == "unknown"
    assert rows["event-loop lag at p99, decoding 12 MP images"]["verdict"] == "unknown"
    assert not shown["passed"]
    assert result.table().row_count == len(shown["rows"])


async def test_a_gateway_that_does_not_start_is_an_error() -> None:
    broken = BenchConfig(gateway_command=(sys.executable, "-c", "raise SystemExit('no port')"), rounds=1)
    with pytest.raises(BenchError, match="no port"):
        await run(broken)
