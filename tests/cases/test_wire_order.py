"""One order of what goes on the wire."""

from __future__ import annotations

import re

import pytest
from pydantic_core import to_json

from tests.api.rig import CHAT, JSON, Rig
from tests.cases.chats import tool


@pytest.mark.case("MC-019")
async def test_a_body_has_one_order_of_keys(rig: Rig) -> None:
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 1,
        "tools": [tool("a", "x")],
        "temperature": 0,
        "model": "stillframe-fake",
    }
    orders = (list(body), list(reversed(body)), sorted(body))
    for order in orders:
        answer = await rig.call("POST", CHAT, to_json({key: body[key] for key in order}), JSON)
        assert answer.status == 200
    # The name of the request alone differs.
    assert len({re.sub(rb'"session_id":"[^"]*"', b"", wire) for wire in rig.engine.wire}) == 1
    # What stays the same from turn to turn stands before the messages.
    sent = rig.engine.wire[0]
    assert sent.index(b'"tools"') < sent.index(b'"messages"')
