"""A number that would be infinite is refused, and no other."""

from __future__ import annotations

from math import isinf

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.json_body import parse_json
from context.errors import RequestError

_DIGITS = st.text("0123456789", min_size=1, max_size=30)
_WHOLE = st.one_of(
    st.just("0"),
    st.builds(lambda first, rest, times: first + rest * times, st.sampled_from("19"), _DIGITS, st.integers(0, 40)),
)
_FRACTION = st.one_of(st.just(""), _DIGITS.map(".{}".format))
_EXPONENT = st.one_of(
    st.just(""),
    st.builds("{}{}{}".format, st.sampled_from("eE"), st.sampled_from(["", "+", "-"]), st.integers(0, 700)),
    st.builds("{}{}{}".format, st.sampled_from("eE"), st.sampled_from(["", "+", "-"]), _DIGITS),
)
_NUMBERS = st.builds("{}{}{}{}".format, st.sampled_from(["", "-"]), _WHOLE, _FRACTION, _EXPONENT)


@given(_NUMBERS, st.sampled_from(["%s", "[1, %s]", '{"e": "1e999 12", "a": {"b": [%s]}}']))
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
