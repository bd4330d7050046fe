"""Image parts and their text."""

from __future__ import annotations

import base64
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from context.errors import ImageError
from context.images.base import ImageSource
from context.images.dataurl import decode_image_text
from context.images.parts import parse_image_part
from tests.unit.images.corpus import PLACE

URL = "https://example.com/a.png"


@pytest.mark.parametrize(
    ("part", "detail"),
    [
        ({"type": "image_url", "image_url": {"url": URL}}, None),
        ({"type": "image_url", "image_url": {"url": URL, "detail": "low"}, "uuid": "mine", "extra": 1}, "low"),
        ({"type": "image_url", "image_url": URL}, None),
        ({"type": "input_image", "image_url": URL, "detail": "high"}, "high"),
        ({"type": "input_image", "image_url": {"url": f" {URL} "}}, None),
    ],
)
def test_both_wire_shapes(part: dict[str, Any], detail: str | None) -> None:
    assert parse_image_part(part, PLACE) == ImageSource("url", URL, PLACE, detail)


@pytest.mark.parametrize(
    ("part", "param", "code"),
    [
        ({"type": "image_url"}, ".image_url", "invalid_image_part"),
        ({"type": "image_url", "image_url": None, "uuid": "mine"}, ".image_url", "invalid_image_part"),
        ({"type": "image_url", "image_url": {}}, ".image_url.url", "invalid_image_part"),
        ({"type": "image_url", "image_url": {"url": 5}}, ".image_url.url", "invalid_image_part"),
        ({"type": "image_url", "image_url": [URL]}, ".image_url", "invalid_image_part"),
        ({"type": "image_url", "image_url": {"url": URL, "detail": 3}}, ".detail", "invalid_image_part"),
        ({"type": "input_image", "file_id": "file-1"}, ".image_url", "invalid_image_part"),
        ({"type": "text", "text": "x"}, ".type", "invalid_image_part"),
        ({"type": "image_url", "image_url": "  "}, ".image_url", "empty_image"),
        ({"type": "image_url", "image_url": "file:///etc/passwd"}, ".image_url", "unsupported_image_source"),
        ({"type": "image_url", "image_url": "/etc/passwd"}, ".image_url", "unsupported_image_source"),
        ({"type": "image_url", "image_url": "blob:abc"}, ".image_url", "unsupported_image_source"),
        ({"type": "image_url", "image_url": base64.b64encode(b"x" * 99).decode()}, ".image_url", "invalid_image_data"),
    ],
)
def test_wrong_shapes_name_place_and_remedy(part: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(ImageError) as caught:
        parse_image_part(part, PLACE)
    assert (caught.value.param, caught.value.code) == (PLACE + param, code)
    assert caught.value.message.startswith(PLACE + param)
    assert "passwd" not in caught.value.message


@given(st.binary(min_size=1, max_size=300), st.sampled_from(["std", "url", "lines", "percent", "bare", "raw"]))
def test_spellings_of_the_same_bytes(data: bytes, spelling: str) -> None:
    text = base64.b64encode(data).decode()
    match spelling:
        case "url":
            text = "data:image/png;base64," + base64.urlsafe_b64encode(data).decode().rstrip("=")
        case "lines":
            text = " data:image/png;name=x.png;base64,\n" + "\r\n".join(
                text[at : at + 7] for at in range(0, len(text), 7)
            )
        case "percent":
            text = "Data:;Base64," + "".join(f"%{ord(letter):02x}" for letter in text)
        case "raw":
            text = "data:image/png," + "".join(f"%{byte:02X}" for byte in data)
        case "std":
            text = "data:image/png;base64," + text
        case _:
            pass
    assert decode_image_text(text, 1000) == data


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("data:image/png;base64,AA=A", "invalid_image_data"),
        ("data:image/png;base64,AAAAA", "invalid_image_data"),
        ("data:image/png;base64,%zz", "invalid_image_data"),
        ("data:image/png;base64,====", "empty_image"),
        ("data:image/png," + "é", "invalid_image_data"),
        ("data:TEXT/plain,hello", "unsupported_image_format"),
        ("data:image/png;base64," + "A" * 4000, "image_too_large"),
        ("data:image/png;base64," + "\n" * 9000, "image_too_large"),
    ],
)
def test_text_that_names_no_bytes(text: str, code: str) -> None:
    with pytest.raises(ImageError) as caught:
        decode_image_text(text, 1000)
    assert caught.value.code == code


def test_long_text_is_decoded_in_pieces_and_whole() -> None:
    data = os.urandom(7_000_000)
    text = base64.b64encode(data).decode()
    assert decode_image_text(text, 8_000_000) == data
    broken = text[: 4 * 1024 * 1024 - 4] + "AA==" + text[4 * 1024 * 1024 :]
    with pytest.raises(ImageError):
        decode_image_text(broken, 8_000_000)
