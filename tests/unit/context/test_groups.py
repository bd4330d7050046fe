"""A call and its results are one unit, however odd the client."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from context.layout.groups import tool_groups, turn_boundaries, units

SYSTEM, USER, SAID = ({"role": role, "content": "x"} for role in ("system", "user", "assistant"))


def call(*ids: str | None) -> dict[str, Any]:
    calls = [{"id": one, "type": "function", "function": {"name": "f", "arguments": "{}"}} for one in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(identity: str | None) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identity, "content": "r"}


def found(*messages: dict[str, Any]) -> list[tuple[int, int, bool]]:
    return [(group.start, group.stop, group.is_open) for group in tool_groups(messages)]


@pytest.mark.parametrize(
    ("messages", "groups"),
    [
        ([SYSTEM, USER, SAID], []),
        ([USER, call("a"), result("a"), SAID], [(1, 3, False)]),
        ([USER, call("a", "b"), result("b"), result("a"), SAID], [(1, 4, False)]),
        ([call("a"), result("a"), call("b"), result("b")], [(0, 2, False), (2, 4, False)]),
        ([USER, call("a", "b"), result("a")], [(1, 3, True)]),
        ([USER, call("a")], [(1, 2, True)]),
        # Odd clients: a message between, a late result, ids of their own, none, one id for all calls.
        ([call("a"), USER, result("a"), SAID], [(0, 3, False)]),
        ([call("a"), call("b"), result("a"), result("b")], [(0, 4, False)]),
        ([call("a"), result("other"), SAID], [(0, 2, False)]),
        ([call("a"), result("a"), call("b"), result("other")], [(0, 2, False), (2, 4, False)]),
        ([call(None), result(None), USER], [(0, 2, False)]),
        ([call("0"), result("0"), call("0"), result("0")], [(0, 2, False), (2, 4, False)]),
        ([call("a", "b"), result("x"), result("a")], [(0, 3, False)]),
        # The call was cut off.
        ([result("a"), result("b"), SAID, result("c")], [(0, 2, False), (3, 4, False)]),
        (
            [{"role": "assistant", "function_call": {"name": "f"}}, {"role": "function", "name": "f", "content": ""}],
            [(0, 2, False)],
        ),
    ],
)
def test_groups(messages: list[dict[str, Any]], groups: list[tuple[int, int, bool]]) -> None:
    assert found(*messages) == groups


@pytest.mark.parametrize(
    ("messages", "boundaries"),
    [
        ([], []),
        ([SYSTEM], []),
        ([SYSTEM, USER, SAID, USER, SAID, USER], [1, 3, 5]),
        ([USER, USER, SAID, USER], [0, 3]),
        # A step of an agent is a turn; the first belongs to the question, the last answer to the last step.
        ([USER, call("a"), result("a"), call("b"), result("b"), SAID, USER], [0, 3, 6]),
        ([USER, call("a"), result("a"), USER, call("b"), result("b"), USER], [0, 3, 6]),
        ([USER, call("a"), USER, result("a"), USER], [0, 4]),
        ([{"role": "developer", "content": "x"}, USER, SAID, SYSTEM, USER, SAID], [1, 3]),
        ([SAID, USER, SAID], [0, 1]),
    ],
)
def test_turns(messages: list[dict[str, Any]], boundaries: list[int]) -> None:
    assert list(turn_boundaries(messages)) == boundaries


IDS = st.sampled_from(("a", "b", "c", None))
MESSAGES = st.lists(
    st.sampled_from((SYSTEM, USER, SAID))
    | st.lists(IDS, min_size=1, max_size=3).map(lambda ids: call(*ids))
    | IDS.map(result),
    max_size=14,
)


@given(MESSAGES)
def test_every_message_is_in_one_unit_and_every_result_with_its_call(messages: list[dict[str, Any]]) -> None:
    cut = units(messages)
    assert [index for unit in cut for index in unit] == list(range(len(messages)))
    where = {index: unit for unit in cut for index in unit}
    for index, message in enumerate(messages):
        before = [at for at in range(index) if messages[at].get("tool_calls")]
        if message["role"] != "tool" or not before:
            continue
        identity = message["tool_call_id"]
        own = [at for at in before if identity and identity in [one["id"] for one in messages[at]["tool_calls"]]]
        assert where[index] == where[(own or before)[-1]]


@given(MESSAGES)
def test_no_boundary_splits_a_unit(messages: list[dict[str, Any]]) -> None:
    boundaries = turn_boundaries(messages)
    assert set(boundaries) <= {unit.start for unit in units(messages)}
    assert list(boundaries) == sorted(set(boundaries))
    if any(message["role"] != "system" for message in messages):
        assert boundaries
