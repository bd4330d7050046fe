"""vLLM's options in files and in the environment: two spellings; values of ours are checked with all others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.server import check_engine
from app.settings import Settings, load
from context.errors import ConfigError


def _load(folder: Path, options: dict[str, Any], **variables: str) -> Settings:
    config = folder / "my.yaml"
    config.write_text(yaml.safe_dump({"engine": {"vllm": options}}))
    environment = {f"STILLFRAME_ENGINE__VLLM__{name}": value for name, value in variables.items()}
    return load(config, environment=environment)


@pytest.mark.parametrize("names", [("image_kv", "image-kv"), ("max-model-len", "max_model_len")])
def test_one_file_with_an_option_in_two_spellings_stops_the_start(tmp_path: Path, names: tuple[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        _load(tmp_path, dict.fromkeys(names))
    assert caught.value.where == str(tmp_path / "my.yaml")
    assert all(name in str(caught.value) for name in names)


def test_a_later_layer_takes_the_place_of_an_earlier_one_s_other_spelling(tmp_path: Path) -> None:
    settings = _load(tmp_path, {"max-model-len": 4096, "dtype": "auto"}, MAX_MODEL_LEN="2048")
    assert settings.engine.vllm == {"dtype": "auto", "max_model_len": 2048}


def test_a_value_of_ours_is_checked_with_all_other_settings_and_its_layer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        _load(tmp_path, {"eviction": "lru"}, IMAGE_KV="{memory_gib: none}")
    assert caught.value.where == "environment variable STILLFRAME_ENGINE__VLLM__IMAGE_KV"
    assert caught.value.key == "engine.vllm.image_kv.memory_gib"
    with pytest.raises(ConfigError) as caught:
        _load(tmp_path, {"eviction": "often"}, DTYPE="auto")
    assert (caught.value.where, caught.value.key) == (str(tmp_path / "my.yaml"), "engine.vllm.eviction")


@pytest.mark.parametrize("store", ["image_kv", "block_tiers"])
def test_a_folder_that_is_a_file_stops_an_embedded_engine_before_it_is_made(tmp_path: Path, store: str) -> None:
    file = tmp_path / "file"
    file.touch()
    settings = _load(tmp_path, {store: {"memory_gib": 1, "folder": str(file)}})
    with pytest.raises(ConfigError, match="is a file") as caught:
        check_engine(settings)
    assert caught.value.key == f"engine.vllm.{store}.folder"
    # Nothing of it is used there.
    check_engine(settings.model_copy(update={"upstream": ("http://127.0.0.1:9/v1",)}))


@pytest.mark.parametrize("given", ["{image_kv: {memory_gib: 0}}", "{block_tiers: {memory_gib: 1, folder: /dev/null}}"])
def test_a_gateway_that_cannot_start_with_them_does_not_say_that_it_listens(tmp_path: Path, given: str) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "STILLFRAME_DATA_DIR": str(tmp_path),
        "STILLFRAME_ENGINE__VLLM": given,
    }
    command = [sys.executable, "-m", "app.cli", "serve", "--port", "0"]
    done = subprocess.run(
        command, env=environment, cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "engine.vllm." in done.stderr
    assert "listens" not in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.vllm
def test_the_log_says_in_one_line_what_is_switched_on(tmp_path: Path) -> None:
    # On its own: what vLLM reads from the environment is set for the whole process.
    environment = os.environ | {
        "STILLFRAME_DATA_DIR": str(tmp_path),
        "STILLFRAME_ENGINE__VLLM": f"{{image_kv: {{memory_gib: 1, folder: {tmp_path / 'kv'}}}, eviction: modality}}",
    }
    program = (
        "from app.logs import configure_logging; from app.server import make_engine; from app.settings import load; "
        "configure_logging('info'); make_engine(load())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "image KV pool" in line]
    assert line.endswith(
        "INFO stillframe: engine: image KV pool 1 GiB in memory, 20 GiB in files, profile of layers none; "
        "block tiers off; eviction modality"
    )
    assert str(tmp_path) not in line
