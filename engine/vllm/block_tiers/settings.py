"""The settings of the tiers: `engine.vllm.block_tiers`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from context.errors import ConfigError
from context.files import expanded
from engine.vllm.kv_settings import gib_of, mapping_of

SETTING = "engine.vllm.block_tiers"
_GIB = 1024**3


@dataclass(frozen=True, slots=True)
class BlockTierSettings:
    """How much of the blocks that leave the engine's prefix cache is kept, and where.

    Attributes:
        memory_gib: of blocks in memory; taken at the start.
        folder: where blocks are kept over a restart, of one gateway alone; empty: nowhere. Nobody else may write to it.
        folder_gib: what all files in the folder may have together.
    """

    memory_gib: float
    folder: str = ""
    folder_gib: float = 20.0

    @property
    def memory_bytes(self) -> int:
        """Of blocks in memory."""
        return int(self.memory_gib * _GIB)

    @property
    def folder_bytes(self) -> int:
        """Of the files."""
        return int(self.folder_gib * _GIB)

    def values(self) -> dict[str, Any]:
        """As `of` takes them."""
        return asdict(self)

    def transfer(self, endpoint: str) -> dict[str, Any]:
        """vLLM's `kv-transfer-config`: its offloading, with our tiers. `endpoint` is where they tell what they do."""
        return {
            "kv_connector": "BlockTiersConnector",
            "kv_connector_module_path": "engine.vllm.block_tiers.connector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "spec_name": "BlockTiersSpec",
                "spec_module_path": "engine.vllm.block_tiers.spec",
                "cpu_bytes_to_use": self.memory_bytes,
                "blocks_per_chunk": 1,
                # A reply is a part of the next turn's prompt.
                "offload_prompt_only": False,
                # The fingerprint is filled in where the model is known.
                "stillframe": {"settings": self.values(), "fingerprint": "", "endpoint": endpoint},
            },
        }

    @staticmethod
    def of(given: object) -> BlockTierSettings:
        """The settings as they are written.

        Raises:
            ConfigError: names the key and what it takes.
        """
        values = mapping_of(given, SETTING, [field.name for field in fields(BlockTierSettings)])
        folder = values.get("folder") or ""
        if not isinstance(folder, str):
            raise ConfigError("settings", f"{SETTING}.folder", "must be the path of a folder")
        expanded(folder, f"{SETTING}.folder")
        memory_gib = gib_of(values.get("memory_gib"), f"{SETTING}.memory_gib", 4)
        return BlockTierSettings(
            memory_gib, folder, gib_of(values.get("folder_gib", 20.0), f"{SETTING}.folder_gib", 20)
        )
