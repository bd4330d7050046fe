"""A number that would be infinite is refused, and no other."""

from __future__ import annotations

from math import isinf

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.json_body import parse_json
from context.errors import RequestError

_DIGITS = st.text("0123456789", min_size=1, max_size=30)


@st.composite
def numbers(draw: st.DrawFn) -> str:
    """JSON numbers, around the largest that there is and with leading zeros in their exponents."""
    whole = "0"
    if draw(st.booleans()):
        whole = draw(st.sampled_from("19")) + draw(_DIGITS) * draw(st.integers(0, 40))
    fraction = "." + draw(_DIGITS) if draw(st.booleans()) else ""
    exponent = ""
    if draw(st.booleans()):
        figure = str(draw(st.integers(0, 700))) if draw(st.booleans()) else draw(_DIGITS)
        exponent = draw(st.sampled_from("eE")) + draw(st.sampled_from(["", "+", "-"])) + figure
    return draw(st.sampled_from(["", "-"])) + whole + fraction + exponent


@given(numbers(), st.sampled_from(["%s", "[1, %s]", '{"e": "1e999 12", "a": {"b": [%s]}}']))
@example("1" + "0" * 250 + "e99", "%s")
@example("1" + "0" * 210 + "E99", "%s")
@example("1" + "0" * 300 + "e8", "%s")
@example("1e0000400", "[1, %s]")
@example("1e308", "%s")
@example("0e999", "%s")
@example("1" * 308 + ".5", "%s")
@example("1" * 310 + ".5", "%s")
def test_what_overflows_is_refused(number: str, around: str) -> None:
    raw = (around % number).encode()
    is_whole = not set(number) & set(".eE")
    if is_whole or not isinf(float(number)):
        parse_json(raw)
        return
    with pytest.raises(RequestError, match="too large"):
        parse_json(raw)
