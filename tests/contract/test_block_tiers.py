"""Blocks that left the engine's prefix cache come back from memory and from files, and change no answer.

A small model in single precision: what is read back is equal to the bit, or an answer shows it. Only where a reply was
computed token by token, beside others, or with another number of rows, the last bits of a sum may differ.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from random import Random

import pytest
import pytest_asyncio

from engine.base import BlockStored
from tests.contract.block_tier_rig import (
    BLOCK_BYTES,
    MEMORY_BLOCKS,
    SETTINGS,
    TierRig,
    conversation,
    full_blocks,
    next_turn,
    output_to,
    started,
)
from tests.contract.cases import user, words
from tests.contract.image_kv_rig import BLOCK_TOKENS, Said, picture, same
from tests.contract.test_image_kv_load import preemptions

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="module")]

JOBS, AT_ONCE, KINDS, TOKENS = 30, 10, 8, 24


EVICTIONS = ("lru", "modality") if os.environ.get("STILLFRAME_LONG") == "1" else ("lru",)


@pytest.fixture(scope="module", params=EVICTIONS)
def eviction(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def folder(eviction: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp(eviction) / "blocks"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(eviction: str, demo_checkpoint: Path, folder: Path) -> AsyncGenerator[TierRig]:
    log = folder.with_name("log")
    async with AsyncExitStack() as stack:
        with output_to(log), pytest.MonkeyPatch.context() as environment:
            environment.setenv("VLLM_LOGGING_LEVEL", "INFO")
            rig = await stack.enter_async_context(started(demo_checkpoint, folder, eviction=eviction))
        yield rig
    # It has ended: whoever made the memory tier does not miss its name, which the scheduler took away.
    said = log.read_text(errors="replace")
    assert "Created mmap file" in said
    assert "Failed to unlink" not in said


def files_of(folder: Path) -> list[Path]:
    return list(folder.glob("*.blockkv"))


async def test_a_turn_whose_prefix_was_evicted_reads_it_from_memory_and_answers_the_same(rig: TierRig) -> None:
    first = await rig.ask("memory-1", conversation(1), tokens=40)
    assert (first.read_tokens, first.write_tokens) == (0, full_blocks(first.prompt_tokens))
    later = next_turn(conversation(1), first, 1)
    computed = await rig.alone("memory-full", later, tokens=40)
    await rig.ask("memory-kept-1", conversation(1), salt="not evicted", tokens=40)
    kept = await rig.ask("memory-kept-2", later, salt="not evicted", tokens=40)
    await rig.forget_prefixes()
    before = await rig.tiers()
    second = await rig.ask("memory-2", later, tokens=40)
    after = await rig.tiers(lambda state: state.memory_loaded > before.memory_loaded)
    assert (second.distance(kept), second.tokens, second.read_tokens) == (0.0, kept.tokens, kept.read_tokens)
    assert same(second, computed)
    # The reply that was computed is a part of what is read.
    assert second.read_tokens >= full_blocks(first.prompt_tokens + 32)
    assert second.read_tokens == BLOCK_TOKENS * (after.memory_loaded - before.memory_loaded)
    # What was loaded is not written a second time, and nothing is counted twice.
    assert second.write_tokens == full_blocks(second.prompt_tokens) - second.read_tokens
    assert after.file_loaded == before.file_loaded
    # It is in the prefix cache again.
    again = await rig.ask("memory-3", later, tokens=40)
    assert (again.read_tokens, same(again, computed)) == (full_blocks(again.prompt_tokens), True)
    assert (await rig.tiers()).memory_loaded == after.memory_loaded
    # Of the tiers' own events, which say nothing of their tokens, the gateway's mirror hears nothing.
    stored = [event for event in rig.events if isinstance(event, BlockStored)]
    assert stored
    assert all(event.token_ids for event in stored)


async def test_what_left_memory_too_is_read_from_files(rig: TierRig) -> None:
    said = await rig.ask("files-1", conversation(2))
    # It computes the same rows as what reads files: the last bits may depend on how many they are.
    kept = await rig.ask("files-kept", conversation(2))
    await rig.push_out(2)
    await rig.forget_prefixes()
    before = await rig.tiers()
    again = await rig.ask("files-2", conversation(2))
    after = await rig.tiers(lambda state: state.file_loaded > before.file_loaded)
    assert same(again, said)
    assert again.distance(kept) == 0.0
    assert again.read_tokens == kept.read_tokens == full_blocks(again.prompt_tokens)
    assert BLOCK_TOKENS * (after.file_loaded - before.file_loaded) == again.read_tokens
    # They came to memory first.
    assert after.memory_stored - before.memory_stored >= after.file_loaded - before.file_loaded


async def test_no_tenant_reads_another_s_blocks_and_an_image_only_its_own(rig: TierRig) -> None:
    await rig.ask("tenant-1", conversation(3))
    await rig.forget_prefixes()
    other = await rig.ask("tenant-2", conversation(3), salt="another tenant")
    assert (other.read_tokens, other.write_tokens) == (0, full_blocks(other.prompt_tokens))
    await rig.forget_prefixes()
    another = [user(words(30, seed=103), picture(77), words(30, seed=203))]
    shared = await rig.ask("tenant-3", another)
    computed = await rig.alone("tenant-4", another)
    # The text before the image alone.
    assert 0 < shared.read_tokens < full_blocks(shared.prompt_tokens) // 2
    assert same(shared, computed)


async def test_what_memory_holds_is_told_by_modality_and_both_bounds_hold(rig: TierRig, folder: Path) -> None:
    await rig.ask("bounds-1", [user(picture(5), picture(6), picture(7), words(9, seed=9))])
    held = await rig.tiers()
    assert held.block_bytes == BLOCK_BYTES
    assert held.image_blocks > 0 < held.mixed_blocks
    for seed in (31, 32, 33, 34, 35):
        await rig.push_out(seed)
    full = await rig.tiers(lambda state: state.file_evicted > 0)
    assert full.text_blocks + full.image_blocks + full.mixed_blocks == MEMORY_BLOCKS
    assert (full.image_blocks, full.memory_evicted > 0) == (0, True)
    on_disk = sum(path.stat().st_size for path in files_of(folder))
    assert full.file_bytes == on_disk <= SETTINGS["folder_gib"] * 1024**3


async def test_a_damaged_file_is_computed_again_counted_and_removed(rig: TierRig, folder: Path) -> None:
    said = await rig.ask("damage-1", conversation(4))
    await rig.push_out(4)
    await rig.forget_prefixes()
    before = await rig.tiers()
    for path in files_of(folder):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    again = await rig.ask("damage-2", conversation(4))
    after = await rig.tiers(lambda state: state.file_refused > before.file_refused)
    assert (again.read_tokens, again.distance(said)) == (0, 0.0)
    assert after.file_loaded == before.file_loaded
    # Computed anew, it is kept anew.
    await rig.push_out(5)
    await rig.forget_prefixes()
    assert (await rig.ask("damage-3", conversation(4))).read_tokens == full_blocks(said.prompt_tokens)


async def test_a_reset_leaves_nothing_in_any_tier(rig: TierRig, folder: Path) -> None:
    await rig.ask("reset-1", conversation(6))
    await rig.tiers()
    await rig.engine.reset_caches()
    empty = await rig.tiers(lambda state: state.file_blocks == 0)
    assert (empty.text_blocks, empty.image_blocks, empty.mixed_blocks, files_of(folder)) == (0, 0, 0, [])
    assert (await rig.ask("reset-2", conversation(6))).read_tokens == 0


async def test_jobs_side_by_side_with_preemptions_and_aborts_answer_as_each_alone(rig: TierRig, folder: Path) -> None:
    random = Random(5)  # noqa: S311
    asked = [[*conversation(50 + number % 3), user(words(4 * number, seed=number))] for number in range(KINDS)]
    alone = [await rig.alone(f"alone-{number}", messages, tokens=TOKENS) for number, messages in enumerate(asked)]
    before, gate, wrong = preemptions(rig), asyncio.Semaphore(AT_ONCE), list[str]()

    async def job(number: int, kind: int, leaves: bool) -> None:
        async with gate:
            sent: asyncio.Task[Said] = asyncio.create_task(rig.ask(f"job-{number}", asked[kind], tokens=TOKENS))
            if leaves:
                await asyncio.wait([sent], timeout=random.random() / 2)
                sent.cancel()
                with suppress(asyncio.CancelledError):
                    await sent
            elif not same(await sent, alone[kind]):
                wrong.append(f"{number}: {kind}: {sent.result().distance(alone[kind])}")

    await asyncio.gather(*(job(number, random.randrange(KINDS), random.random() < 0.2) for number in range(JOBS)))
    assert not wrong
    assert preemptions(rig) > before
    # No request is known any more and no block is in use, in the engine or below.
    await rig.forget_prefixes()
    state = await rig.tiers()
    assert state.text_blocks + state.image_blocks + state.mixed_blocks <= MEMORY_BLOCKS
    assert state.file_bytes == sum(path.stat().st_size for path in files_of(folder))
