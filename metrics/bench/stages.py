"""The single measurements. Each gets running servers and gives figures; none of them knows a limit."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pydantic_core import from_json

from metrics.bench import bodies, exposition
from metrics.bench.config import BenchConfig
from metrics.bench.errors import BenchError
from metrics.bench.load import (
    Connection,
    all_of,
    at_a_time,
    connect,
    expect_ok,
    fetch,
    one_after_another,
    quantile,
)
from metrics.bench.processes import Server
from metrics.bench.result import Spread

LAG = "stillframe_event_loop_lag_seconds"
TASKS = "stillframe_asyncio_tasks"
_WARM_UP = 3
_UUID = "stillframe-bench"
_LONGEST_STAY_SECONDS = 0.12

Tick = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Leaks:
    """What is left after clients left: None where the gateway does not report it."""

    engine_requests: int
    open_files: int
    tasks: int | None


async def latency(
    targets: Mapping[str, tuple[Server, bytes]], count: int, rounds: int, tick: Tick
) -> dict[str, Spread]:
    """Send each target its request in turn, `count` times a round, one at a time."""
    samples: dict[str, list[tuple[float, float, float]]] = {name: [] for name in targets}
    for number in range(rounds):
        # The order changes, so that what one leaves behind (a cache, a clock rate) does not always meet the same one.
        names = list(targets)
        names = names[number % len(names) :] + names[: number % len(names)]
        for name in names:
            samples[name].append(await _round(*targets[name], count))
        tick()
    return {
        name: Spread(*(statistics.median(each) for each in zip(*taken, strict=True))) for name, taken in samples.items()
    }


async def _round(server: Server, request: bytes, count: int) -> tuple[float, float, float]:
    connection = await connect(server.port)
    try:
        await one_after_another(connection, request, _WARM_UP)
        before = server.cpu_seconds()
        seconds = await one_after_another(connection, request, count)
        used = server.cpu_seconds() - before
    finally:
        connection.leave()
    return quantile(seconds, 0.5), quantile(seconds, 0.99), used / count


async def named_image(engine: Server, model: str, picture: bytes) -> bytes:
    """A request that names an image by its uuid alone, after the engine was given its bytes."""
    connection = await connect(engine.port)
    try:
        expect_ok(await connection.send(bodies.chat(model, "what is this?", picture, uuid=_UUID)))
    finally:
        connection.leave()
    return bodies.chat(model, "what is this?", b"", uuid=_UUID)


async def throughput(
    servers: Mapping[str, Server], model: str, count: int, clients: int, rounds: int, tick: Tick
) -> dict[str, list[float]]:
    """Requests a second of each server, by round. Each server gets the same ones, and none of them twice."""
    taken: dict[str, list[float]] = {name: [] for name in servers}

    for number in range(rounds):
        names = list(servers)[:: 1 if number % 2 == 0 else -1]
        requests = [bodies.chat(model, f"hello {number} {each}") for each in range(count)]

        async def make(each: int, requests: Sequence[bytes] = requests) -> bytes:
            return requests[each]

        for name in names:
            taken[name].append(count / await at_a_time(servers[name].port, clients, count, make))
        tick()
    return taken


async def loop_lag(gateway: Server, model: str, config: BenchConfig, tick: Tick) -> float | None:
    """Seconds of the 99th percentile of the gateway's event-loop lag while fresh 12-megapixel images are decoded."""
    pictures = await asyncio.to_thread(bodies.large_pictures, config.large_images, config.seed)
    before = exposition.buckets(await metrics_of(gateway), LAG)

    async def make(number: int) -> bytes:
        tick()
        return bodies.chat(model, f"picture {number}", pictures[number])

    await at_a_time(gateway.port, 4, len(pictures), make)
    after = exposition.buckets(await metrics_of(gateway), LAG)
    return None if after is None else exposition.quantile_between(before or {}, after, 0.99)


