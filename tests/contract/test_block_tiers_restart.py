"""Blocks outlive the engine in files: after a stop, after the engine's core was killed, and not for a model
with other weights."""

# safetensors leaves much of its types open.
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import multiprocessing
import os
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.contract.block_tier_rig import conversation, full_blocks, started

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.asyncio(loop_scope="session"),
    # A start takes a minute or two.
    pytest.mark.timeout(1200),
    pytest.mark.skipif(os.environ.get("STILLFRAME_LONG") != "1", reason="starts four engines: STILLFRAME_LONG=1"),
]


async def test_the_first_request_after_a_restart_or_a_crash_reads_its_prompt_from_files(
    demo_checkpoint: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "blocks"
    async with started(demo_checkpoint, folder) as rig:
        said = await rig.ask("before", conversation(1))
        assert said.read_tokens == 0
        # It computes the same rows as what reads files: the last bits may depend on how many they are.
        kept = await rig.ask("kept", conversation(1))
    others = multiprocessing.active_children()
    async with started(demo_checkpoint, folder) as rig:
        again = await rig.ask("after", conversation(1))
        assert again.read_tokens >= 0.9 * full_blocks(again.prompt_tokens)
        assert again.distance(kept) == 0.0
        told = await rig.tiers(lambda state: state.file_loaded > 0)
        assert (told.file_stored, told.file_refused) == (0, 0)
        (core,) = [
            child for child in multiprocessing.active_children() if child not in others and "EngineCore" in child.name
        ]
        core.kill()
        await rig.until(ready=False)
        await rig.until(ready=True)
        after_crash = await rig.ask("after the crash", conversation(1))
        assert after_crash.read_tokens >= 0.9 * full_blocks(again.prompt_tokens)
        assert after_crash.distance(kept) == 0.0
    async with started(_with_other_weights(demo_checkpoint, tmp_path / "model"), folder) as rig:
        other = await rig.ask("other weights", conversation(1))
        assert other.prompt_tokens == said.prompt_tokens
        assert other.read_tokens == 0


def _with_other_weights(checkpoint: Path, folder: Path) -> Path:
    """A model to which the same prompt is the same tokens, and other KV."""
    shutil.copytree(checkpoint, folder)
    (path,) = folder.glob("*.safetensors")
    weights = load_file(path)
    (name,) = [name for name in weights if name.endswith("layers.0.self_attn.k_proj.weight") and "visual" not in name]
    weights[name] *= 1.5
    save_file(weights, path, {"format": "pt"})
    return folder
