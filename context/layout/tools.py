"""Tool definitions in one order and one spelling, and what differs between two sets of them.

Tools stand at the start of a prompt: one that moves, or a schema whose keys are swapped, costs everything behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pydantic_core import to_json

from context.errors import RequestError
from context.transcript import sorted_value

_TOOL_KEYS = ("type", "function")
_FUNCTION_KEYS = ("name", "description", "parameters")
_SCHEMA_KEYS = (
    "$schema",
    "$id",
    "$ref",
    "title",
    "type",
    "description",
    "enum",
    "const",
    "format",
    "default",
    "properties",
    "required",
    "items",
)
# Where a schema's keys hold schemas. All other keys hold data, whose arrays and nulls mean something.
# Source: JSON Schema 2020-12, and the older names that clients still write.
_SCHEMA = frozenset(
    (
        "items",
        "additionalItems",
        "additionalProperties",
        "unevaluatedItems",
        "unevaluatedProperties",
        "contains",
        "propertyNames",
        "not",
        "if",
        "then",
        "else",
    )
)
_SCHEMA_LISTS = frozenset(("anyOf", "oneOf", "allOf", "prefixItems", "items"))
_SCHEMA_MAPS = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))
_NULL_MEANS = frozenset(("default", "const"))
_MAX_NAMES = 8
_MAX_NAME_CHARACTERS = 64


@dataclass(frozen=True, slots=True)
class ToolChange:
    """How two sets of tools differ.

    Attributes:
        added, removed, changed: names in order, at most eight of each; a tool without a name goes by its type.
        more: how many names were left out.
        reordered: the tools that both have stand in another order.
        respelled: a tool that means the same is written in another way: key order, keys that are null.
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    more: int = 0
    reordered: bool = False
    respelled: bool = False

    @property
    def is_lossless(self) -> bool:
        """Whether only order and spelling differ: what `canonical_tools` undoes."""
        return not (self.added or self.removed or self.changed)

    @property
    def words(self) -> str:
        """The difference for people, on one line."""
        named = (("added", self.added), ("removed", self.removed), ("changed", self.changed))
        said = [f"{what} {', '.join(names)}" for what, names in named if names]
        said += [f"and {self.more} more"] if self.more else []
        said += ["other order"] if self.reordered else []
        said += ["other spelling"] if self.respelled else []
        return "; ".join(said)


def canonical_tools(tools: Sequence[Any]) -> tuple[Mapping[str, Any], ...]:
    """The tools, sorted by function name, every object's keys in one order. `tools` is not mutated.

    Equal meaning gives equal bytes: the order of tools, of keys at any depth and of `required`, keys that are null, and
    1.0 for 1 make no difference. Every other array keeps its order, and a null keeps its place where it says
    something (`default`, `const`, values). Tools of other types stand behind, by type and content.

    Raises:
        RequestError: `invalid_tool`, a tool is no object, or a function has no name; `duplicate_tool`, two functions
            have one name. `param` names the place.
    """
    functions: dict[str, dict[str, Any]] = {}
    others: list[dict[str, Any]] = []
    for index, tool in enumerate(tools):
        name = _function_name(tool, f"tools[{index}]")
        if name is None:
            others.append(_canonical_tool(tool))
        elif name in functions:
            raise RequestError(
                f"Two tools have the name {name[:_MAX_NAME_CHARACTERS]!r}. Give each function a name of its own.",
                code="duplicate_tool",
                param=f"tools[{index}].function.name",
            )
        else:
            functions[name] = _canonical_tool(tool)
    others.sort(key=lambda tool: (str(tool.get("type", "")), to_json(tool)))
    return (*(functions[name] for name in sorted(functions)), *others)


