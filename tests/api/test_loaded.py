"""Tokens that were loaded from the pool of images' KV: a part of the prompt of their own wherever a turn is counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from engine.base import BlockTierState, ImagePoolState
from engine.fake import FakeConfig
from metrics.records import queries
from metrics.records.queries import open_records
from tests.api.pool_rig import PoolEngine, recorded, turns
from tests.api.rig import ADMIN, Answer, Rig, ask, image, running, text, user
from tests.api.test_dashboard import bearer, view

REUSE = {"x-stillframe-reuse": "0.05"}
HEADER = {"REUSE_HEADER": "true"}
KEYS = {"AUTH__KEYS": "{acme: key-of-acme}"}
PRICES = {"PRICES": '[{model: "*", input: 2, cached_input: 0.5, output: 10}]'}
GIB = 1024**3


def pooled(loads: int = 20) -> PoolEngine:
    """Blocks are large, so that many tokens are in none, and count as neither read nor written."""
    return PoolEngine(FakeConfig(block_tokens=64), loads=loads)


async def said(rig: Rig, words: str, headers: dict[str, str] | None = None) -> Answer:
    before = await turns(rig)
    answer = await rig.chat(ask(user(text(words), image())), headers)
    assert answer.status == 200, answer.body
    await recorded(rig, before + 1)
    return answer


async def seen(rig: Rig, name: str, is_there: Callable[[Any], bool], headers: Mapping[str, str] | None = None) -> Any:
    """A view, once it shows something."""
    async with asyncio.timeout(5):
        while not is_there(found := await view(rig, name, headers)):  # noqa: ASYNC110 - nothing tells when it does
            await asyncio.sleep(0)
    return found


async def counted(rig: Rig) -> dict[str, float]:
    names = ("read", "loaded", "write", "uncached")
    return {name: await rig.metric("stillframe_prompt_tokens_total", disposition=name) for name in names}


async def test_a_prompt_is_what_was_read_loaded_written_and_neither(tmp_path: Path) -> None:
    async with running(tmp_path, pooled(), HEADER | PRICES) as rig:
        first = await said(rig, "one")
        assert (await counted(rig))["loaded"] == 0
        assert 'disposition="loaded"} ' not in (await rig.get("/metrics")).body.decode().partition("pool_tokens")[0]
        second = await said(rig, "another one of them", REUSE)
        prompts = [answer.json["usage"]["prompt_tokens"] for answer in (first, second)]
        sums = await counted(rig)
        assert sums["loaded"] == 20
        assert sum(sums.values()) == sum(prompts)
        told = await rig.get(f"/admin/requests/{second.headers['x-request-id']}", ADMIN)
        assert told.json["image_reuse"] == {
            "images": 1,
            "hits": 1,
            "misses": 0,
            "loaded_tokens": 20,
            "computed_tokens": 0,
            "reread_tokens": 0,
        }
        told = await rig.get(f"/admin/requests/{first.headers['x-request-id']}", ADMIN)
        assert "image_reuse" not in told.json
    with open_records(tmp_path / "ledger.db") as records:
        loaded, exact = queries.latest(records)
        totals = queries.totals(records)
    assert exact.loaded_tokens is None
    assert loaded.loaded_tokens == 20
    parts = (loaded.read_tokens, loaded.loaded_tokens, loaded.write_tokens, loaded.uncached_tokens)
    assert sum(one or 0 for one in parts) == loaded.prompt_tokens == prompts[1]
    assert loaded.computed_tokens == prompts[1] - 20 - (loaded.read_tokens or 0)
    assert (totals.loaded_tokens, totals.computed_tokens) == (20, totals.write_tokens + totals.uncached_tokens)
    # As cheap as what is read.
    cheap = (loaded.read_tokens or 0) + 20
    output = second.json["usage"]["completion_tokens"]
    assert loaded.cost == pytest.approx((cheap * 0.5 + (prompts[1] - cheap) * 2 + output * 10) / 1e6)


async def test_an_engine_that_says_nothing_of_it_delays_and_changes_nothing(tmp_path: Path) -> None:
    engine = pooled()
    engine.is_silent = True
    async with running(tmp_path, engine, HEADER) as rig:
        await said(rig, "one")
        answer = await said(rig, "another one of them", REUSE)
        sums = await counted(rig)
        assert sums["loaded"] == 0
        assert sums["write"] + sums["uncached"] + sums["read"] > answer.json["usage"]["prompt_tokens"]
    with open_records(tmp_path / "ledger.db") as records:
        record = queries.latest(records)[0]
    assert record.loaded_tokens is None
    parts = (record.read_tokens, record.write_tokens, record.uncached_tokens)
    assert sum(one or 0 for one in parts) == record.prompt_tokens


async def test_the_dashboard_shows_what_was_loaded(tmp_path: Path) -> None:
    async with running(tmp_path, pooled(), HEADER) as rig:
        await said(rig, "one")
        await said(rig, "another one of them", REUSE | {"x-stillframe-conversation": "c"})

        found = await seen(rig, "overview", lambda found: found["totals"]["requests"] == 2)
        assert (found["totals"]["loaded_tokens"], found["over_time"][-1]["loaded_tokens"]) == (20, 20)
        listed = {one["conversation"]: one for one in (await view(rig, "conversations"))["conversations"]}
        assert listed["c"]["loaded_tokens"] == 20
        [turn] = (await view(rig, "conversation", tenant="default", id="c"))["turns"]
        assert (turn["loaded_tokens"], turn["reuse"], turn["reuse_by"]) == (20, "0.05", "client")


async def test_pool_and_tiers_stand_on_the_page_of_images_against_their_bounds(tmp_path: Path) -> None:
    kv = "{image_kv: {memory_gib: 2, folder: " + str(tmp_path / "kv") + ", folder_gib: 3}}"
    engine = pooled()
    async with running(tmp_path, engine, {"ENGINE__VLLM": kv}) as rig:
        await said(rig, "one")
        found = await view(rig, "images")
        assert (found["pool"], found["tiers"]) == (None, None)
        now = ImagePoolState(memory_entries=5, memory_bytes=GIB, memory_hits=7, misses=9, file_entries=6, writing=1)
        engine.say(now)
        found = await seen(rig, "images", lambda found: found["pool"] is not None)
        assert found["tiers"] is None
        assert found["pool"]["misses"] == 9
        memory, files = found["pool"]["memory"], found["pool"]["files"]
        assert (memory["entries"], memory["bytes"], memory["bound_bytes"], memory["hits"]) == (5, GIB, 2 * GIB, 7)
        assert (files["entries"], files["bound_bytes"]) == (6, 3 * GIB)
        engine.say(BlockTierState(block_bytes=1024, text_blocks=3, image_blocks=4, mixed_blocks=1, memory_loaded=2))
        tiers = (await seen(rig, "images", lambda found: found["tiers"] is not None))["tiers"]
        assert (tiers["memory"]["entries"], tiers["memory"]["bytes"], tiers["memory"]["loaded"]) == (8, 8192, 2)
        # Nothing is set, so that nothing is said of a bound or of files.
        assert (tiers["memory"]["bound_bytes"], tiers["files"]) == (None, None)


async def test_what_the_engine_keeps_of_all_tenants_is_none_of_a_tenant_s_business(tmp_path: Path) -> None:
    engine = pooled()
    async with running(tmp_path, engine, KEYS) as rig:
        await said(rig, "one", bearer("key-of-acme"))
        engine.say(ImagePoolState(memory_entries=5))
        shown = await seen(rig, "images", lambda found: found["pool"] is not None, ADMIN)
        assert shown["pool"]["memory"]["entries"] == 5
        found = await view(rig, "images", bearer("key-of-acme"))
        assert (found["pool"], found["tiers"]) == (None, None)
