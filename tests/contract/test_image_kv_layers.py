"""Ratios by layer in the real engine, in single precision, against the plain PyTorch model."""

# torch leaves much of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from engine.demo_model.evaluate import wire_messages
from engine.reference.profile import ReuseProfile, read_profile, write_profile
from tests.contract.cases import user, words
from tests.contract.image_kv_rig import IMAGE_TOKENS, ROUNDING, Rig, Said, picture, same, started
from tests.contract.test_image_kv_load import preemptions

if TYPE_CHECKING:
    from metrics.eval.cases import Case
    from metrics.eval.run import Subject

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="module")]

HERE, THERE, QUESTION = words(40, seed=1), words(62, seed=2), words(20, seed=3)
# The demo model's vocabulary, whole.
EVERY_TOKEN = 896
# So that requests that run together outgrow the cache.
REPLY = 40
# Of logits, between two implementations of one model in single precision.
BETWEEN_MODELS = 5e-4


def profile(demo_checkpoint: Path) -> ReuseProfile:
    """Layers that compute less and less: (.5, .5, .5, .3, 0, 0) under a budget of .3, at .5 all the same."""
    measured = read_profile(demo_checkpoint.parent / "reuse_profile.json")
    layers = tuple((weight, weight * 0.02, 0.0) for weight in (5.0, 4.0, 3.0, 2.0, 1.0, 0.5))
    return replace(measured, grid=(0.0, 0.5, 1.0), sensitivity=layers, step=0.05)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(demo_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Rig]:
    file = tmp_path_factory.mktemp("profile") / "profile.json"
    write_profile(file, profile(demo_checkpoint))
    async with started(
        demo_checkpoint, {"memory_gib": 1, "profile": str(file)}, **{"max-logprobs": EVERY_TOKEN}
    ) as made:
        yield made


@pytest.fixture(scope="module")
def subject(demo_checkpoint: Path) -> Subject:
    from metrics.eval.run import load_subject

    return load_subject(demo_checkpoint)


async def by_layer(rig: Rig, name: str, messages: list[dict[str, Any]], ratio: float, **other: Any) -> Said:
    asked = {"mode": "position_independent", "ratio": ratio, "profile": True}
    return await rig.ask(name, messages, kv_transfer_params={"stillframe": asked}, **other)


async def learnt(rig: Rig, name: str, *shades: int) -> None:
    """Have the pool know images, each from a context of its own."""
    for shade in shades:
        await rig.ask(f"{name}-{shade}", [user(words(11, seed=shade), picture(shade))])
    await rig.forget_prefixes()


def expected_of(subject: Subject, case: Case, demo_checkpoint: Path, ratio: float) -> Any:
    """What the plain model says first, of all tokens, when each layer computes its own rows."""
    import torch

    from engine.reference.reuse import reuse, rope_table
    from metrics.eval.answers import contexts_of, full_recompute
    from metrics.eval.base import Cell
    from metrics.eval.variants import Maker, Setting

    model = subject.model
    with torch.inference_mode():
        full = full_recompute(model, case, subject.encoder.end)
        setting = Setting(model, rope_table(model.shape, 4096), profile(demo_checkpoint), 1)
        maker = Maker(setting, case, contexts_of(model, case, full, ["reordered"]), 0)
        variant = maker.make(Cell("per_layer", ratio, "reordered"))
        assert variant is not None
        x = full.x[: len(case.prompt.ids)]
        logits = reuse(model, x, case.prompt.positions, variant.held, variant.rows).logits[0, -1]
        return torch.log_softmax(logits, -1)


@pytest.mark.parametrize("ratio", [0.05, 0.3, 0.8])
async def test_it_gives_the_logits_of_the_plain_model_with_the_same_rows(
    rig: Rig, subject: Subject, demo_checkpoint: Path, ratio: float
) -> None:
    from metrics.eval.cases import draw_cases

    names = Counter(subject.tokenizer.decode([token], skip_special_tokens=False) for token in range(EVERY_TOKEN))
    for case in list(draw_cases(subject.encoder, 2, (5,)))[::2]:
        donor, chat = case.donors["reordered"][0].chat, case.prompt.chat
        assert donor is not None
        assert chat is not None
        await rig.engine.reset_caches()
        await rig.ask(f"donor-{ratio}-{case.number}", wire_messages(donor))
        await rig.forget_prefixes()
        name = f"reference-{ratio}-{case.number}"
        said = await by_layer(rig, name, wire_messages(chat), ratio, tokens=1, top_logprobs=EVERY_TOKEN)
        assert (await rig.reuse(name)).hits == len(case.prompt.images)
        expected = expected_of(subject, case, demo_checkpoint, ratio)
        differences = [
            abs(float(expected[token]) - said.likely[0][text])
            for token in range(EVERY_TOKEN)
            if names[text := subject.tokenizer.decode([token], skip_special_tokens=False)] == 1
        ]
        assert len(differences) > EVERY_TOKEN / 2
        assert max(differences) < BETWEEN_MODELS
    await rig.forget_prefixes()


