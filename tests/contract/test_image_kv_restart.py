"""Images' KV outlives the engine, and is moved exactly.

In a model of one layer an image's KV depends on nothing but the image and where it stands. Used again elsewhere, it is
what would be computed there: to rounding where its keys are turned as they should be, and far off where they are not.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.demo_model.random_checkpoint import CheckpointShape, build
from tests.contract.cases import user, words
from tests.contract.image_kv_rig import IMAGE_TOKENS, picture, same, started

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(os.environ.get("STILLFRAME_LONG") != "1", reason="starts two engines: STILLFRAME_LONG=1"),
]


async def test_the_first_request_after_a_restart_has_its_images_from_files_as_if_it_had_computed_them(
    tmp_path: Path,
) -> None:
    checkpoint = build(tmp_path / "model", CheckpointShape(layers=1))
    settings = {"memory_gib": 1, "folder": str(tmp_path / "images"), "folder_gib": 1}
    elsewhere = [user(words(40, seed=1), picture(1), words(5, seed=2), picture(2), words(20, seed=3))]
    async with started(checkpoint, settings) as rig:
        full = await rig.ask("before", elsewhere, salt="other tenant")
        for shade in (1, 2):
            await rig.ask(f"donor-{shade}", [user(words(9, seed=shade), picture(shade))])
    async with started(checkpoint, settings) as rig:
        # Said before there is a request.
        assert (await rig.emptied()).file_entries == sum(1 for _ in (tmp_path / "images").iterdir())
        reused = await rig.ask("after", elsewhere, ratio=0.05)
        got = await rig.reuse("after")
        assert (got.hits, got.misses) == (2, 0)
        assert got.loaded_tokens >= 0.9 * 2 * IMAGE_TOKENS
        assert (await rig.pool()).file_hits == 2
        # Not one of them went through the vision encoder.
        assert rig.encoder_events("after", "run") == []
        assert same(full, reused)
