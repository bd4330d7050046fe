"""One benchmark from start to end: processes, measurements in turn, verdicts."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from metrics.bench import bodies, stages
from metrics.bench.config import BenchConfig
from metrics.bench.processes import Server, serving
from metrics.bench.result import BY_UUID, SEEN, SMALL, BenchResult, Row, Spread, added_latency_rows

_MIB = 1024 * 1024
# Long enough that clients can leave in the middle: about 50 ms an answer.
_SLOW = ("--decode-seconds-per-token", "0.002")


async def run(config: BenchConfig, console: Console | None = None) -> BenchResult:
    """Measure a gateway against a fake engine in another process. Takes about two minutes.

    Args:
        config: what to measure.
        console: where progress is shown; None for none.

    Raises:
        BenchError: a process did not start or did not answer; all processes are ended by then.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # It is drawn between measurements and not from a thread of its own, which would be measured along.
    with Progress(*columns, console=console, auto_refresh=False, disable=console is None) as progress:
        return await _Run(config, progress).all()


class _Run:
    def __init__(self, config: BenchConfig, progress: Progress) -> None:
        self._config, self._progress = config, progress

    async def all(self) -> BenchResult:
        async with self._engine() as engine:
            latency, speeds, lag = await self._against(engine)
            memory = await self._memory(engine)
        leaks = await self._leaks()
        rows = [
            *added_latency_rows(latency),
            _throughput_row(speeds, self._config.clients),
            Row("event-loop lag at p99, decoding 12 MP images", _milli(lag), "ms", "below", 20.0),
            Row(f"peak memory, {self._config.clients} clients with 5 MB bodies", memory / _MIB, "MB", "below", 400.0),
            Row("requests left in the engine", leaks.engine_requests, "", "at most", 0.0),
            Row("sockets and files leaked", leaks.open_files, "", "at most", 0.0),
            Row("tasks leaked", leaks.tasks, "", "at most", 0.0),
        ]
        medians = {name: statistics.median(each) for name, each in speeds.items()}
        return BenchResult(tuple(rows), latency, medians, _machine())

    async def _against(
        self, engine: Server
    ) -> tuple[dict[str, dict[str, Spread]], dict[str, list[float]], float | None]:
        config = self._config
        model = await stages.first_model(engine)
        small = bodies.chat(model, "hello")
        picture = bodies.noise_png(_MIB, config.seed)
        seen = bodies.chat(model, "what is this?", picture)
        async with self._relay(engine) as relay, self._gateway(engine) as gateway:
            servers = {"direct": engine, "relay": relay, "gateway": gateway}
            with_bar = self._bar("latency, small body", config.rounds)
            targets = {name: (server, small) for name, server in servers.items()}
            latency = {SMALL: await stages.latency(targets, config.small_requests, config.rounds, with_bar)}
            with_bar = self._bar("latency, 1 MB image", config.rounds)
            targets = {name: (server, seen) for name, server in servers.items()}
            targets[BY_UUID] = (engine, await stages.named_image(engine, model, picture))
            latency[SEEN] = await stages.latency(targets, config.image_requests, config.rounds, with_bar)
            with_bar = self._bar("throughput", config.rounds)
            speeds = await stages.throughput(
                servers, model, config.throughput_requests, config.clients, config.rounds, with_bar
            )
            lag = await stages.loop_lag(gateway, model, config, self._bar("12 MP images", config.large_images))
        return latency, speeds, lag

    async def _memory(self, engine: Server) -> int:
        # A gateway of its own: a peak never goes down again.
        model = await stages.first_model(engine)
        async with self._gateway(engine) as gateway:
            return await stages.peak_memory(
                gateway, model, self._config, self._bar("memory", self._config.memory_requests)
            )

    async def _leaks(self) -> stages.Leaks:
        async with self._engine(*_SLOW) as engine, self._gateway(engine) as gateway:
            model = await stages.first_model(engine)
            tick = self._bar("clients that leave", self._config.leaving_requests)
            return await stages.clients_leave(engine, gateway, model, self._config, tick)

    def _engine(self, *options: str) -> AbstractAsyncContextManager[Server]:
        command = (sys.executable, "-m", "engine.fake", "--port", "{port}", *options)
        return serving(
            "fake engine", command, ready_path="/v1/models", timeout_seconds=self._config.start_timeout_seconds
        )

    def _relay(self, engine: Server) -> AbstractAsyncContextManager[Server]:
        command = (sys.executable, "-m", "metrics.bench.relay", "--port", "{port}", "--upstream", engine.url)
        return serving("relay", command, ready_path="/v1/models", timeout_seconds=self._config.start_timeout_seconds)

    @asynccontextmanager
    async def _gateway(self, engine: Server) -> AsyncGenerator[Server]:
        """The gateway with a data folder of its own, so that it starts empty and leaves nothing."""
        upstream = f"{engine.url}/v1"
        command = [part.replace("{upstream}", upstream) for part in self._config.gateway_command]
        with tempfile.TemporaryDirectory(prefix="stillframe-bench-") as folder:
            async with serving(
                "gateway",
                command,
                ready_path=self._config.ready_path,
                timeout_seconds=self._config.start_timeout_seconds,
                environment={"STILLFRAME_DATA_DIR": folder},
            ) as gateway:
                yield gateway

    def _bar(self, what: str, total: int) -> stages.Tick:
        task: TaskID = self._progress.add_task(what, total=total)
        self._progress.refresh()

        def tick() -> None:
            self._progress.advance(task)
            self._progress.refresh()

        return tick


def _throughput_row(speeds: Mapping[str, list[float]], clients: int) -> Row:
    ratios = [gateway / direct for gateway, direct in zip(speeds["gateway"], speeds["direct"], strict=True)]
    relayed = [relay / direct for relay, direct in zip(speeds["relay"], speeds["direct"], strict=True)]
    note = f"relay {statistics.median(relayed):.2f}x; direct {statistics.median(speeds['direct']):.0f} requests/s"
    measure = f"throughput at {clients} at a time, against direct"
    return Row(measure, statistics.median(ratios), "x", "at least", 0.35, note)


def _milli(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def _machine() -> dict[str, str]:
    return {"python": platform.python_version(), "cpus": str(os.cpu_count()), "system": platform.system()}
