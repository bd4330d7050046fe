"""Which vocabulary and which rule an engine's estimates go by."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.estimates import load, rough
from app.settings import Settings
from app.settings import load as load_settings
from context.images.base import ImageRef
from context.tokens.vocabulary import shipped
from context.transcript import ImagePart
from engine.demo_model import bundled_folder

TEXT = "Internationalization of the configuration: several unusual terms, 1024 digits."
LARGE = {"role": "user", "content": [ImagePart(ImageRef("ab" * 32, 4000, 4000, "image/png", 9))]}


def settings(**given: str) -> Settings:
    return load_settings(environment={f"STILLFRAME_{key}": value for key, value in given.items()})


def test_an_embedded_engine_is_counted_with_its_own_tokenizer_and_bounds() -> None:
    from tokenizers import Tokenizer

    own = Tokenizer.from_file(str(bundled_folder() / "tokenizer.json")).encode(TEXT, add_special_tokens=False).ids
    estimator = load(settings(), "vllm").of("demo")
    assert estimator.message_tokens({"role": "user", "content": TEXT}) == 5 + len(own) != 5 + shipped().count(TEXT)
    by_name = load(settings(), "remote").of("demo")
    assert estimator.message_tokens(LARGE) < by_name.message_tokens(LARGE)


def test_options_of_the_image_processor_count() -> None:
    told = settings(ENGINE__VLLM="{mm-processor-kwargs: {max_pixels: 12544}}")
    assert load(told, "vllm").of("demo").message_tokens(LARGE) == 5 + 2 + 16


def test_an_upstream_is_counted_with_the_shipped_vocabulary_and_by_its_models_names() -> None:
    made = load(settings(), "remote")
    assert made.of("any").message_tokens({"role": "user", "content": TEXT}) == 5 + shipped().count(TEXT)
    assert made.of("llava-1.5-7b").message_tokens(LARGE) == 5 + 576
    assert made.of("gpt-5").message_tokens(LARGE) == 5 + 1024


def test_a_family_that_is_told_wins() -> None:
    told = settings(ESTIMATES__VISUAL_FAMILY="llava")
    for made in (load(told, "vllm"), load(told, "remote"), rough(told)):
        assert made.of("Qwen/Qwen3-VL-8B").message_tokens(LARGE) == 5 + 576


def test_a_model_keeps_its_estimator_and_there_are_only_so_many() -> None:
    made = rough(settings())
    first = made.of("one")
    assert made.of("one") is first
    assert made.of("two") is not first
    for number in range(100):
        made.of(f"model {number}")
    assert made.of("one") is not first


@pytest.mark.parametrize("model", ["none-of-ours/not-here", "/no/such/folder"])
def test_a_model_that_is_not_here_is_counted_with_what_is_shipped(model: str, tmp_path: Path) -> None:
    told = settings(MODEL=model, DATA_DIR=str(tmp_path))
    assert load(told, "vllm").of("x").message_tokens({"role": "user", "content": TEXT}) == 5 + shipped().count(TEXT)
