"""`engine.vllm.eviction` becomes vLLM's options, and a wrong value is named."""

from __future__ import annotations

from typing import Any

import pytest

from context.errors import ConfigError
from engine.vllm.features import feature_options
from engine.vllm.options import VllmSettings, arguments


@pytest.mark.parametrize("options", [{}, {"eviction": "lru"}])
def test_off_is_vllm_as_it_is(options: dict[str, Any]) -> None:
    assert feature_options(options, "ipc://x") == {}


def test_on_names_the_scheduler_and_tells_it_what_to_do() -> None:
    made = feature_options({"eviction": "modality", "additional-config": {"mine": 1}}, "ipc://x")
    assert made == {
        "scheduler-cls": "engine.vllm.scheduler.StillframeScheduler",
        "additional-config": {"mine": 1, "stillframe": {"blocks": {"eviction": "modality"}}},
    }


def test_vllm_is_not_told_an_option_that_it_does_not_have() -> None:
    words = arguments(VllmSettings("folder", "name", {"eviction": "modality"}), cpu=True, required={})
    assert "--eviction" not in words


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"eviction": "fifo"}, "engine.vllm.eviction"),
        ({"eviction": None}, "engine.vllm.eviction"),
        ({"eviction": "modality", "scheduler-cls": "mine"}, "engine.vllm.scheduler-cls"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(options: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        feature_options(options, "ipc://x")
    assert caught.value.key == key
