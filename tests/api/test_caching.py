"""What repeats cost: image bytes, prefix reads, encoder runs; and who shares what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.fake import FakeConfig
from tests.api.rig import ADMIN, Rig, WatchedEngine, ask, image, running, text, user
from tests.unit.images.corpus import MANIFEST

KEYS = {"AUTH__KEYS__ALICE": "key-a", "AUTH__KEYS__BOB": "key-b"}


def _bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def _read(answer: Any) -> tuple[int, int]:
    usage = answer.json["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


async def test_identical_second_request(rig: Rig) -> None:
    body = ask(
        {"role": "system", "content": "be kind " * 40}, user(image(), text("what is it?"), image("flat_rgb.png"))
    )
    first = await rig.chat(body)
    assert await rig.encoder(first.headers["x-request-id"]) == (2, 0)
    sent_bytes = await rig.metric("stillframe_sent_image_bytes_total")
    assert sent_bytes > 0
    second = await rig.chat(body)
    prompt, read = _read(second)
    block = rig.engine.config.block_tokens
    assert read == (prompt - 1) // block * block
    assert (await rig.encoder(second.headers["x-request-id"]))[0] == 0
    assert await rig.metric("stillframe_sent_image_bytes_total") == sent_bytes
    parts = rig.engine.sent[1]["messages"][1]["content"]
    assert [part["image_url"] for part in parts if part["type"] == "image_url"] == [None, None]
    assert first.json["choices"][0]["message"] == second.json["choices"][0]["message"]


async def test_other_encoding_reads_like_the_same(rig: Rig) -> None:
    names = MANIFEST["same"]["base"]
    await rig.chat(ask(user(image(names[0]), text("what?"))))
    prompt, read = _read(await rig.chat(ask(user(image(names[-1]), text("what?")))))
    assert read == (prompt - 1) // rig.engine.config.block_tokens * rig.engine.config.block_tokens


async def test_a_miss_is_made_good_unseen(rig: Rig) -> None:
    body = ask(user(image(), text("what?")))
    await rig.chat(body)
    # The engine drops the image, and the gateway does not hear of it.
    rig.engine.app.core.reset_processor_cache()
    answer = await rig.chat(body)
    assert answer.status == 200
    assert len(rig.engine.wire) == 3
    assert await rig.metric("stillframe_image_misses_total") == 1
    assert await rig.outcomes() == {"completed": 2}
    streamed = await rig.chat(body | {"stream": True})
    assert streamed.events[-1] == "[DONE]"
    assert len(rig.engine.wire) == 4


async def test_a_tiny_processor_cache_never_shows(tmp_path: Path) -> None:
    engine = WatchedEngine(FakeConfig(processor_cache_bytes=1))
    async with running(tmp_path, engine) as rig:
        for _ in range(3):
            assert (await rig.chat(ask(user(image(), image("flat_rgb.png"))))).status == 200


async def test_two_keys_share_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, environment=KEYS) as rig:
        body = ask(user(image(), text("what? " * 50)))
        for key in ("key-a", "key-b", "key-a"):
            assert (await rig.chat(body, _bearer(key))).status == 200
    alice, bob, again = rig.engine.sent
    assert alice["cache_salt"] == again["cache_salt"] != bob["cache_salt"]
    parts = [body["messages"][0]["content"][0] for body in rig.engine.sent]
    assert parts[0]["uuid"] == parts[2]["uuid"] != parts[1]["uuid"]
    assert parts[1]["image_url"] is not None


async def test_a_new_tenant_reads_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, environment=KEYS) as rig:
        body = ask(user(image(), text("what? " * 50)))
        await rig.chat(body, _bearer("key-a"))
        assert _read(await rig.chat(body, _bearer("key-b")))[1] == 0
        assert _read(await rig.chat(body, _bearer("key-a")))[1] > 0


async def test_without_keys_each_token_is_a_tenant(rig: Rig) -> None:
    for headers in ({}, _bearer("one"), _bearer("two"), _bearer("one"), {"authorization": "Basic eA=="}):
        await rig.chat(ask("a"), headers)
    salts = [body["cache_salt"] for body in rig.engine.sent]
    assert salts[1] == salts[3]
    assert salts[0] == salts[4]
    assert len(set(salts)) == 3


async def test_tenants_are_the_same_after_a_restart(tmp_path: Path) -> None:
    names: list[tuple[str, str]] = []
    for _ in range(2):
        async with running(tmp_path, environment=KEYS) as rig:
            await rig.chat(ask(user(image())), _bearer("key-a"))
            (body,) = rig.engine.sent
            names.append((body["cache_salt"], body["messages"][0]["content"][0]["uuid"]))
    assert names[0] == names[1]


async def test_reset_empties_the_caches(rig: Rig) -> None:
    body = ask(user(image(), text("what? " * 50)))
    await rig.chat(body)
    assert (await rig.call("POST", "/admin/reset", headers=ADMIN)).json == {"reset": True}
    answer = await rig.chat(body)
    assert _read(answer)[1] == 0
    assert await rig.encoder(answer.headers["x-request-id"]) == (1, 0)
