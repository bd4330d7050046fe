"""The settings of the tiers: `engine.vllm.block_tiers`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, cast

from context.errors import ConfigError
from context.files import expanded

SETTING = "engine.vllm.block_tiers"
_GIB = 1024**3
# More than any machine has, and few enough to be counted in bytes.
_MOST_GIB = 1024**3


@dataclass(frozen=True, slots=True)
class BlockTierSettings:
    """How much of the blocks that leave the engine's prefix cache is kept, and where.

    Attributes:
        memory_gib: of blocks in memory, for each replica of the model; taken at the start.
        folder: where blocks are kept over a restart, of one gateway alone; empty: nowhere. Nobody else may write to it.
        folder_gib: what all files in the folder may have together. Each of several replicas has an equal part of it in
            a folder of its own; what other numbers of them left there is removed at the start.
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
        if not isinstance(given, Mapping):
            raise ConfigError("settings", SETTING, "must be a mapping, such as {memory_gib: 4}")
        values = {str(key): value for key, value in cast("Mapping[Any, Any]", given).items()}
        known = [field.name for field in fields(BlockTierSettings)]
        for key in values:
            if key not in known:
                reason = f"there is no such setting; known here: {', '.join(known)}"
                raise ConfigError("settings", f"{SETTING}.{key}", reason)
        folder = values.get("folder") or ""
        if not isinstance(folder, str):
            raise ConfigError("settings", f"{SETTING}.folder", "must be the path of a folder")
        expanded(folder, f"{SETTING}.folder")
        memory_gib, folder_gib = values.get("memory_gib"), values.get("folder_gib", 20)
        return BlockTierSettings(_gib(memory_gib, "memory_gib", 4), folder, _gib(folder_gib, "folder_gib", 20))


def _gib(value: object, key: str, example: int) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < _MOST_GIB:
        raise ConfigError("settings", f"{SETTING}.{key}", f"must be GiB above 0, such as {example}")
    return float(value)
