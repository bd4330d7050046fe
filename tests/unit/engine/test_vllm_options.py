"""Settings become vLLM's own command line, and a wrong one is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from context.errors import ConfigError
from engine import torchvision_ops
from engine.reference.profile import read_profile
from engine.vllm.features import feature_options
from engine.vllm.image_kv.settings import ImageKvSettings
from engine.vllm.options import VllmSettings, arguments, parse

REQUIRED = {"kv-events-config": {"enable_kv_cache_events": True}}


def words(**options: object) -> list[str]:
    return arguments(VllmSettings("folder", "name", options), cpu=True, required=REQUIRED)


def after(name: str, given: list[str]) -> list[str]:
    start = given.index(name) + 1
    end = next((i for i in range(start, len(given)) if given[i].startswith("--")), len(given))
    return given[start:end]


def test_every_kind_of_value() -> None:
    given = words(
        max_model_len=4096,
        **{"enforce-eager": True, "async-scheduling": False, "limit-mm-per-prompt": {"image": 3}, "seed": None},
        middleware=["a", "b"],
    )
    assert after("--max-model-len", given) == ["4096"]
    assert after("--limit-mm-per-prompt", given) == ['{"image": 3}']
    assert after("--middleware", given) == ["a", "b"]
    assert "--enforce-eager" in given
    assert "--no-async-scheduling" in given
    assert "--seed" not in given


@pytest.mark.case("MC-086")
def test_what_the_gateway_needs_is_on() -> None:
    given = words()
    assert "--enable-prompt-tokens-details" in given
    assert "--enable-prefix-caching" in given
    assert after("--kv-events-config", given) == ['{"enable_kv_cache_events": true}']
    assert after("--block-size", given) == ["32"]
    assert "--block-size" not in arguments(VllmSettings("folder", "name"), cpu=False, required=REQUIRED)


def test_a_default_gives_way() -> None:
    assert after("--block-size", words(block_size=64)) == ["64"]
    assert "--no-enable-prefix-caching" in words(enable_prefix_caching=False)


@pytest.mark.parametrize("name", ["kv-events-config", "served_model_name", "port", "api-key"])
def test_what_the_gateway_sets_itself_is_refused(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        words(**{name: "x"})
    assert caught.value.key == f"engine.vllm.{name.replace('_', '-')}"


@pytest.mark.vllm
@pytest.mark.parametrize(("option", "value"), [("no-such-option", 1), ("max-model-len", "many"), ("dtype", "float7")])
def test_what_vllm_does_not_take_is_named(option: str, value: object) -> None:
    torchvision_ops.declare_missing()
    with pytest.raises(ConfigError) as caught:
        parse(words(**{option: value}))
    assert caught.value.key == "engine.vllm"
    assert option in caught.value.reason


@pytest.mark.vllm
def test_vllm_takes_what_we_give_it() -> None:
    torchvision_ops.declare_missing()
    parsed = parse(words(**{"max-model-len": 2048}))
    assert (parsed.model, parsed.max_model_len, parsed.enable_prompt_tokens_details) == ("folder", 2048, True)


@pytest.mark.parametrize(
    ("given", "key", "reason"),
    [
        (4, "engine.vllm.image_kv", "mapping"),
        ({}, "engine.vllm.image_kv.memory_gib", "above 0"),
        ({"memory_gib": 0}, "engine.vllm.image_kv.memory_gib", "above 0"),
        ({"memory_gib": "many"}, "engine.vllm.image_kv.memory_gib", "above 0"),
        ({"memory_gib": 1, "folder": 5}, "engine.vllm.image_kv.folder", "path"),
        ({"memory_gib": 1, "profile": 5}, "engine.vllm.image_kv.profile", "path of a file, or bundled"),
        ({"memory_gib": 1, "folder_gib": -1}, "engine.vllm.image_kv.folder_gib", "above 0"),
        ({"memory_gib": 10**400}, "engine.vllm.image_kv.memory_gib", "above 0"),
        ({"memory_gib": 1, "folder": "~nobody-is-called-so/x"}, "engine.vllm.image_kv.folder", "no such home folder"),
        ({"memory_gib": 1, "profile": "~nobody-is-called-so/x"}, "engine.vllm.image_kv.profile", "no such home folder"),
        ({"memory_gib": 1, "size": 2}, "engine.vllm.image_kv.size", "memory_gib, folder, folder_gib"),
    ],
)
def test_a_wrong_pool_of_images_is_named(given: object, key: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        feature_options({"image-kv": given}, "ipc:///images")
    assert caught.value.key == key
    assert reason in caught.value.reason


@pytest.mark.parametrize("given", [5, [1], '{"a": 1}'])
def test_an_additional_config_that_is_no_mapping_is_refused_where_ours_joins_it(given: object) -> None:
    with pytest.raises(ConfigError) as caught:
        feature_options({"additional-config": given, "image-kv": {"memory_gib": 1}}, "ipc:///images")
    assert caught.value.key == "engine.vllm.additional-config"


@pytest.mark.parametrize("name", ["kv-transfer-config", "ec-transfer-config", "scheduler-cls", "worker-extension-cls"])
def test_what_the_pool_of_images_needs_is_its_own_and_free_without_it(name: str) -> None:
    assert feature_options({name: "x"}, "ipc:///images") == {}
    with pytest.raises(ConfigError) as caught:
        feature_options({name: "x", "image-kv": {"memory_gib": 1}}, "ipc:///images")
    assert caught.value.key == f"engine.vllm.{name}"
    assert "engine.vllm.image_kv" in caught.value.reason


def test_the_demo_model_s_own_ratios_by_layer_have_a_name() -> None:
    file = ImageKvSettings.of({"memory_gib": 1, "profile": "bundled"}).profile_file
    assert file is not None
    assert read_profile(file).layers == 6
    assert ImageKvSettings.of({"memory_gib": 1, "profile": "mine.json"}).profile_file == Path("mine.json")
    assert ImageKvSettings.of({"memory_gib": 1}).profile_file is None


def test_the_pool_of_images_is_told_to_the_engine_beside_the_user_s_own() -> None:
    options = {"image-kv": {"memory_gib": 1, "folder": "f"}, "additional-config": {"mine": 1}}
    made = feature_options(options, "ipc:///images")
    told = {"memory_gib": 1.0, "folder": "f", "folder_gib": 20.0, "profile": "", "endpoint": "ipc:///images"}
    assert made["additional-config"] == {"mine": 1, "stillframe": {"image_kv": told}}
    with pytest.raises(ConfigError) as caught:
        feature_options({**options, "additional-config": {"stillframe": {}}}, "")
    assert caught.value.key == "engine.vllm.additional-config"
    assert "--image-kv" not in words(image_kv={"memory_gib": 1})
