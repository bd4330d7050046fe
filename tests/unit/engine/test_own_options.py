"""Our settings among vLLM's options are looked at before anything is started, and told in one line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from context.errors import ConfigError
from engine.vllm.options import by_long_name
from engine.vllm.own_options import check_machine, check_values, told

STORES = ["image_kv", "block_tiers"]


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"image_kv": {"memory_gib": 0}}, "engine.vllm.image_kv.memory_gib"),
        ({"image-kv": 4}, "engine.vllm.image_kv"),
        ({"block_tiers": {"memory": 1}}, "engine.vllm.block_tiers.memory"),
        ({"eviction": "fifo"}, "engine.vllm.eviction"),
        ({"image_kv": {"memory_gib": 1}, "block_tiers": {"memory_gib": 1}}, "engine.vllm.block_tiers"),
        ({"image_kv": {"memory_gib": 1}, "scheduler_cls": "x"}, "engine.vllm.scheduler-cls"),
    ],
)
def test_a_value_that_cannot_be_is_named(options: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_values(options)
    assert caught.value.key == key


@pytest.mark.parametrize("name", ["data-parallel-size", "data_parallel_size", "--data-parallel-size"])
def test_several_replicas_of_the_model_are_refused_with_what_to_do_instead(name: str) -> None:
    for size in (2, "2"):
        with pytest.raises(ConfigError, match="--upstream") as caught:
            check_values({name: size})
        assert caught.value.key == "engine.vllm.data-parallel-size"
    for size in (1, "1", None, "many"):
        check_values({name: size})


@pytest.mark.parametrize(
    ("slip", "meant"), [("imagekv", "image_kv"), ("images-kv", "image_kv"), ("block_tier", "block_tiers")]
)
def test_a_misspelt_name_of_ours_is_told_with_the_right_one(slip: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"do you mean engine.vllm.{meant}") as caught:
        check_values({slip: {"memory_gib": 1}})
    assert caught.value.key == f"engine.vllm.{slip.replace('-', '_')}"


@pytest.mark.parametrize(
    ("one", "other"), [("image_kv", "image-kv"), ("max-model-len", "max_model_len"), ("--seed", "seed")]
)
def test_an_option_in_two_spellings_is_refused_with_both(one: str, other: str) -> None:
    with pytest.raises(ConfigError) as caught:
        by_long_name({one: 1, "dtype": "auto", other: 1})
    assert caught.value.key == f"engine.vllm.{one}"
    assert f"as {one} and as {other}" in caught.value.reason
    assert by_long_name({one: 1, "dtype": "auto"}).keys() == {one.replace("_", "-").lstrip("-"), "dtype"}


@pytest.mark.parametrize("store", STORES)
def test_a_folder_for_kv_that_is_a_file_is_named_with_its_setting(tmp_path: Path, store: str) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ConfigError) as caught:
        check_machine({store: {"memory_gib": 1, "folder": str(file)}})
    assert caught.value.key == f"engine.vllm.{store}.folder"
    assert caught.value.reason.startswith("is a file; name a folder")
    with pytest.raises(ConfigError) as caught:
        check_machine({store: {"memory_gib": 1, "folder": str(file / "below" / "it")}})
    assert caught.value.key == f"engine.vllm.{store}.folder"
    assert f"lies below {file}, which is a file" in caught.value.reason


@pytest.mark.parametrize("store", STORES)
def test_a_folder_for_kv_that_others_may_write_to_is_refused_and_one_that_is_to_be_made_is_not(
    tmp_path: Path, store: str
) -> None:
    check_machine({store: {"memory_gib": 1, "folder": str(tmp_path / "new" / "one")}})
    assert list(tmp_path.iterdir()) == []
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    check_machine({store: {"memory_gib": 1, "folder": str(open_to_all)}})
    open_to_all.chmod(0o777)
    with pytest.raises(ConfigError, match="other users") as caught:
        check_machine({store: {"memory_gib": 1, "folder": str(open_to_all)}})
    assert caught.value.key == f"engine.vllm.{store}.folder"
    with pytest.raises(ConfigError, match="no name that a folder can have"):
        check_machine({store: {"memory_gib": 1, "folder": "a\0b"}})


@pytest.mark.timeout(20)
def test_a_profile_that_cannot_be_read_is_named_with_its_setting(tmp_path: Path) -> None:
    check_machine({"image_kv": {"memory_gib": 1, "profile": "bundled"}})
    no_json = tmp_path / "no.json"
    no_json.write_text("{")
    for file, what in ((tmp_path / "none.json", "cannot be read"), (no_json, "is not JSON")):
        with pytest.raises(ConfigError, match=what) as caught:
            check_machine({"image_kv": {"memory_gib": 1, "profile": str(file)}})
        assert caught.value.key == "engine.vllm.image_kv.profile"
        assert os.fspath(file) in caught.value.reason


def test_a_pool_larger_than_the_machine_is_refused_with_what_there_is() -> None:
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3
    check_machine({"image_kv": {"memory_gib": there - 0.1}})
    with pytest.raises(ConfigError, match=f"machine's memory, {there:.1f} GiB; lower it") as caught:
        check_machine({"image_kv": {"memory_gib": there + 0.1}})
    assert caught.value.key == "engine.vllm.image_kv.memory_gib"


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({}, "image KV pool off; block tiers off; eviction lru"),
        (
            {"image-kv": {"memory_gib": 1.5}, "eviction": "modality"},
            "image KV pool 1.5 GiB in memory, no files, profile of layers none; block tiers off; eviction modality",
        ),
        (
            {"image_kv": {"memory_gib": 4, "folder": "/kv", "folder_gib": 30, "profile": "bundled"}},
            "image KV pool 4 GiB in memory, 30 GiB in files, profile of layers bundled; block tiers off; eviction lru",
        ),
        (
            {"image_kv": {"memory_gib": 4, "profile": "/secret/place.json"}},
            "image KV pool 4 GiB in memory, no files, profile of layers from a file; block tiers off; eviction lru",
        ),
        (
            {"block_tiers": {"memory_gib": 2, "folder": "/kv"}},
            "image KV pool off; block tiers 2 GiB in memory, 20 GiB in files; eviction lru",
        ),
    ],
)
def test_what_is_switched_on_is_one_line_with_bounds_and_without_paths(options: dict[str, Any], line: str) -> None:
    assert told(options) == line