def compare_tools(before: Sequence[Any] | None, after: Sequence[Any] | None) -> ToolChange | None:
    """What changed between two requests' tools, as their clients sent them; None when they are equal to the byte.

    Works on any JSON: nothing is refused here.
    """
    old, new = list(before or ()), list(after or ())
    if to_json(old) == to_json(new):
        return None
    meant_old, meant_new = _by_name(old, _meaning), _by_name(new, _meaning)
    both = meant_old.keys() & meant_new.keys()
    added, removed = sorted(meant_new.keys() - both), sorted(meant_old.keys() - both)
    changed = sorted(name for name in both if sorted(meant_old[name]) != sorted(meant_new[name]))
    spelled_old, spelled_new = _by_name(old, to_json), _by_name(new, to_json)
    respelled = any(sorted(spelled_old[name]) != sorted(spelled_new[name]) for name in both.difference(changed))
    # What differs in nothing else differs in order: two tools without a name may have changed places.
    reordered = _order(old, meant_new) != _order(new, meant_old) or not (added or removed or changed or respelled)
    lists = [tuple(name[:_MAX_NAME_CHARACTERS] for name in names[:_MAX_NAMES]) for names in (added, removed, changed)]
    more = sum(max(0, len(names) - _MAX_NAMES) for names in (added, removed, changed))
    return ToolChange(*lists, more=more, reordered=reordered, respelled=respelled)


def _function_name(tool: Any, place: str) -> str | None:
    """A function's name; None for a tool of another type."""
    if not isinstance(tool, Mapping):
        raise RequestError(
            f'{place} must be an object such as {{"type": "function", "function": {{"name": ...}}}}.',
            code="invalid_tool",
            param=place,
        )
    known = cast("Mapping[str, Any]", tool)
    if known.get("type", "function") != "function":
        return None
    function = known.get("function")
    name = cast("Mapping[str, Any]", function).get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not name:
        raise RequestError(
            f"{place}.function.name must be a string that is not empty.",
            code="invalid_tool",
            param=f"{place}.function.name",
        )
    return name


def _canonical_tool(tool: Any) -> dict[str, Any]:
    if not isinstance(tool, Mapping):
        return {"": sorted_value(tool)}
    known = cast("Mapping[str, Any]", tool)
    if not isinstance(known.get("function"), Mapping):
        return {key: sorted_value(known[key]) for key in _ordered(known, _TOOL_KEYS)}
    return {
        key: _canonical_function(known[key]) if key == "function" else sorted_value(known[key])
        for key in _ordered(known, _TOOL_KEYS)
    }


def _canonical_function(function: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _canonical_schema(function[key]) if key == "parameters" else sorted_value(function[key])
        for key in _ordered(function, _FUNCTION_KEYS)
    }


def _canonical_schema(schema: Any) -> Any:
    """A JSON schema. What is no object (`true`, or a client's mistake) stays as it is."""
    if not isinstance(schema, Mapping):
        return sorted_value(schema)
    known = cast("Mapping[str, Any]", schema)
    return {key: _canonical_keyword(key, known[key]) for key in _ordered(known, _SCHEMA_KEYS, keep=_NULL_MEANS)}


def _canonical_keyword(key: str, value: Any) -> Any:
    if key in _SCHEMA_MAPS and isinstance(value, Mapping):
        named = cast("Mapping[str, Any]", value)
        return {name: _canonical_schema(named[name]) for name in sorted(named)}
    if key in _SCHEMA_LISTS and isinstance(value, list):
        return [_canonical_schema(one) for one in cast("list[Any]", value)]
    if key in _SCHEMA:
        return _canonical_schema(value)
    if key == "required" and isinstance(value, list):
        return sorted(cast("list[Any]", value), key=lambda name: (not isinstance(name, str), str(name)))
    return sorted_value(value)


def _ordered(known: Mapping[str, Any], first: Sequence[str], *, keep: frozenset[str] = frozenset()) -> list[str]:
    """The keys that are not null, those of `first` in its order, the rest sorted behind."""
    kept = [key for key in known if known[key] is not None or key in keep]
    place = {key: index for index, key in enumerate(first)}
    return sorted(kept, key=lambda key: (place.get(key, len(first)), key))


def _meaning(tool: Any) -> bytes:
    return to_json(_canonical_tool(tool))


def _shown_name(tool: Any) -> str:
    """What a tool is called in a report, whatever it is."""
    known = cast("Mapping[str, Any]", tool if isinstance(tool, Mapping) else {})
    function = known.get("function")
    name = cast("Mapping[str, Any]", function).get("name") if isinstance(function, Mapping) else known.get("type")
    return name if isinstance(name, str) else "(no name)"


def _by_name(tools: Sequence[Any], form: Callable[[Any], bytes]) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for tool in tools:
        found.setdefault(_shown_name(tool), []).append(form(tool))
    return found


def _order(tools: Sequence[Any], others: Mapping[str, Any]) -> list[str]:
    """Names that both sets have, in the order of this one."""
    return [name for tool in tools if (name := _shown_name(tool)) in others]
