"""Same pixels, same image; other pixels, another one; whoever calls it what."""

from __future__ import annotations

import pytest
from PIL import Image, PngImagePlugin

from context.images.base import ImageRef
from context.tenancy import Tenancy
from tests.api.rig import Rig, url_image
from tests.cases.chats import Chat, encoded, part, picture, user_of
from tests.unit.images.corpus import canonical
from tests.unit.images.server import Site


@pytest.mark.case("MC-026")
async def test_equal_pixels_in_other_files_are_one_image_with_one_file(rig: Rig) -> None:
    info = PngImagePlugin.PngInfo()
    info.add_text("comment", "made again")
    files = [encoded(picture(), compress_level=level) for level in (1, 9)] + [encoded(picture(), pnginfo=info)]
    assert len(set(files)) == 3
    for data in files:
        assert (await Chat(rig).ask(user_of(part(data)))).status == 200
    parts = [body["messages"][0]["content"][0] for body in rig.engine.sent]
    assert len({one["uuid"] for one in parts}) == 1
    # The file that came first is the one that is sent, once.
    assert [one["image_url"] is not None for one in parts] == [True, False, False]
    await rig.call("POST", "/admin/reset", headers={"authorization": "Bearer admin-token-of-the-tests"})
    await Chat(rig).ask(user_of(part(files[2])))
    assert rig.engine.sent[-1]["messages"][0]["content"][0] == parts[0]


@pytest.mark.case("MC-028")
def test_the_sides_are_part_of_the_identity() -> None:
    wide, high = (Image.frombytes("RGB", size, bytes(range(250)) * 54) for size in ((150, 30), (30, 150)))
    assert wide.tobytes() == high.tobytes()
    assert canonical(encoded(wide)).image_id != canonical(encoded(high)).image_id


@pytest.mark.case("MC-029")
async def test_ids_are_never_cut(rig: Rig) -> None:
    """A hash of 16 bits has a collision among a few hundred pictures; these agree in that many."""
    tenant = Tenancy(b"s" * 32).of_token("")
    one, two = ("ab" * 30 + "cdef", "ba" * 30 + "cdef")
    assert one[-4:] == two[-4:]
    uuids = {tenant.image_uuid(image_id) for image_id in (one, two)}
    assert len(uuids) == 2
    assert {len(uuid) for uuid in uuids} == {64}
    refs = {ImageRef(image_id, 1, 1, "image/png", 1) for image_id in (one, two)}
    assert len(refs) == 2
    await Chat(rig).ask(user_of(part(encoded(picture()))))
    assert len(rig.engine.sent[-1]["messages"][0]["content"][0]["uuid"]) == 64
    assert len(canonical(encoded(picture())).image_id) == 64


@pytest.mark.case("MC-032")
async def test_a_link_that_shows_something_else_is_a_new_image_and_the_old_one_stays(rig: Rig, site: Site) -> None:
    frame = url_image(site.url("/changing"))
    site.changing = encoded(Image.new("RGB", (32, 32), "red"))
    chat = Chat(rig)
    await chat.ask(user_of(frame))
    (red,) = chat.sent[0]["content"]
    site.changing = encoded(Image.new("RGB", (32, 32), "blue"))
    answer = await chat.ask(user_of(frame))
    assert chat.sent[0]["content"] == [red]
    assert chat.sent[2]["content"] != [red]
    assert "x-stillframe-break" not in answer.headers


@pytest.mark.case("MC-033")
async def test_two_links_and_data_of_equal_bytes_are_one_image(rig: Rig, site: Site) -> None:
    site.changing = encoded(picture())
    links = [url_image(site.url("/changing") + query) for query in ("?cdn=a", "?cdn=b")]
    assert (await Chat(rig).ask(user_of(*links, part(encoded(picture()))))).status == 200
    (message,) = rig.engine.sent[-1]["messages"]
    assert len(message["content"]) == 3
    assert len({one["uuid"] for one in message["content"]}) == 1
    assert len(site.requests) == 2
