"""From the text of a policy file to its checked document. All faults are found at once, each with its line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from context.errors import ConfigError
from context.policies.document import DOCUMENTS, KINDS, MISFIT, AnyDocument
from context.policies.parameters import part_of
from context.yaml import CoreLoader

MAX_BYTES = 64 * 1024
_MAX_FAULTS = 20
_MAX_DEPTH = 16
Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong: where, and what to do about it. `key` is empty where the file as a whole is meant."""

    line: int
    key: str
    reason: str


class PolicyFileError(ConfigError):
    """A policy file that cannot be used. `faults` has all that is wrong, in the order of the file; the message lists
    them."""

    def __init__(self, where: str, faults: Sequence[Fault]) -> None:
        first = faults[0]
        super().__init__(where, first.key, first.reason)
        self.faults = tuple(faults)
        self.args = ("\n".join(": ".join(filter(None, (f"{where}:{f.line}", f.key, f.reason))) for f in faults),)


def read_document(text: str, where: str) -> AnyDocument:
    """A policy file's document.

    Args:
        text: YAML.
        where: the file's name, for errors.

    Raises:
        PolicyFileError: all that is wrong with it.
    """
    data, lines = _parse(text, where)
    try:
        return DOCUMENTS.validate_python(tuples(data))
    except ValidationError as error:
        faults = [_fault(one, lines) for one in error.errors(include_url=False)]
    raise PolicyFileError(where, sorted(faults, key=lambda fault: fault.line)[:_MAX_FAULTS])


def tuples(value: Any) -> Any:
    """A YAML value with tuples for lists, as the documents' types have them: nothing else is converted for them."""
    if isinstance(value, dict):
        return {key: tuples(one) for key, one in cast("dict[Any, Any]", value).items()}
    return tuple(map(tuples, cast("list[Any]", value))) if isinstance(value, list) else value


def _parse(text: str, where: str) -> tuple[Any, dict[Path, int]]:
    """The YAML value, and the line of every key.

    Raises:
        PolicyFileError: it is no YAML, or YAML that a policy has no use for.
    """
    if len(text) > MAX_BYTES:
        raise PolicyFileError(where, [Fault(1, "", f"is longer than {MAX_BYTES} characters; shorten it")])
    lines: dict[Path, int] = {}
    faults: list[Fault] = []
    try:
        # The stubs of PyYAML leave this one without types.
        node = cast("yaml.Node | None", yaml.compose(text, CoreLoader))  # pyright: ignore[reportUnknownMemberType]
        if node is not None:
            _walk(node, (), lines, faults, set())
        data: Any = None if faults else yaml.load(text, CoreLoader)  # noqa: S506 (it is a safe loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        column = f"column {mark.column + 1}: " if mark else ""
        fault = Fault(mark.line + 1 if mark else 1, "", f"{column}is not valid YAML; check indents and quotes there")
        raise PolicyFileError(where, [fault]) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # ValueError: a date that no calendar has.
        raise PolicyFileError(where, [Fault(1, "", "is not valid YAML; check indents and quotes")]) from error
    if faults:
        raise PolicyFileError(where, faults)
    if not isinstance(data, dict):
        reason = "must be a mapping that starts with name, version and kind; copy a preset and change it"
        raise PolicyFileError(where, [Fault(1, "", reason)])
    return cast("dict[str, Any]", data), lines


def _walk(node: yaml.Node, at: Path, lines: dict[Path, int], faults: list[Fault], seen: set[int]) -> None:
    """Note the line of each key, and refuse what would be read in another way than it looks."""
    line = node.start_mark.line + 1
    lines.setdefault(at, line)
    if id(node) in seen or len(at) > _MAX_DEPTH:
        what = "nests too deep" if len(at) > _MAX_DEPTH else "is an alias (*name); write its value out"
        faults.append(Fault(line, _dotted(at), what))
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, one in enumerate(node.value):
            _walk(one, (*at, index), lines, faults, seen)
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        place = (*at, str(key.value))
        if place in lines:
            twice = f"stands twice, first in line {lines[place]}; remove one"
            faults.append(Fault(key.start_mark.line + 1, _dotted(place), twice))
        lines[place] = key.start_mark.line + 1
        _walk(value, place, lines, faults, seen)


