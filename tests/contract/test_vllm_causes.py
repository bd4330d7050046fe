"""Every cause of lost tokens in a session that makes it, on the real engine, and a long session of all of them."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from engine.base import Engine
from tests.contract.differential import BLOCK_TOKENS
from tests.contract.vllm_attribution import real_rig
from tests.unit.metrics.attribution_rig import Client
from tests.unit.metrics.test_attribution import ACTORS, Make, begun, check_made
from tests.unit.metrics.test_attribution_sessions import CAUSES, TURNS, Session, _ready  # pyright: ignore[reportPrivateUsage]

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

# About a second each; the fake engine, which is held to this one, goes through all of them in any case.
_TURNS = TURNS if os.environ.get("STILLFRAME_LONG") == "1" else TURNS // 5


def _template(checkpoint: Path) -> str:
    return (checkpoint / "chat_template.jinja").read_text()


@pytest.mark.parametrize("make", ACTORS, ids=lambda make: make.__name__)
async def test_every_cause(vllm_engine: Engine, demo_checkpoint: Path, make: Make) -> None:
    """`engine_unreported` is vLLM's usage without what it read, as it is without --enable-prompt-tokens-details."""
    async with real_rig(vllm_engine, _template(demo_checkpoint)) as real:
        # It does what the rig of the fake engine does.
        made, client = cast("Any", real), Client("c")
        await begun(made, client)
        check_made(make, await make(made, client), real.usage, BLOCK_TOKENS)


@pytest.mark.slow
async def test_a_mixed_session(vllm_engine: Engine, demo_checkpoint: Path) -> None:
    async with real_rig(vllm_engine, _template(demo_checkpoint)) as real:
        session = Session(cast("Any", real), Random(1), Client("c"))  # noqa: S311
        session.renew()
        wrong: Counter[str] = Counter()
        for _ in range(_TURNS):
            happens = session.random.choice([Session.nothing, *CAUSES])
            if happens not in (Session.cold, Session.below_block):
                await _ready(session)
            found = await happens(session)
            expected = None if happens is Session.nothing else happens.__name__
            if found.cause != expected:
                wrong[f"{expected} as {found.cause}"] += 1
        assert wrong.total() <= _TURNS * 0.02, wrong
