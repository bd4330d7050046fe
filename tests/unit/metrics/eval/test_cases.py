"""Questions and the contexts that the KV of their pictures comes from."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer

from engine.demo_model import bundled_folder
from engine.demo_model.training.batches import Encoder
from metrics.eval.base import DONORS
from metrics.eval.cases import Case, draw_cases
from metrics.eval.held import common_prefix


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(bundled_folder() / "tokenizer.json"))


@pytest.fixture(scope="module")
def cases(tokenizer: Tokenizer) -> list[Case]:
    return list(draw_cases(Encoder(tokenizer), 12, (1,)))


def test_half_the_questions_need_one_picture_and_half_several(cases: list[Case]) -> None:
    assert [case.hop for case in cases] == ["single_hop", "multi_hop"] * 12
    assert [case.number for case in cases] == list(range(24))
    assert {len(case.prompt.images) for case in cases} == {2, 3, 4}


def test_a_seed_gives_the_same_questions_and_calibration_has_others(tokenizer: Tokenizer, cases: list[Case]) -> None:
    encoder = Encoder(tokenizer)

    def prompts(count: int, seeds: tuple[int, ...], split: str) -> list[list[int]]:
        drawn = draw_cases(encoder, count, seeds, split)  # type: ignore[arg-type]
        return [case.prompt.ids.tolist() for case in drawn]

    first = [case.prompt.ids.tolist() for case in cases]
    assert prompts(3, (1,), "test") == first[:6]
    both = prompts(3, (1, 2), "test")
    assert both[:6] == first[:6]
    assert all(prompt not in first for prompt in both[6:])
    assert all(prompt not in first for prompt in prompts(12, (1,), "validation"))


def test_the_prompt_ends_where_the_reply_begins(tokenizer: Tokenizer, cases: list[Case]) -> None:
    for case in cases:
        assert tokenizer.decode(case.prompt.ids.tolist(), skip_special_tokens=False).endswith("<|im_start|>assistant\n")
        assert tokenizer.decode(list(case.reply)) == case.expected


def test_every_donor_has_each_picture_once_in_its_own_size(cases: list[Case]) -> None:
    for case in cases:
        sizes = dict(zip(case.prompt.pictures, _sizes(case.prompt.images), strict=True))
        assert list(sizes.values()) == [scene.tokens for scene in case.scenes[: len(sizes)]]
        assert tuple(case.donors) == DONORS
        for prompts in case.donors.values():
            there = [pair for one in prompts for pair in zip(one.pictures, _sizes(one.images), strict=True)]
            assert sorted(pair for pair in there if pair[0] in sizes) == sorted(sizes.items())


def _sizes(images: tuple[tuple[int, int], ...]) -> list[int]:
    return [end - first for first, end in images]


def test_each_donor_is_the_context_that_it_is_named_after(cases: list[Case]) -> None:
    for case in cases:
        count = len(case.prompt.images)
        (same,), (moved,), (reordered,) = (case.donors[name] for name in ("same", "text_moved", "reordered"))
        assert same is case.prompt
        assert moved.pictures == tuple(range(count))
        assert moved.images[0] != case.prompt.images[0]
        assert reordered.pictures == (*range(1, count), 0)
        # The same text around other pictures.
        assert _text(reordered.ids)[: len(_text(case.prompt.ids))] == _text(case.prompt.ids)
        assert [one.pictures for one in case.donors["describe"]] == [(number,) for number in range(count)]
        for number, one in enumerate(case.donors["other_images"]):
            # The same place in the order, behind pictures that are not of the question.
            assert one.pictures[number:] == (number,)
            assert set(one.pictures[:number]).isdisjoint(range(count))
            assert [case.scenes[at] for at in one.pictures[:number]] == list(case.scenes[count : count + number])


def _text(ids: torch.Tensor) -> list[int]:
    listed: list[int] = ids.tolist()
    image = max(set(listed), key=listed.count)
    return [token for token in listed if token != image]


def test_the_prefix_of_two_prompts_ends_with_the_first_other_picture(cases: list[Case]) -> None:
    for case in cases:
        prompt = case.prompt
        assert common_prefix(prompt, prompt) == len(prompt.ids)
        assert common_prefix(prompt, case.donors["reordered"][0]) <= prompt.images[0][0]
        assert common_prefix(prompt, case.donors["text_moved"][0]) < prompt.images[0][0]
