"""A replay on the real engine and its simulation find the same reads, turn by turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from context.policies.choice import load_policy
from engine.base import Engine
from metrics.experiment_client import GatewayClient
from metrics.replay.figures import TurnFigures
from metrics.replay.gateway import GatewaySession, GatewayTarget
from metrics.replay.images import TraceImages, trace_images
from metrics.replay.options import Sizes
from metrics.replay.run import replay, with_replies
from metrics.replay.simulate import Simulation
from metrics.replay.trace import Trace, Wire
from metrics.replay.traces import load_trace
from tests.api.rig import ADMIN, serving
from tests.contract.differential import BLOCK_TOKENS
from tests.contract.test_fake_matches_vllm import fake_config

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

POLICIES = ("stable", "sliding", "reference")
# Small enough for the caches of the tests' engine, and long enough for a window to move.
SPEC, SIZES = "t1:steps=9", Sizes((112, 112), 0.1)


class Borrowed:
    """An engine that a gateway may use and not stop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.started = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def start(self) -> None:
        self.started.set()

    async def stop(self) -> None:
        pass


@asynccontextmanager
async def gateway(folder: Path, engine: Engine, images: TraceImages) -> AsyncGenerator[tuple[GatewayTarget, Any]]:
    async with serving(folder, cast("Any", Borrowed(engine))) as (_, host, port):
        client = GatewayClient(f"http://{host}:{port}", ADMIN["authorization"].removeprefix("Bearer "))
        async with client.connected():
            yield await GatewayTarget.open(client, images), client


async def play(target: GatewayTarget, trace: Trace, policy: str) -> tuple[list[TurnFigures], Trace]:
    """A session on the engine, and the trace of what was really sent and answered."""
    figures: list[TurnFigures] = []
    replies: dict[int, Wire] = {}
    async with target.session(trace, policy) as session:
        assert isinstance(session, GatewaySession)
        for turn in trace.turns:
            found, replies[turn.number] = await session.ask(turn, with_replies(trace, turn.messages, replies))
            figures.append(found)
        asked: Sequence[Sequence[Wire]] = session.asked
    turns = [
        replace(turn, messages=tuple(messages), reply=replies[turn.number])
        for turn, messages in zip(trace.turns, asked, strict=True)
    ]
    return figures, replace(trace, turns=tuple(turns))


@pytest.mark.parametrize("policy", POLICIES)
async def test_simulated_reads_are_the_engines(
    policy: str, tmp_path: Path, vllm_engine: Engine, demo_checkpoint: Path
) -> None:
    trace = load_trace(SPEC, SIZES)
    async with trace_images() as images:
        async with gateway(tmp_path, vllm_engine, images) as (target, client):
            assert target.engine == "vllm"
            await client.reset()
            measured, played = await play(target, trace, policy)
        simulation = Simulation(images, {policy: load_policy(policy)}, fake_config(demo_checkpoint))
        simulated, _ = await replay(simulation, played, policy)
    assert len(measured) == len(simulated) == len(trace.turns)
    for one, other in zip(measured, simulated, strict=True):
        assert one.refused is None
        assert (one.prompt_tokens, one.visual_tokens, one.broken) == (
            other.prompt_tokens,
            other.visual_tokens,
            other.broken,
        ), one.turn
        assert one.read_tokens is not None
        assert other.read_tokens is not None
        assert abs(one.read_tokens - other.read_tokens) <= BLOCK_TOKENS, (one, other)
    # What is compared is a session that reads, and a window that breaks it.
    assert sum(one.read_tokens or 0 for one in measured) > len(measured) * BLOCK_TOKENS
    assert any(one.broken for one in measured) == (policy == "sliding")
