"""The settings of the tiers become vLLM's options, and what is wrong or cannot be together is named."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from context.errors import ConfigError
from engine.vllm.block_tiers import checks
from engine.vllm.block_tiers.files import BlockFiles
from engine.vllm.block_tiers.settings import BlockTierSettings
from engine.vllm.features import feature_options
from engine.vllm.options import VllmSettings, arguments


@pytest.mark.parametrize(
    ("given", "key", "reason"),
    [
        (4, "engine.vllm.block_tiers", "mapping"),
        ({}, "engine.vllm.block_tiers.memory_gib", "above 0"),
        ({"memory_gib": True}, "engine.vllm.block_tiers.memory_gib", "above 0"),
        ({"memory_gib": "many"}, "engine.vllm.block_tiers.memory_gib", "above 0"),
        ({"memory_gib": 1, "folder": 5}, "engine.vllm.block_tiers.folder", "path"),
        ({"memory_gib": 1, "folder_gib": 0}, "engine.vllm.block_tiers.folder_gib", "above 0"),
        ({"memory_gib": 10**400}, "engine.vllm.block_tiers.memory_gib", "above 0"),
        (
            {"memory_gib": 1, "folder": "~nobody-is-called-so/x"},
            "engine.vllm.block_tiers.folder",
            "no such home folder",
        ),
        ({"memory_gib": 1, "size": 2}, "engine.vllm.block_tiers.size", "memory_gib, folder, folder_gib"),
    ],
)
def test_wrong_tiers_are_named(given: object, key: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        feature_options({"block-tiers": given}, "")
    assert caught.value.key == key
    assert reason in caught.value.reason


@pytest.mark.parametrize("name", ["kv-transfer-config", "scheduler-cls"])
def test_what_the_tiers_need_is_their_own_and_free_without_them(name: str) -> None:
    assert feature_options({name: "x"}, "") == {}
    with pytest.raises(ConfigError) as caught:
        feature_options({name: "x", "block-tiers": {"memory_gib": 1}}, "")
    assert caught.value.key == f"engine.vllm.{name}"
    assert "engine.vllm.block_tiers" in caught.value.reason


def test_tiers_and_images_kv_together_are_refused() -> None:
    both = {"block-tiers": {"memory_gib": 1}, "image-kv": {"memory_gib": 1}}
    with pytest.raises(ConfigError) as caught:
        feature_options(both, "")
    assert caught.value.key == "engine.vllm.block_tiers"
    assert "engine.vllm.image_kv" in caught.value.reason


def test_tiers_are_told_to_the_engine_and_go_beside_eviction_by_modality() -> None:
    made = feature_options({"block-tiers": {"memory_gib": 0.5, "folder": "f"}, "eviction": "modality"}, "ipc:///images")
    extra = made["kv-transfer-config"]["kv_connector_extra_config"]
    assert extra["cpu_bytes_to_use"] == 512 * 1024**2
    assert extra["stillframe"]["settings"] == {"memory_gib": 0.5, "folder": "f", "folder_gib": 20.0}
    assert extra["stillframe"]["endpoint"] == "ipc:///images"
    assert set(made["additional-config"]["stillframe"]) == {"block_tiers", "blocks"}
    given = arguments(VllmSettings("folder", "name", {"block_tiers": {"memory_gib": 1}}), cpu=True, required={})
    assert "--block-tiers" not in given


def config(**changed: Any) -> Any:
    """As much of vLLM's configuration as is looked at."""
    cache = {"enable_prefix_caching": True, "prefix_caching_hash_algo": "sha256"}
    parallel = {"nnodes": 1, "data_parallel_rank": 0, "data_parallel_size": 1, "data_parallel_size_local": 1}
    cache_config, parallel_config = (
        SimpleNamespace(**{name: changed.get(name, value) for name, value in part.items()})
        for part in (cache, parallel)
    )
    return SimpleNamespace(
        cache_config=cache_config, parallel_config=parallel_config, lora_config=changed.get("lora_config")
    )


@pytest.fixture
def small(tmp_path: Path) -> BlockTierSettings:
    return BlockTierSettings(0.001, str(tmp_path / "blocks"))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"enable_prefix_caching": False}, "enable-prefix-caching"),
        ({"prefix_caching_hash_algo": "xxhash"}, "xxhash"),
        ({"nnodes": 2}, "several machines"),
        ({"lora_config": object()}, "adapter"),
    ],
)
def test_what_blocks_could_be_mistaken_with_is_refused(
    small: BlockTierSettings, changed: dict[str, Any], reason: str
) -> None:
    checks.check(config(), small)
    with pytest.raises(ConfigError) as caught:
        checks.check(config(**changed), small)
    assert caught.value.key == "engine.vllm.block_tiers"
    assert reason in caught.value.reason


def test_a_folder_that_another_engine_uses_is_refused_before_the_engine_starts(small: BlockTierSettings) -> None:
    other = BlockFiles(Path(small.folder), 1, "model")
    with pytest.raises(ConfigError) as caught:
        checks.check(config(), small)
    assert caught.value.key == "engine.vllm.block_tiers.folder"
    other.close()
    checks.check(config(), small)


def test_adapters_are_told_apart_while_the_engine_runs() -> None:
    checks.check(config(lora_config=object()), BlockTierSettings(0.001))


def test_more_than_there_is_of_shared_memory_is_refused_before_the_engine_starts() -> None:
    free = shutil.disk_usage("/dev/shm").free / 1024**3
    with pytest.raises(ConfigError) as caught:
        checks.check(config(), BlockTierSettings(free + 64))
    assert caught.value.key == "engine.vllm.block_tiers.memory_gib"
    assert "--shm-size" in caught.value.reason


def test_each_replica_of_this_machine_takes_its_memory() -> None:
    free = shutil.disk_usage("/dev/shm").free / 1024**3
    most = BlockTierSettings(0.4 * free)
    checks.check(config(data_parallel_size=2, data_parallel_size_local=2), most)
    # Those of other machines do not.
    checks.check(config(data_parallel_size=6, data_parallel_size_local=2, data_parallel_rank=4), most)
    with pytest.raises(ConfigError) as caught:
        checks.check(config(data_parallel_size=3, data_parallel_size_local=3), most)
    assert caught.value.key == "engine.vllm.block_tiers.memory_gib"
    assert "each of 3 replicas" in caught.value.reason


def test_a_folder_that_a_replica_of_another_gateway_uses_is_refused_before_the_engine_starts(
    small: BlockTierSettings,
) -> None:
    two = config(data_parallel_size=2, data_parallel_size_local=2)
    checks.check(two, small)
    other = BlockFiles(Path(small.folder) / "replica-1", 1, "model")
    with pytest.raises(ConfigError) as caught:
        checks.check(two, small)
    assert caught.value.key == "engine.vllm.block_tiers.folder"
    # It is not this one's.
    checks.check(config(data_parallel_size=2, data_parallel_size_local=1), small)
    other.close()
    checks.check(two, small)
