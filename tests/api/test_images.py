"""The image corpus through HTTP: identities, refusals, both wire shapes, fetching."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pybase64
import pytest

from tests.api.rig import (
    CHAT,
    JSON,
    Answer,
    Rig,
    WatchedEngine,
    ask,
    blobs,
    data_url,
    image,
    running,
    text,
    url_image,
    user,
)
from tests.unit.images.corpus import MANIFEST, read
from tests.unit.images.server import running_site

# The gateway takes it, and the engine's model, which is Qwen-VL's, does not: one side is 500 times the other.
TOO_WIDE = "pol_wide_2000x4.png"
SAME: dict[str, list[str]] = {group: names for group, names in MANIFEST["same"].items() if names != [TOO_WIDE]}
ALTERNATIVES = {
    "pol_tiny_1x1.png": {"IMAGES__MIN_SIDE": "4"},
    "pol_wide_2000x4.png": {"IMAGES__MAX_ASPECT_RATIO": "200"},
    "pol_base.bmp": {"IMAGES__FORMATS": "[PNG, BMP]"},
    "pol_base.tiff": {"IMAGES__FORMATS": "[PNG, TIFF]"},
}


@pytest.fixture
async def fetching(tmp_path: Path) -> AsyncGenerator[tuple[Rig, str]]:
    async with running_site() as site, running(tmp_path, environment={"FETCH__ALLOW_PRIVATE": "[127.0.0.0/8]"}) as rig:
        yield rig, site.url("/")


async def _uuid(rig: Rig, part: dict[str, Any]) -> str:
    before = len(rig.engine.wire)
    answer = await rig.chat(ask(user(text("what is it?"), part), max_tokens=1))
    assert answer.status == 200
    assert len(rig.engine.wire) > before
    shown = rig.engine.sent[-1]["messages"][0]["content"][1]
    assert shown["type"] == "image_url"
    return shown["uuid"]


def _refused(answer: Answer, code: str, place: str) -> None:
    assert answer.status == 400
    assert answer.error["code"] == code
    assert answer.error["type"] == "invalid_request_error"
    # The place of the part; where one of its values is at fault, that value.
    assert answer.error["param"].removeprefix(place) in ("", ".image_url", ".image_url.url")
    assert answer.error["message"].startswith(place)


async def test_groups_share_a_uuid_and_differ_from_each_other(rig: Rig) -> None:
    seen: dict[str, str] = {}
    for group, names in SAME.items():
        uuids = {await _uuid(rig, image(name)) for name in names}
        assert len(uuids) == 1, group
        seen[group] = uuids.pop()
    assert len(set(seen.values())) == len(SAME)


async def test_the_engine_gets_an_image_of_a_group_once(rig: Rig) -> None:
    for name in SAME["base"]:
        await _uuid(rig, image(name))
    with_bytes = [body for body in rig.engine.sent if body["messages"][0]["content"][1]["image_url"] is not None]
    assert len(SAME["base"]) > 5
    assert len(with_bytes) == 1


@pytest.mark.parametrize("case", MANIFEST["reject"], ids=lambda case: case["file"])
async def test_refusals(rig: Rig, case: dict[str, str]) -> None:
    body = ask("first", {"role": "assistant", "content": "so"}, user(text("see"), text("here"), image(case["file"])))
    _refused(await rig.chat(body), case["error"], "messages[2].content[2]")
    assert rig.engine.wire == []
    assert await rig.outcomes() == {"refused": 1}


async def test_a_refusal_among_good_images_sends_nothing(rig: Rig) -> None:
    body = ask(user(image("base.png"), image("bad_trunc_half.png"), image("flat_rgb.png")))
    _refused(await rig.chat(body), "truncated_image", "messages[0].content[1]")
    assert rig.engine.wire == []


@pytest.mark.parametrize("case", MANIFEST["policy_files"], ids=lambda case: case["file"])
async def test_policy_files(rig: Rig, case: dict[str, str]) -> None:
    if case["file"] == TOO_WIDE:
        answer = await rig.chat(ask(user(image(case["file"]))))
        _refused(answer, "image_dimensions", "messages[0].content[0]")
        assert rig.engine.wire == []
    elif case["default"] == "accept":
        assert await _uuid(rig, image(case["file"]))
    else:
        answer = await rig.chat(ask(user(image(case["file"]))))
        _refused(answer, case["default"], "messages[0].content[0]")


@pytest.mark.parametrize(
    "case", [case for case in MANIFEST["policy_files"] if case["file"] in ALTERNATIVES], ids=lambda case: case["file"]
)
async def test_policy_files_with_the_other_setting(tmp_path: Path, case: dict[str, str]) -> None:
    async with running(tmp_path, environment=ALTERNATIVES[case["file"]]) as rig:
        kind, _, group = case["alt"].partition(":")
        if kind == "same":
            assert await _uuid(rig, image(case["file"])) == await _uuid(rig, image(SAME[group][0]))
        else:
            _refused(await rig.chat(ask(user(image(case["file"])))), case["alt"], "messages[0].content[0]")


@pytest.mark.parametrize("case", MANIFEST["dataurl"], ids=lambda case: case["name"])
@pytest.mark.parametrize("shape", ["object", "plain", "input_image"])
async def test_data_urls_in_every_shape(rig: Rig, case: dict[str, str], shape: str) -> None:
    kind, _, word = case["expect"].partition(":")
    part = _shaped(case["url"], shape)
    if kind == "same":
        assert await _uuid(rig, part) == await _uuid(rig, image(SAME[word][0]))
    else:
        _refused(await rig.chat(ask(user(text("a"), part))), word, "messages[0].content[1]")
        assert rig.engine.wire == []


def _shaped(url: str, shape: str) -> dict[str, Any]:
    if shape == "object":
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "image_url" if shape == "plain" else "input_image", "image_url": url}


async def test_bare_base64(rig: Rig) -> None:
    bare = pybase64.b64encode_as_string(read("base.png"))
    assert await _uuid(rig, url_image(bare)) == await _uuid(rig, image())


async def test_near_duplicates_stay_apart(rig: Rig) -> None:
    for case in MANIFEST["near"]:
        assert await _uuid(rig, image(case["a"])) != await _uuid(rig, image(case["b"]))


async def test_files_of_a_group_by_url_and_as_data_share_a_uuid(tmp_path: Path) -> None:
    async with running_site() as site, running(tmp_path, environment={"FETCH__ALLOW_PRIVATE": "[127.0.0.0/8]"}) as rig:
        for name in (*SAME["base"], *SAME["jpeg"]):
            site.changing = read(name)
            by_url = await _uuid(rig, url_image(site.url("/changing")))
            assert by_url == await _uuid(rig, image(name))
        for case in MANIFEST["reject"]:
            site.changing = read(case["file"])
            sent = len(rig.engine.wire)
            # A new place each time: an image that was seen at this very place would stand in.
            answer = await rig.chat(ask(user(text(case["file"]), url_image(site.url("/changing")))))
            # What is no image at all is not told apart: the answer may be a page of an inner network.
            hidden = answer.error["code"] == "image_fetch_failed" and case["error"] == "unsupported_image_format"
            _refused(answer, "image_fetch_failed" if hidden else case["error"], "messages[0].content[1]")
            assert len(rig.engine.wire) == sent


@pytest.mark.parametrize("role", ["system", "developer", "tool", "assistant", "user"])
async def test_images_in_every_role(rig: Rig, role: str) -> None:
    message: dict[str, Any] = {"role": role, "content": [text("a"), image(uuid="mine", detail="high")]}
    if role == "tool":
        message["tool_call_id"] = "x"
    answer = await rig.chat(ask(user("first"), message, user("then")))
    assert answer.status == 200
    (sent,) = rig.engine.sent
    shown = sent["messages"][1]["content"][1]
    assert shown["uuid"] != "mine"
    assert len(shown["uuid"]) == 64
    assert shown["image_url"]["url"].startswith("data:image/png;base64,")
    assert shown["image_url"]["detail"] == "high"


async def test_wrong_parts(rig: Rig) -> None:
    cases: list[tuple[Any, str, str]] = [
        ({"type": "image_url", "uuid": "x", "image_url": None}, "invalid_image_part", ".image_url"),
        ({"type": "image_url"}, "invalid_image_part", ".image_url"),
        ({"type": "image_url", "image_url": {"url": 7}}, "invalid_image_part", ".image_url.url"),
        ({"type": "image_url", "image_url": []}, "invalid_image_part", ".image_url"),
        ({"type": "image_url", "image_url": {"url": "x", "detail": 3}}, "invalid_image_part", ".detail"),
        ({"type": "video_url", "video_url": {"url": "http://a/b"}}, "unsupported_part_type", ".type"),
        ({"type": "text", "text": None}, "invalid_content_part", ".text"),
        ({"type": None}, "invalid_content_part", ""),
        ("words", "invalid_content_part", ""),
    ]
    for part, code, below in cases:
        answer = await rig.chat(ask(user(text("a"), part)))
        assert answer.status == 400, part
        assert (answer.error["code"], answer.error["param"]) == (code, f"messages[0].content[1]{below}")
    assert rig.engine.wire == []


async def test_too_many_images(tmp_path: Path) -> None:
    async with running(tmp_path, environment={"IMAGES__MAX_IMAGES_PER_REQUEST": "2"}) as rig:
        assert (await rig.chat(ask(user(image(), image())))).status == 200
        answer = await rig.chat(ask(user(image(), image()), user(image())))
    assert (answer.status, answer.error["code"]) == (400, "too_many_images")
    assert answer.error["param"] == "messages[1].content[0]"


async def test_private_addresses_are_not_fetched(rig: Rig) -> None:
    for url in ("http://127.0.0.1:9/x.png", "http://169.254.169.254/latest", "http://[::1]/x", "http://localhost/x"):
        answer = await rig.chat(ask(user(url_image(url))))
        assert answer.status == 400
        assert answer.error["param"] == "messages[0].content[0]"
        assert "127.0.0.1" not in answer.error["message"]
    assert rig.engine.wire == []


@pytest.mark.parametrize("path", ["forbidden", "html", "empty"])
async def test_what_cannot_be_fetched_names_its_place(fetching: tuple[Rig, str], path: str) -> None:
    rig, site = fetching
    answer = await rig.chat(ask("a", user(image(), url_image(site + path))))
    assert answer.status == 400
    assert answer.error["param"] == "messages[1].content[1]"
    codes = {"forbidden": "image_fetch_failed", "html": "image_fetch_failed", "empty": "empty_image"}
    assert answer.error["code"] == codes[path]
    assert rig.engine.wire == []


async def test_bytes_that_are_lost_are_taken_from_the_request(tmp_path: Path) -> None:
    """The store was emptied behind our back, and memory holds the identity alone."""
    environment = {"IMAGES__PAYLOAD_CACHE_BYTES": "0"}
    async with running(tmp_path, environment=environment) as rig:
        assert (await rig.chat(ask(user(text("a"), image())))).status == 200
        for blob in blobs(tmp_path):
            blob.unlink()
        await rig.call("POST", "/admin/reset", headers={"authorization": "Bearer admin-token-of-the-tests"})
        assert (await rig.chat(ask(user(text("a"), image())))).status == 200
        assert blobs(tmp_path)


async def test_too_much_image_data_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path, environment={"IMAGES__MAX_SENT_BYTES": "60000"}) as rig:
        assert (await rig.chat(ask(user(image())))).status == 200
        answer = await rig.chat(ask(user(image("base_level0.png"), image("invoice_100.png"), image("gray_l.png"))))
        assert answer.status == 200
        refused = await rig.chat(ask(user(image("alpha.png"), image("alpha_on_white.png"), image("cmyk_as_rgb.png"))))
        assert (refused.status, refused.error["code"]) == (413, "too_many_image_bytes")


async def test_image_bytes_do_not_pass_through_escapes(rig: Rig) -> None:
    url = data_url(read("base.png"))
    raw = ask(user(image()))
    escaped = str(raw).encode()  # a body that is not JSON at all
    assert (await rig.call("POST", CHAT, escaped, JSON)).error["code"] == "invalid_json"
    await rig.chat(raw)
    assert rig.engine.sent[0]["messages"][0]["content"][0]["image_url"]["url"] == url


async def test_an_engine_without_uuids_gets_bytes_always(tmp_path: Path) -> None:
    from engine.fake import FakeConfig

    engine = WatchedEngine(FakeConfig(accepts_uuid=False, refuses_cache_salt=True))
    async with running(tmp_path, engine) as rig:
        for _ in range(2):
            assert (await rig.chat(ask(user(image())))).status == 200
    assert len(engine.sent) == 2
    for body in engine.sent:
        (part,) = body["messages"][0]["content"]
        assert part.keys() == {"type", "image_url"}
        assert part["image_url"]["url"].startswith("data:")
        assert "cache_salt" not in body
