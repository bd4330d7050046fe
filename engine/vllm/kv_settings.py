"""What the settings of the engine's stores of KV have in common, as they are written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from context.errors import ConfigError

# More than any machine has, and few enough to be counted in bytes.
_MOST_GIB = 1024**3


def mapping_of(given: object, setting: str, known: Iterable[str]) -> dict[str, Any]:
    """A setting's keys and values.

    Raises:
        ConfigError: it is no mapping, or has a key that is not known.
    """
    if not isinstance(given, Mapping):
        raise ConfigError("settings", setting, "must be a mapping, such as {memory_gib: 4}")
    values = {str(key): value for key, value in cast("Mapping[Any, Any]", given).items()}
    names = list(known)
    for key in values:
        if key not in names:
            reason = f"there is no such setting; known here: {', '.join(names)}"
            raise ConfigError("settings", f"{setting}.{key}", reason)
    return values


def gib_of(value: object, key: str, example: int) -> float:
    """A number of GiB.

    Raises:
        ConfigError: it is none above 0.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < _MOST_GIB:
        raise ConfigError("settings", key, f"must be GiB above 0, such as {example}")
    return float(value)