@pytest.mark.parametrize("ratio", [0.5, 0.999])
async def test_layers_that_all_compute_the_same_are_one_ratio_to_the_bit(rig: Rig, ratio: float) -> None:
    await learnt(rig, f"uniform-{ratio}", 1)
    messages = [user(THERE, picture(1), QUESTION)]
    one = await rig.ask(f"uniform-one-{ratio}", messages, ratio=ratio)
    await rig.forget_prefixes()
    assert (await by_layer(rig, f"uniform-layers-{ratio}", messages, ratio)).likely == one.likely
    await rig.forget_prefixes()
    # With all rows of the image it is full recompute.
    full = await rig.ask(f"uniform-full-{ratio}", messages, salt="other tenant")
    assert (full.likely == one.likely) == (ratio == 0.999)


@pytest.mark.parametrize("ratio", [0.05, 0.3, 0.8])
async def test_in_the_same_context_it_is_exact_and_counts_what_all_layers_together_computed(
    rig: Rig, ratio: float
) -> None:
    messages = [user(HERE, picture(2), QUESTION)]
    full = await rig.ask(f"same-full-{ratio}", messages)
    await rig.forget_prefixes()
    reused = await by_layer(rig, f"same-{ratio}", messages, ratio)
    assert same(full, reused)
    got = await rig.reuse(f"same-{ratio}")
    assert got.computed_tokens == -(-ratio * IMAGE_TOKENS // 1)
    assert got.loaded_tokens == IMAGE_TOKENS - got.computed_tokens
    # What some layers loaded was neither read nor written as a whole.
    assert reused.read_tokens == 0
    assert reused.write_tokens <= reused.prompt_tokens - got.loaded_tokens
    await rig.forget_prefixes()


async def test_its_blocks_are_read_by_later_turns_of_the_same_kind_alone(rig: Rig) -> None:
    await learnt(rig, "kind", 3)
    first = [user(THERE, picture(3), QUESTION)]
    full = await rig.ask("kind-full", first, salt="other tenant")
    await by_layer(rig, "kind-first", first, 0.3)
    later = [*first, {"role": "assistant", "content": words(5, seed=7)}, user(words(9, seed=8))]
    await by_layer(rig, "kind-later", later, 0.3)
    assert (await rig.reuse("kind-later")).reread_tokens >= IMAGE_TOKENS
    await rig.ask("kind-one-ratio", first, ratio=0.3)
    assert (await rig.reuse("kind-one-ratio")).reread_tokens == 0
    assert same(await rig.ask("kind-exact", first), full)
    await rig.forget_prefixes()


def jobs() -> dict[str, tuple[list[dict[str, Any]], dict[str, Any]]]:
    """Requests of all kinds that go well together, with different images, lengths and ratios."""
    made: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {}
    for at in range(12):
        text = words(9 * at + 3, seed=at)
        content = (text, picture(4 + at % 3), words(2, seed=at), picture(4 + (at + 1) % 3), QUESTION)
        kind = at % 4
        asked: dict[str, Any] = {"mode": "position_independent", "ratio": (0.05, 0.3, 0.8)[at % 3], "profile": kind < 2}
        parameters: dict[str, Any] = {"salt": "tenant"}
        if kind < 3:
            parameters["kv_transfer_params"] = {"stillframe": asked}
        made[f"job-{at}"] = [user(*content)], parameters
    return made


async def test_requests_of_all_kinds_in_one_batch_with_preemptions_are_what_each_is_alone(rig: Rig) -> None:
    await learnt(rig, "batch", 4, 5, 6)
    alone: dict[str, Said] = {}
    for name, (messages, parameters) in jobs().items():
        alone[name] = await rig.ask(f"alone-{name}", messages, tokens=REPLY, **parameters)
        await rig.forget_prefixes()
    before = preemptions(rig)
    together = await asyncio.gather(
        *(rig.ask(f"batch-{name}", messages, tokens=REPLY, **given) for name, (messages, given) in jobs().items())
    )
    assert preemptions(rig) > before
    for (name, one), other in zip(alone.items(), together, strict=True):
        assert one.distance(other) < ROUNDING, name
    # Rows were dropped beside whole requests: ratios by layer are not what one ratio gives.
    by_one = await rig.ask("batch-one-ratio", jobs()["job-1"][0], ratio=0.3, tokens=REPLY, salt="tenant")
    assert by_one.distance(alone["job-1"]) > 10 * ROUNDING
    await rig.forget_prefixes()
    pool = await rig.pool()
    assert pool.memory_entries > 0