def _fault(error: ErrorDetails, lines: Mapping[Path, int]) -> Fault:
    at: Path = error["loc"]
    # Behind the kind's name, which pydantic puts in front, stands the place in the file.
    kind = at[0] if at and at[0] in KINDS else ""
    at = at[1:] if kind else at
    if error["type"] in ("union_tag_invalid", "union_tag_not_found"):
        at = ("kind",)
    elif error["type"] == MISFIT:
        at = (*at, (error.get("ctx") or {})["key"])
    line = next(lines[at[:length]] for length in range(len(at), -1, -1) if at[:length] in lines)
    return Fault(line, _dotted(at), _reason(error, at, str(kind)))


def _reason(error: ErrorDetails, at: Path, kind: str) -> str:
    """What is wrong, and the remedy, in our own words where pydantic's would not say it."""
    told: Mapping[str, Any] = error.get("ctx") or {}
    match error["type"]:
        case "union_tag_invalid" | "union_tag_not_found":
            return f"must be one of {', '.join(KINDS)}"
        case "extra_forbidden":
            return f"there is no such key; known here: {', '.join(_known(kind, at[:-1]))}"
        case "missing":
            return f"is missing; add it: {_description(kind, at)}"
        case "literal_error":
            return f"must be one of {told['expected']}"
        case "greater_than_equal" | "greater_than" | "less_than_equal" | "less_than":
            words = error["type"].replace("_", " ").removesuffix(" equal") + (
                " or equal to" if error["type"].endswith("equal") else ""
            )
            return f"must be {words} {next(iter(told.values()))}"
        case "value_error" | "misfit":
            return error["msg"].removeprefix("Value error, ")
        case "string_pattern_mismatch":
            return f"cannot be that; it is {_description(kind, at)}"
        case "model_type" | "model_attributes_type":
            return f"must be a mapping; known in it: {', '.join(_known(kind, at))}"
        case "too_long" | "too_short" | "string_too_long" | "string_too_short":
            bound = f"at most {told['max_length']}" if "max_length" in told else f"at least {told['min_length']}"
            return f"must have {bound} {'characters' if error['type'].startswith('string') else 'entries'}"
        case found if words := expected(found, is_text=isinstance(error["input"], str)):
            return words
        case _:
            return f"cannot be used; it is {_description(kind, at)}"


def expected(fault: str, *, is_text: bool) -> str | None:
    """What a value of another type has to be; None for other faults.

    Args:
        fault: pydantic's name of it.
        is_text: the value was given as text.
    """
    others = {
        "string_type": "must be text; write it in quotes",
        "tuple_type": "must be a list",
        "dict_type": "must be a mapping",
        "finite_number": "must be a number that has an end",
    }
    whats = {"int": "a whole number, such as 20", "float": "a number", "bool": "true or false"}
    what = whats.get(fault.partition("_")[0])
    return others.get(fault) if what is None else f"must be {what}" + (", without quotes" if is_text else "")


def _model(kind: str, at: Path) -> type[BaseModel] | None:
    """The model of the part at a place."""
    model: type[BaseModel] | None = KINDS.get(kind)
    for key in at:
        if isinstance(key, int):
            continue
        field = model.model_fields.get(key) if model is not None else None
        model = part_of(field.annotation) if field is not None else None
    return model


def _known(kind: str, at: Path) -> list[str]:
    model = _model(kind, at)
    return list(model.model_fields) if model is not None else []


def _description(kind: str, at: Path) -> str:
    model = _model(kind, at[:-1])
    field = model.model_fields.get(str(at[-1])) if model is not None else None
    return (field.description if field is not None else None) or "see configs/policies/README.md"


def _dotted(at: Path) -> str:
    """`layout.patterns[0].regex`."""
    made = ""
    for key in at:
        made += f"[{key}]" if isinstance(key, int) else f".{key}" if made else key
    return made
