"""The fake engine's figures are the real engine's, one by one, on small caches.

`vllm_engine` must be started on `demo_checkpoint` under the name `demo`, with `VLLM_OPTIONS`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from engine.base import Engine
from engine.fake import FakeConfig, FakeEngine
from engine.fake.__main__ import visual_shape
from tests.contract.cases import EngineCase
from tests.contract.differential import (
    BLOCK_TOKENS,
    MAX_BATCHED_TOKENS,
    MAX_MODEL_TOKENS,
    NUM_BLOCKS,
    differences,
    script,
)

MAX_IMAGES = 16
VLLM_OPTIONS: dict[str, Any] = {
    "block-size": BLOCK_TOKENS,
    "num-gpu-blocks-override": NUM_BLOCKS,
    "max-model-len": MAX_MODEL_TOKENS,
    "max-num-batched-tokens": MAX_BATCHED_TOKENS,
    # A video may take the whole context, and the encoder cache is at least as large as the largest item.
    "limit-mm-per-prompt": {"image": MAX_IMAGES, "video": 0},
    "enable-auto-tool-choice": True,
    "tool-call-parser": "hermes",
    # So that a test can have a template that does not extend.
    "trust-request-chat-template": True,
}


def fake_config(checkpoint: Path) -> FakeConfig:
    """A fake of the same sizes as the real engine."""
    return FakeConfig(
        model="demo",
        checkpoint=checkpoint,
        visual=visual_shape(checkpoint),
        block_tokens=BLOCK_TOKENS,
        num_blocks=NUM_BLOCKS,
        max_model_tokens=MAX_MODEL_TOKENS,
        max_batched_tokens=MAX_BATCHED_TOKENS,
        max_images_per_prompt=MAX_IMAGES,
    )


async def _nothing_runs(_: Engine) -> int:
    return 0


@pytest_asyncio.fixture(loop_scope="session")
async def fake(demo_checkpoint: Path) -> AsyncGenerator[FakeEngine]:
    """A started fake engine on the checkpoint."""
    engine = FakeEngine(fake_config(demo_checkpoint))
    await engine.start()
    yield engine
    await engine.stop()


@pytest.mark.vllm
@pytest.mark.asyncio(loop_scope="session")
async def test_every_figure_is_the_same(fake: FakeEngine, vllm_engine: Engine) -> None:
    case = EngineCase(lambda: fake, "demo", _nothing_runs, block_tokens=BLOCK_TOKENS)
    assert await differences(fake, case, vllm_engine, case) == []


async def test_the_comparison_sees_a_difference() -> None:
    """One block less, or another order of eviction, must not go unseen."""
    small = FakeConfig(block_tokens=BLOCK_TOKENS, num_blocks=NUM_BLOCKS, max_model_tokens=MAX_MODEL_TOKENS)
    other = FakeConfig(block_tokens=BLOCK_TOKENS, num_blocks=NUM_BLOCKS - 1, max_model_tokens=MAX_MODEL_TOKENS - 32)
    engines = [FakeEngine(config) for config in (small, small, other)]
    for engine in engines:
        await engine.start()
    try:
        case = EngineCase(lambda: engines[0], "stillframe-fake", _nothing_runs, block_tokens=BLOCK_TOKENS)
        assert await differences(engines[0], case, engines[1], case) == []
        assert await differences(engines[0], case, engines[2], case)
    finally:
        for engine in engines:
            await engine.stop()


def test_the_script_evicts_and_repeats() -> None:
    about = [exchange.about for exchange in script()]
    assert len(about) == len(set(about)) >= 25
