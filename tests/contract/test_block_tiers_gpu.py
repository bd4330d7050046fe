"""The tiers on a GPU, with vLLM's own copies: what was evicted comes back from memory and from files, equal."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.block_tier_rig import conversation, full_blocks, started
from tests.contract.image_kv_rig import same

pytestmark = [pytest.mark.vllm, pytest.mark.gpu, pytest.mark.asyncio(loop_scope="session")]


async def test_blocks_come_back_from_memory_and_after_a_restart_from_files(
    demo_checkpoint: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "blocks"
    async with started(demo_checkpoint, folder) as rig:
        said = await rig.ask("computed", conversation(1))
        await rig.tiers(lambda state: state.file_stored > 0)
        await rig.forget_prefixes()
        again = await rig.ask("from memory", conversation(1))
        told = await rig.tiers(lambda state: state.memory_loaded > 0)
        assert again.read_tokens == full_blocks(again.prompt_tokens)
        assert same(again, said)
        assert told.file_loaded == 0
    async with started(demo_checkpoint, folder) as rig:
        restarted = await rig.ask("from files", conversation(1))
        assert restarted.read_tokens >= 0.9 * full_blocks(restarted.prompt_tokens)
        assert same(restarted, said)
