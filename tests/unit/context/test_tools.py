"""Equal tools give equal bytes, whatever order and spelling they came in."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json

from context.errors import RequestError
from context.layout.tools import canonical_tools, compare_tools


def tool(name: str, parameters: Any = None, **more: Any) -> dict[str, Any]:
    function = {"name": name, "description": f"Does {name}.", "parameters": parameters or {"type": "object"}}
    return {"type": "function", "function": {**function, **more}}


def names(tools: Any) -> list[str]:
    return [one["function"]["name"] for one in canonical_tools(tools)]


NAMES = st.text("abcdef_", min_size=1, max_size=5)
DATA = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("xyz", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)
LEAF: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"type": st.sampled_from(("string", "integer"))},
    optional={"description": st.text("xyz", max_size=4), "default": DATA, "enum": st.lists(DATA, max_size=3)},
)


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    properties = st.dictionaries(NAMES | st.just("required"), inner, max_size=3)
    return st.fixed_dictionaries(
        {"type": st.just("object"), "properties": properties},
        optional={
            "required": st.lists(NAMES, max_size=3, unique=True),
            "anyOf": st.lists(inner, max_size=2),
            "items": inner | st.lists(inner, max_size=2),
            "$defs": st.dictionaries(NAMES, inner, max_size=2),
            "x-note": DATA,
        },
    )


SCHEMA: st.SearchStrategy[dict[str, Any]] = st.recursive(LEAF, nested, max_leaves=8)
OTHERS: list[Any] = [tool("a"), {"type": "web_search", "filters": {"b": 1, "a": None}}, {"type": "code"}]
TOOLS: st.SearchStrategy[list[Any]] = st.lists(
    st.builds(tool, NAMES, SCHEMA), max_size=4, unique_by=lambda one: one["function"]["name"]
) | st.just(OTHERS)


def shuffled(value: Any, rng: random.Random) -> Any:
    if isinstance(value, dict):
        keys: list[str] = list(value)  # pyright: ignore[reportUnknownArgumentType]
        rng.shuffle(keys)
        return {key: shuffled(value[key], rng) for key in keys}
    return [shuffled(one, rng) for one in value] if isinstance(value, list) else value  # pyright: ignore[reportUnknownVariableType]


@given(TOOLS, st.randoms(use_true_random=False))
@pytest.mark.case("MC-014", "MC-016")
def test_no_order_of_tools_or_keys_shows(tools: list[Any], rng: random.Random) -> None:
    other = shuffled(tools, rng)
    rng.shuffle(other)
    assert to_json(canonical_tools(other)) == to_json(canonical_tools(tools))
    change = compare_tools(tools, other)
    assert change is None or change.is_lossless


@given(TOOLS)
def test_a_second_run_changes_nothing_and_the_input_is_left_alone(tools: list[Any]) -> None:
    before = copy.deepcopy(tools)
    made = canonical_tools(tools)
    assert to_json(canonical_tools(made)) == to_json(made)
    assert to_json(tools) == to_json(before)


@pytest.mark.case("MC-011", "MC-014")
def test_tools_that_restarted_in_another_order_are_sorted() -> None:
    """MC-011 and MC-014."""
    assert names([tool("b"), tool("a"), tool("c")]) == ["a", "b", "c"]


def test_a_schema_reads_in_a_sensible_order() -> None:
    """MC-016."""
    city = {"description": "Where", "type": "string"}
    one = {"type": "object", "properties": {"unit": {"type": "string"}, "city": city}, "required": ["unit", "city"]}
    two = {"required": ["city", "unit"], "properties": one["properties"], "type": "object"}
    assert to_json(canonical_tools([tool("w", one)])) == to_json(canonical_tools([tool("w", two)]))
    made = canonical_tools([tool("w", two)])[0]["function"]
    assert list(made) == ["name", "description", "parameters"]
    assert list(made["parameters"]) == ["type", "properties", "required"]
    assert list(made["parameters"]["properties"]) == ["city", "unit"]
    assert list(made["parameters"]["properties"]["city"]) == ["type", "description"]


def test_arrays_keep_their_order_and_nulls_their_place_where_they_mean_something() -> None:
    schema = {
        "type": ["string", "null"],
        "enum": ["z", "a", None],
        "default": None,
        "title": None,
        "examples": [{"required": ["b", "a"], "x": None}],
        "anyOf": [{"const": 2}, {"const": 1}, {"const": None}],
    }
    made = canonical_tools([tool("t", schema, strict=None)])[0]["function"]
    assert "strict" not in made
    assert "title" not in made["parameters"]
    assert made["parameters"] == {key: value for key, value in schema.items() if key != "title"}


def test_a_property_may_have_a_keyword_for_a_name() -> None:
    schema = {"type": "object", "properties": {"type": {"type": "string"}, "required": {"enum": ["b", "a"]}}}
    made = canonical_tools([tool("t", schema)])[0]["function"]["parameters"]["properties"]
    assert list(made) == ["required", "type"]
    assert made["required"]["enum"] == ["b", "a"]


def test_a_number_is_one_number_however_it_is_written() -> None:
    one, two = tool("t", {"type": "number", "maximum": 1.0}), tool("t", {"type": "number", "maximum": 1})
    assert to_json(canonical_tools([one])) == to_json(canonical_tools([two]))


def test_tools_of_other_types_stand_behind_by_type() -> None:
    made = canonical_tools([{"type": "web_search"}, {"z": 1, "type": "browser"}, tool("zoom")])
    assert [one["type"] for one in made] == ["function", "browser", "web_search"]
    assert list(made[1]) == ["type", "z"]


@pytest.mark.parametrize(
    ("tools", "code", "param"),
    [
        ([tool("a"), tool("b"), tool("a")], "duplicate_tool", "tools[2].function.name"),
        ([tool("a"), "b"], "invalid_tool", "tools[1]"),
        ([{"type": "function"}], "invalid_tool", "tools[0].function.name"),
        ([{"type": "function", "function": {"name": 3}}], "invalid_tool", "tools[0].function.name"),
        ([{"function": {"name": ""}}], "invalid_tool", "tools[0].function.name"),
    ],
)
@pytest.mark.case("MC-014")
def test_what_no_engine_could_call_is_refused(tools: list[Any], code: str, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        canonical_tools(tools)
    assert (caught.value.code, caught.value.param, caught.value.status) == (code, param, 400)


@pytest.mark.case("MC-023")
def test_a_changed_set_of_tools_is_named() -> None:
    """MC-023."""
    before = [tool("click"), tool("scroll_down"), tool("type")]
    after = [tool("click"), tool("scroll_up"), tool("type", {"type": "object", "properties": {"a": {}}})]
    change = compare_tools(before, after)
    assert change is not None
    assert (change.added, change.removed, change.changed) == (("scroll_up",), ("scroll_down",), ("type",))
    assert not change.is_lossless
    assert not change.reordered
    assert change.words == "added scroll_up; removed scroll_down; changed type"


@pytest.mark.parametrize(
    ("before", "after", "reordered", "respelled"),
    [
        ([tool("a"), tool("b")], [tool("b"), tool("a")], True, False),
        ([tool("a")], [tool("a", strict=None)], False, True),
        ([tool("a"), tool("b")], [tool("b"), tool("a", strict=None)], True, True),
        ([{"x": 1}, {"x": 2}], [{"x": 2}, {"x": 1}], True, False),
    ],
)
def test_order_and_spelling_alone_are_told_apart(before: Any, after: Any, reordered: bool, respelled: bool) -> None:
    change = compare_tools(before, after)
    assert change is not None
    assert change.is_lossless
    assert (change.reordered, change.respelled) == (reordered, respelled)


def test_equal_tools_have_no_change_and_none_is_no_tools() -> None:
    assert compare_tools([tool("a")], [tool("a")]) is None
    assert compare_tools(None, []) is None
    change = compare_tools(None, [tool("a")])
    assert change is not None
    assert change.added == ("a",)


def test_a_report_is_bounded() -> None:
    change = compare_tools([], [tool(f"t{number:02}" + "x" * 100) for number in range(20)])
    assert change is not None
    assert (len(change.added), change.more) == (8, 12)
    assert all(len(name) == 64 for name in change.added)
    assert change.words.endswith("and 12 more")
