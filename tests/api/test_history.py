"""Images by URL: what was said stays what it was; what is new is looked at anew."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from tests.api.rig import Rig, ask, running, text, url_image, user
from tests.unit.images.corpus import read
from tests.unit.images.server import Site, running_site

PRIVATE = {"FETCH__ALLOW_PRIVATE": "[127.0.0.0/8]"}
SO = {"role": "assistant", "content": "so"}


@pytest.fixture
async def site() -> AsyncGenerator[Site]:
    async with running_site() as site:
        site.changing = read("base.png")
        yield site


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncGenerator[Rig]:
    async with running(tmp_path, environment=PRIVATE) as rig:
        yield rig


def _first(site: Site) -> dict[str, Any]:
    return user(text("see"), url_image(site.url("/changing")))


def _uuids(rig: Rig) -> list[str]:
    """The uuids of the latest request, in their order."""
    messages = rig.engine.sent[-1]["messages"]
    parts = [part for message in messages if isinstance(message["content"], list) for part in message["content"]]
    return [part["uuid"] for part in parts if part["type"] == "image_url"]


@pytest.mark.case("MC-034")
async def test_history_is_never_fetched_again(rig: Rig, site: Site) -> None:
    await rig.chat(ask(_first(site)))
    before = _uuids(rig)
    site.changing = b"gone"
    for turn in range(3):
        assert (await rig.chat(ask(_first(site), SO, user(f"more {turn}")))).status == 200
        assert _uuids(rig) == before
    assert len(site.requests) == 1


@pytest.mark.case("MC-034")
async def test_history_survives_a_restart(tmp_path: Path, site: Site) -> None:
    async with running(tmp_path, environment=PRIVATE) as rig:
        await rig.chat(ask(_first(site)))
        before = _uuids(rig)
    site.changing = read("flat_rgb.png")
    async with running(tmp_path, environment=PRIVATE) as rig:
        assert (await rig.chat(ask(_first(site), SO, "more"))).status == 200
        assert _uuids(rig) == before
    assert len(site.requests) == 1


@pytest.mark.case("MC-032")
async def test_a_new_message_looks_again(rig: Rig, site: Site) -> None:
    await rig.chat(ask(_first(site)))
    old = _uuids(rig)[0]
    site.changing = read("flat_rgb.png")
    assert (await rig.chat(ask(_first(site), SO, user(text("now?"), url_image(site.url("/changing")))))).status == 200
    kept, new = _uuids(rig)
    assert kept == old != new
    assert len(site.requests) == 2
    # A turn later both are history, each as it was.
    site.changing = read("gray_l.png")
    turns = (_first(site), SO, user(text("now?"), url_image(site.url("/changing"))), SO, "more")
    assert (await rig.chat(ask(*turns))).status == 200
    assert _uuids(rig) == [old, new]
    assert len(site.requests) == 2


async def test_same_request_again_looks_again(rig: Rig, site: Site) -> None:
    """Without an answer between, it is the new message that is sent once more."""
    for _ in range(2):
        assert (await rig.chat(ask(_first(site)))).status == 200
    assert len(site.requests) == 2


@pytest.mark.case("MC-034")
async def test_forbidden_later_still_works_in_history(rig: Rig, site: Site) -> None:
    url = site.url("/changing")
    await rig.chat(ask(_first(site)))
    before = _uuids(rig)
    site.changing = b""
    assert (await rig.chat(ask(_first(site), SO, "more"))).status == 200
    assert _uuids(rig) == before
    answer = await rig.chat(ask(_first(site), SO, user(text("a"), text("b"), url_image(site.url("/forbidden")))))
    assert (answer.status, answer.error["code"]) == (400, "image_fetch_failed")
    assert answer.error["param"] == "messages[2].content[2]"
    assert url not in answer.error["message"]


async def test_a_retry_of_a_new_message_falls_back_to_what_it_saw(rig: Rig, site: Site) -> None:
    await rig.chat(ask(_first(site)))
    before = _uuids(rig)
    site.changing = b"not an image any more"
    assert (await rig.chat(ask(_first(site)))).status == 200
    assert _uuids(rig) == before


async def test_another_tenant_has_another_history(rig: Rig, site: Site) -> None:
    await rig.chat(ask(_first(site)), {"authorization": "Bearer one"})
    site.changing = b"gone"
    answer = await rig.chat(ask(_first(site), SO, "more"), {"authorization": "Bearer two"})
    assert answer.status == 200
    assert rig.engine.sent[-1]["messages"][0]["content"] == [text("see"), text("[image not available]")]
    assert len(site.requests) == 2


async def test_a_trimmed_conversation_keeps_its_pictures(rig: Rig, site: Site) -> None:
    await rig.chat(ask("long ago", SO, _first(site)))
    before = _uuids(rig)
    site.changing = b"gone"
    assert (await rig.chat(ask(_first(site), SO, "more"))).status == 200
    assert _uuids(rig) == before


async def test_many_urls_of_one_message_are_fetched_side_by_side(rig: Rig, site: Site) -> None:
    parts = [url_image(site.url("/changing") + f"?{number}") for number in range(12)]
    assert (await rig.chat(ask(user(*parts)))).status == 200
    assert len(site.requests) == 12
    assert len(set(_uuids(rig))) == 1
