"""The settings of the pool: `engine.vllm.image_kv`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from context.errors import ConfigError
from context.files import expanded
from engine.demo_model import bundled_folder
from engine.vllm.kv_settings import gib_of, mapping_of

SETTING = "engine.vllm.image_kv"
BUNDLED = "bundled"
_GIB = 1024**3


@dataclass(frozen=True, slots=True)
class ImageKvSettings:
    """How much of images' KV is kept, and where.

    Attributes:
        memory_gib: of the pool in memory, for each worker. Images that are being captured may take half as much again.
        folder: where it is kept over a restart; empty: nowhere. Nobody else may write to it.
        folder_gib: what all files in the folder may have together.
        profile: the file of the model's ratios by layer, or `bundled` for the demo model's; empty: none.
    """

    memory_gib: float
    folder: str = ""
    folder_gib: float = 20.0
    profile: str = ""

    @property
    def memory_bytes(self) -> int:
        """Of the pool in memory."""
        return int(self.memory_gib * _GIB)

    @property
    def folder_bytes(self) -> int:
        """Of the files."""
        return int(self.folder_gib * _GIB)

    @property
    def folder_path(self) -> Path | None:
        """Where the files are; None where there are none."""
        return expanded(self.folder, f"{SETTING}.folder") if self.folder else None

    @property
    def profile_file(self) -> Path | None:
        """Where the profile is; None where none is set."""
        if self.profile == BUNDLED:
            return bundled_folder().parent / "reuse_profile.json"
        return expanded(self.profile, f"{SETTING}.profile") if self.profile else None

    def values(self) -> dict[str, Any]:
        """As `of` takes them."""
        return asdict(self)

    @staticmethod
    def of(given: object) -> ImageKvSettings:
        """The settings as they are written.

        Raises:
            ConfigError: names the key and what it takes.
        """
        values = mapping_of(given, SETTING, [field.name for field in fields(ImageKvSettings)])
        memory_gib = gib_of(values.get("memory_gib"), f"{SETTING}.memory_gib", 4)
        folder_gib = gib_of(values.get("folder_gib", 20.0), f"{SETTING}.folder_gib", 20)
        folder, profile = values.get("folder") or "", values.get("profile") or ""
        if not isinstance(folder, str):
            raise ConfigError("settings", f"{SETTING}.folder", "must be the path of a folder")
        if not isinstance(profile, str):
            raise ConfigError("settings", f"{SETTING}.profile", "must be the path of a file, or bundled")
        for key, path in (("folder", folder), ("profile", profile)):
            expanded(path, f"{SETTING}.{key}")
        return ImageKvSettings(memory_gib, folder, folder_gib, profile)
