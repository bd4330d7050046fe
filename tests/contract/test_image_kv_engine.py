"""Images' KV, used again wherever the image stands, in the real engine in single precision."""

from __future__ import annotations

from pathlib import Path

import pytest

from context.errors import EngineUnavailable
from engine.base import ChatRequest
from tests.contract.cases import Picture, user, words
from tests.contract.image_kv_rig import BLOCK_TOKENS, IMAGE_TOKENS, ROUNDING, Rig, picture, same

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

HERE, THERE, QUESTION = words(40, seed=1), words(62, seed=2), words(20, seed=3)


@pytest.fixture
def rig(image_rig: Rig) -> Rig:
    return image_rig


def blocks(tokens: int) -> int:
    """The tokens of the full blocks among so many."""
    return tokens // BLOCK_TOKENS * BLOCK_TOKENS


async def learnt(rig: Rig, name: str, *shades: int) -> None:
    """Have the pool know images, each from a context of its own."""
    for shade in shades:
        await rig.ask(f"{name}-{shade}", [user(words(11, seed=shade), picture(shade))])
    await rig.forget_prefixes()


@pytest.mark.parametrize("ratio", [0, 0.05, 0.3, 0.9])
async def test_in_the_same_context_reuse_is_exact_whatever_is_computed(rig: Rig, ratio: float) -> None:
    messages = [user(HERE, picture(1), QUESTION)]
    full = await rig.ask("same-full", messages)
    await rig.forget_prefixes()
    reused = await rig.ask(f"same-{ratio}", messages, ratio=ratio)
    assert same(full, reused)
    got = await rig.reuse(f"same-{ratio}")
    assert got.loaded_tokens + got.computed_tokens == IMAGE_TOKENS
    assert got.computed_tokens == -(-ratio * IMAGE_TOKENS // 1)
    await rig.forget_prefixes()


async def test_elsewhere_all_of_an_image_computed_is_full_recompute_and_less_is_not(rig: Rig) -> None:
    await learnt(rig, "elsewhere", 2)
    messages = [user(THERE, picture(2), QUESTION)]
    full = await rig.ask("elsewhere-full", messages, salt="other tenant")
    all_of_it = await rig.ask("elsewhere-all", messages, ratio=1)
    await rig.forget_prefixes()
    most, least = [await rig.ask(f"elsewhere-{ratio}", messages, ratio=ratio) for ratio in (0.98, 0)]
    assert same(full, all_of_it)
    assert full.distance(all_of_it) < full.distance(most) < full.distance(least)
    await rig.forget_prefixes()


async def test_approximate_blocks_are_read_by_later_turns_and_by_no_exact_request(rig: Rig) -> None:
    await learnt(rig, "taint", 3)
    first = [user(THERE, picture(3), QUESTION)]
    full = await rig.ask("taint-full", first, salt="other tenant")
    reused = await rig.ask("taint-first", first, ratio=0)
    assert reused.distance(full) > 10 * ROUNDING
    # Neither read nor written anew.
    assert reused.read_tokens == 0
    assert reused.write_tokens <= reused.prompt_tokens - IMAGE_TOKENS
    later = [*first, {"role": "assistant", "content": words(5, seed=7)}, user(words(9, seed=8))]
    turn = await rig.ask("taint-later", later, ratio=0)
    got = await rig.reuse("taint-later")
    assert turn.read_tokens >= blocks(reused.prompt_tokens - 8)
    assert got.reread_tokens >= IMAGE_TOKENS
    assert got.loaded_tokens == 0
    exact = await rig.ask("taint-exact", first)
    # What stands before the image, and no more.
    assert exact.read_tokens <= blocks(full.prompt_tokens - IMAGE_TOKENS)
    assert same(exact, full)
    await rig.forget_prefixes()


async def test_what_stands_behind_approximate_tokens_is_never_kept(rig: Rig) -> None:
    async def known(name: str, *content: str | Picture, misses: int = 0) -> int:
        """Images in the pool, after a request."""
        await rig.ask(name, [user(*content)], ratio=0)
        assert (await rig.reuse(name)).misses == misses
        return (await rig.pool()).memory_entries

    await learnt(rig, "donor", 4)
    before = await known("donor", THERE, picture(4))
    assert await known("donor-behind", THERE, picture(4), picture(5), QUESTION, misses=1) == before
    # Read again from approximate blocks, it is no more exact than it was.
    assert await known("donor-again", THERE, picture(4), picture(5), QUESTION, words(40, seed=5), misses=0) == before
    # What stands before the first of them is exact, and is kept.
    assert await known("donor-before", HERE, picture(5), picture(4), QUESTION, misses=1) == before + 1
    await rig.forget_prefixes()


async def test_several_images_and_the_same_one_twice_are_loaded_each_in_its_place(rig: Rig) -> None:
    await learnt(rig, "several", 6, 7)
    messages = [user(HERE, picture(6), words(3, seed=4), picture(7), picture(6), QUESTION)]
    await rig.ask("several", messages, ratio=0.05)
    got = await rig.reuse("several")
    assert (got.images, got.hits, got.misses) == (2, 3, 0)
    assert got.loaded_tokens == 3 * (IMAGE_TOKENS - 4)
    await rig.forget_prefixes()


async def test_an_image_s_encoder_output_comes_from_the_pool_where_the_encoder_cache_has_lost_it(rig: Rig) -> None:
    messages = [user(HERE, picture(8), QUESTION)]
    full = await rig.ask("encoder-full", messages)
    assert len(rig.encoder_events("encoder-full", "run")) == 1
    for ratio, loads in ((0.3, 1), (0, 0)):
        await rig.forget_prefixes()
        await rig.forget_encoder_outputs()
        name = f"encoder-{ratio}"
        assert same(await rig.ask(name, messages, ratio=ratio), full)
        await rig.reuse(name)
        assert rig.encoder_events(name, "run") == []
        assert len(rig.encoder_events(name, "load")) == loads
    await rig.forget_prefixes()


@pytest.mark.parametrize(("ratio", "images", "side", "expected"), [(0.05, 4, 8, 1), (0, 6, 8, 1), (0.05, 4, 18, 5)])
async def test_many_images_with_text_between_take_one_step_and_are_exact_where_they_were(
    rig: Rig, ratio: float, images: int, side: int, expected: int
) -> None:
    """The last ones' encoder outputs have no room together in the engine's cache of them: they go on one by one."""
    content: list[str | Picture] = []
    for shade in range(20, 20 + images):
        content += [words(2, seed=shade), Picture(f"many-{side}-{shade}", side * 28, side * 28, shade=shade)]
    messages, name = [user(*content, words(3, seed=9))], f"many-{ratio}-{side}"
    full = await rig.ask(f"{name}-full", messages, tokens=1)
    await rig.forget_prefixes()
    await rig.forget_encoder_outputs()
    before = len(rig.events)
    reused = await rig.ask(name, messages, ratio=ratio, tokens=1)
    assert same(full, reused)
    got = await rig.reuse(name)
    assert (got.hits, got.computed_tokens) == (images, images * -(-ratio * side * side // 1))
    assert await rig.goes(before, reused.prompt_tokens // BLOCK_TOKENS) == expected
    assert rig.encoder_events(name, "run") == []
    await rig.forget_prefixes()


async def test_another_tenant_has_no_share_in_it(rig: Rig) -> None:
    await learnt(rig, "tenant", 9)
    messages = [user(THERE, picture(9), QUESTION)]
    theirs = await rig.ask("tenant-theirs", messages, ratio=0, salt="other tenant")
    got = await rig.reuse("tenant-theirs")
    assert (got.hits, got.misses, got.loaded_tokens) == (0, 1, 0)
    assert same(theirs, await rig.ask("tenant-full", messages, salt="a third tenant"))
    await rig.forget_prefixes()


async def test_emptying_the_engine_s_caches_empties_the_pool_before_it_says_so(rig: Rig, image_folder: Path) -> None:
    def files() -> int:
        return sum(1 for _ in image_folder.iterdir())

    await learnt(rig, "reset", 10)
    assert files()
    await rig.engine.reset_caches()
    # No step came in between: of a core that dies now nothing comes back.
    assert not files()
    told = await rig.emptied()
    assert (told.memory_bytes, told.file_entries, told.file_bytes) == (0, 0, 0)
    await rig.ask("reset", [user(THERE, picture(10), QUESTION)], ratio=0)
    got = await rig.reuse("reset")
    assert (got.hits, got.misses) == (0, 1)
    await rig.forget_prefixes()


async def test_a_refused_emptying_of_the_caches_leaves_what_the_pool_has(rig: Rig) -> None:
    await learnt(rig, "refused", 11)
    body = {"model": "demo", "messages": [user(HERE)], "max_tokens": 1000, "ignore_eos": True, "stream": True}
    async with rig.engine.chat(ChatRequest("refused-running", body, "tenant")) as reply:
        assert await anext(aiter(reply.chunks))
        with pytest.raises(EngineUnavailable, match="while requests are running"):
            await rig.engine.reset_caches()
    await rig.forget_prefixes()
    await rig.ask("refused", [user(THERE, picture(11), QUESTION)], ratio=0)
    got = await rig.reuse("refused")
    assert (got.hits, got.misses) == (1, 0)
    await rig.forget_prefixes()


async def test_embeddings_in_place_of_images_are_refused_as_without_the_pool(rig: Rig) -> None:
    part = {"type": "image_embeds", "image_embeds": "AAAA"}
    body = {"model": "demo", "max_tokens": 1, "messages": [{"role": "user", "content": [part]}]}
    async with rig.engine.chat(ChatRequest("embeddings", body, "tenant")) as reply:
        assert reply.status == 400
        assert b"enable-mm-embeds" in await reply.read()
