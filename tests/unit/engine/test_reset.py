"""Emptying the embedded engine's caches while chats come in between, and what is said of what stays.

In the place of vLLM's client stands one that answers as it does. What the core itself does is in the contract tests.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from context.errors import EngineUnavailable
from engine.base import EngineHealth, EngineInfo
from engine.vllm.block_tiers.settings import BlockTierSettings
from engine.vllm.embedded import VllmEngine
from engine.vllm.features import CLEAR_IMAGES
from engine.vllm.options import VllmSettings


class Client:
    """As much of vLLM's client as is asked for. It keeps what it was asked."""

    errored = False

    def __init__(self, *, chats: int = 0, sticks: bool = False) -> None:
        self.asked: list[str] = []
        # Chats that come just before the tiers are emptied, and a file that cannot be removed.
        self._chats, self._sticks = chats, sticks
        self.output_processor = SimpleNamespace(get_num_unfinished_requests=lambda: 0)

    async def reset_prefix_cache(self, *, reset_connector: bool = False) -> bool:
        self.asked.append("tiers" if reset_connector else "prefixes")
        if reset_connector and self._chats:
            self._chats -= 1
            return False
        return not (reset_connector and self._sticks)

    async def reset_mm_cache(self) -> None:
        self.asked.append("processor")

    async def reset_encoder_cache(self) -> None:
        self.asked.append("encoder")

    async def collective_rpc(self, method: str) -> list[Any]:
        self.asked.append("images" if method == CLEAR_IMAGES else "figures")
        return [not self._sticks] if method == CLEAR_IMAGES else [[0] * 18]


def engine_with(client: Client, tiers: BlockTierSettings | None = None, *, reuses_images: bool = False) -> VllmEngine:
    engine = VllmEngine(VllmSettings("model", "model"))
    engine._client, engine._health, engine._tiers = client, EngineHealth("ready"), tiers
    engine._info = EngineInfo("vllm", reuses_images=reuses_images)
    return engine


IN_MEMORY, IN_FILES = BlockTierSettings(1), BlockTierSettings(1, "/kv")


@pytest.mark.parametrize("tiers", [IN_MEMORY, IN_FILES])
async def test_tiers_are_emptied_once_a_chat_that_came_in_between_is_over(tiers: BlockTierSettings) -> None:
    client = Client(chats=1)
    await engine_with(client, tiers).reset_caches()
    assert client.asked == ["prefixes", "tiers", "prefixes", "tiers", "processor", "encoder"]


async def test_files_that_stay_are_named_with_their_folder() -> None:
    with pytest.raises(EngineUnavailable, match=r"files in engine\.vllm\.block_tiers\.folder could not be removed"):
        await engine_with(Client(sticks=True), IN_FILES).reset_caches()


async def test_where_there_is_no_folder_blocks_in_use_are_not_taken_for_files() -> None:
    with pytest.raises(EngineUnavailable, match="while requests are running"):
        await engine_with(Client(chats=100), IN_MEMORY).reset_caches()


async def test_what_a_chat_loaded_before_the_pool_of_images_was_empty_goes_behind_it() -> None:
    client = Client()
    await engine_with(client, reuses_images=True).reset_caches()
    assert client.asked == ["prefixes", "images", "figures", "processor", "encoder", "prefixes"]
