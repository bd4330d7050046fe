"""The types of settings, and the files that they name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.settings import Settings, defaults, flat_keys, load
from context.errors import ConfigError
from context.tenancy import load_token


def _load(tmp_path: Path, data: Any) -> Settings:
    config = tmp_path / "my.yaml"
    config.write_text(yaml.safe_dump(data))
    return load(config, environment={})


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["policy", "policy_headers", "policy_rules"])
def test_a_policy_that_is_no_file_stops_the_start(tmp_path: Path, name: str) -> None:
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    given: dict[str, Any] = {
        "policy": str(pipe),
        "policy_headers": [str(pipe)],
        "policy_rules": [{"model": "a*", "policy": str(pipe)}],
    }
    with pytest.raises(ConfigError, match="is a pipe or a device"):
        _load(tmp_path, {name: given[name]}).policies()


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["secret", "admin-token"])
@pytest.mark.parametrize(
    ("made", "what"),
    [
        (os.mkfifo, "is a pipe or a device"),
        (os.mkdir, "is a folder"),
        (b"\xff\xfe", "is no text in UTF-8"),
        (b"0" * 5000, "is longer than 4096 bytes"),
        (b"0" * 63, "does not hold 64 hex digits"),
    ],
)
def test_a_secret_that_is_no_secret_stops_the_start(
    tmp_path: Path, name: str, made: bytes | Callable[[Path], object], what: str
) -> None:
    if isinstance(made, bytes):
        (tmp_path / name).write_bytes(made)
    else:
        made(tmp_path / name)
    with pytest.raises(ConfigError, match=what) as told:
        load_token(tmp_path / name)
    # Nobody has named the file: it is the folder's, and can be made anew.
    assert f"data_dir: its file {name} {what}" in str(told.value)
    assert str(told.value).endswith("remove it to have a new one")


def _typed_keys() -> list[tuple[str, Any]]:
    """Every setting of one plain type, with its default."""
    found: list[tuple[str, Any]] = []
    for key in flat_keys():
        value: Any = defaults()
        for name in key.split("."):
            value = value[name]
        if isinstance(value, (bool, int, float)) and key not in (
            "upstreams.accepts_uuid",
            "upstreams.accepts_cache_salt",
        ):
            found.append((key, value))
    return found


# Those that may be a fraction; all others are whole.
_NUMBERS = {key for key, _ in _typed_keys() if key.endswith("_seconds")} - {
    "server.keep_alive_seconds",
    "server.shutdown_grace_seconds",
} | {"images.max_aspect_ratio", "server.min_upload_bytes_per_second"}


@pytest.mark.parametrize(("key", "default"), _typed_keys())
def test_a_value_of_another_type_is_refused_for_every_setting(tmp_path: Path, key: str, default: Any) -> None:
    wrong = [str(default).lower(), [default], None]
    wrong += [1, "yes"] if isinstance(default, bool) else [True, 2.5] if key not in _NUMBERS else [True]
    for value in wrong:
        data: Any = value
        for name in reversed(key.split(".")):
            data = {name: data}
        with pytest.raises(ConfigError) as caught:
            _load(tmp_path, data)
        assert caught.value.key.startswith(key)
        assert "must be" in caught.value.reason


@pytest.mark.parametrize(("text", "value"), [("1e3", 1000.0), ("60", 60), ("0.5", 0.5)])
def test_numbers_of_the_environment(tmp_path: Path, text: str, value: float) -> None:
    read = load(None, environment={"STILLFRAME_SERVER__BODY_TIMEOUT_SECONDS": text})
    assert read.server.body_timeout_seconds == value