async def peak_memory(gateway: Server, model: str, config: BenchConfig, tick: Tick) -> int:
    """Bytes that the gateway had resident at most while clients sent large bodies of distinct images."""
    # Base64 makes four bytes of three.
    image_bytes = config.memory_body_bytes * 3 // 4

    def build(number: int) -> bytes:
        return bodies.chat(model, f"picture {number}", bodies.noise_png(image_bytes, config.seed + number))

    # The first one of each client is made beforehand, so that they arrive together.
    first = [build(number) for number in range(min(config.clients, config.memory_requests))]

    async def make(number: int) -> bytes:
        tick()
        if number < len(first):
            body, first[number] = first[number], b""
            return body
        return await asyncio.to_thread(build, number)

    await at_a_time(gateway.port, config.clients, config.memory_requests, make)
    return gateway.peak_memory_bytes()


async def clients_leave(engine: Server, gateway: Server, model: str, config: BenchConfig, tick: Tick) -> Leaks:
    """Send many requests of which some clients leave at random moments; what is left when all are over."""
    await _burst(gateway.port, model, config, min(config.clients * 2, config.leaving_requests), 0.0, lambda: None)
    base_files, base_tasks = await _at_rest(gateway, config.settle_seconds)
    await _burst(gateway.port, model, config, config.leaving_requests, config.leaving_share, tick)

    deadline = time.monotonic() + config.settle_seconds
    while True:
        running, files = await _running(engine), gateway.open_files()
        settled = running == 0 and files <= base_files
        # Asking the gateway keeps its connections in use, so it is asked only when they are gone.
        tasks = await _tasks(gateway) if settled or time.monotonic() > deadline else None
        if time.monotonic() > deadline or (settled and (tasks or 0) <= (base_tasks or 0)):
            break
        await asyncio.sleep(0.25)
    left_tasks = None if tasks is None or base_tasks is None else max(0, tasks - base_tasks)
    return Leaks(running, max(0, files - base_files), left_tasks)


async def _burst(port: int, model: str, config: BenchConfig, count: int, share: float, tick: Tick) -> None:
    source = random.Random(config.seed)  # noqa: S311  moments to leave at, not secrets
    stays = [source.uniform(0.0, _LONGEST_STAY_SECONDS) if source.random() < share else None for _ in range(count)]
    numbers = iter(range(count))

    async def client() -> None:
        connection: Connection | None = None
        for number in numbers:
            connection = connection or await connect(port)
            request = bodies.chat(model, f"request {number}", max_tokens=24, stream=number % 2 == 0)
            if not await _stays(connection, request, stays[number]):
                connection = None
            tick()
        if connection is not None:
            connection.leave()

    await all_of([client() for _ in range(config.clients)])


async def _stays(connection: Connection, request: bytes, stay_seconds: float | None) -> bool:
    """Send a request and leave after a time, if one is given; whether the answer came first."""
    try:
        async with asyncio.timeout(stay_seconds):
            expect_ok(await connection.send(request))
            return True
    except TimeoutError:
        connection.leave()
        return False


async def _at_rest(gateway: Server, settle_seconds: float) -> tuple[int, int | None]:
    """Open files and tasks when nothing was asked for longer than connections are kept."""
    lowest = gateway.open_files()
    deadline = time.monotonic() + min(6.0, settle_seconds)
    while time.monotonic() < deadline:
        await asyncio.sleep(0.25)
        lowest = min(lowest, gateway.open_files())
    return lowest, await _tasks(gateway)


async def _tasks(gateway: Server) -> int | None:
    found = exposition.value(await metrics_of(gateway), TASKS)
    return None if found is None else int(found)


async def _running(engine: Server) -> int:
    shown = from_json((await fetch(engine.port, "/fake/requests")).body)
    return shown["open_requests"] + shown["running_sequences"]


async def metrics_of(server: Server) -> str:
    """The server's Prometheus text; empty when it has none."""
    reply = await fetch(server.port, "/metrics")
    return reply.body.decode() if reply.status == 200 else ""


async def first_model(server: Server) -> str:
    """The model that a server names first.

    Raises:
        BenchError: it names none.
    """
    data = from_json(expect_ok(await fetch(server.port, "/v1/models")).body).get("data")
    if not data:
        raise BenchError("The server names no model.")
    return data[0]["id"]
