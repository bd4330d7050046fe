"""The types of a policy file's values: what the gateway takes is what the schema takes, and what is wrong is told."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import jsonschema
import pytest
import yaml
from pydantic import ValidationError

from context.errors import ConfigError
from context.policies.choice import load_policy
from context.policies.document import DOCUMENTS, PRESETS, policy_schema
from context.policies.parameters import parameters
from context.policies.reading import PolicyFileError, read_document, tuples

# Rules about several keys, and those of regular expressions, are more than a schema can say.
BEYOND_A_SCHEMA = {"misfit", "value_error"}
VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    5,
    20,
    100_000,
    -1,
    0.5,
    2.5,
    "",
    "x",
    "20",
    "true",
    "off",
    "slot",
    "turns",
    "images",
    [],
    ["user"],
    [1],
    {},
    {"x": 1},
    {"expected_turns": 9, "read_price": 0.1, "write_price": 1},
    {"expected_turns": "9", "read_price": 0.1, "write_price": 1},
    {"expected_turns": True, "read_price": 0.1, "write_price": 1},
    [{"name": "build", "regex": "b([0-9]{1,3})"}],
    [{"name": 1, "regex": "b"}],
]
SCHEMA: Any = jsonschema.Draft202012Validator(policy_schema())
HEAD = 'name: mine\nversion: "1"\nkind: {kind}\n'


def with_value(kind: str, key: str, value: Any) -> dict[str, Any]:
    """A file of a kind with one value."""
    document: dict[str, Any] = {"name": "mine", "version": "1", "kind": kind}
    prices = {"expected_turns": 9, "read_price": 0.1, "write_price": 1}
    inner = document
    *blocks, name = key.split(".")
    for block in blocks:
        inner = inner.setdefault(block, dict(prices) if block == "break_even" else {})
    inner[name] = value
    return document


def is_taken(document: Mapping[str, Any]) -> bool:
    """Whether the gateway finds nothing wrong that a schema could say."""
    try:
        DOCUMENTS.validate_python(tuples(document))
    except ValidationError as error:
        return {one["type"] for one in error.errors()} <= BEYOND_A_SCHEMA
    return True


@pytest.mark.parametrize("kind", PRESETS)
def test_the_schema_takes_what_the_gateway_takes(kind: str) -> None:
    taken = 0
    for key in [one.key for one in parameters(kind)]:
        for value in VALUES:
            document = with_value(kind, key, value)
            assert SCHEMA.is_valid(document) == is_taken(document), (key, value)
            taken += is_taken(document)
    assert taken > len(parameters(kind))


@pytest.mark.parametrize("kind", PRESETS)
def test_a_file_is_read_as_its_values_are(kind: str) -> None:
    """What YAML writes for a value is the same value to the gateway."""
    for key in [one.key for one in parameters(kind)]:
        for value in VALUES:
            document = with_value(kind, key, value)
            text = yaml.safe_dump(document)
            try:
                DOCUMENTS.validate_python(tuples(document))
            except ValidationError:
                with pytest.raises(PolicyFileError):
                    read_document(text, "mine.yaml")
            else:
                read_document(text, "mine.yaml")


@pytest.mark.parametrize(
    ("line", "key", "told"),
    [
        ("batched: {high: '20'}", "batched.high", "must be a whole number, such as 20, without quotes"),
        ("batched: {high: true}", "batched.high", "must be a whole number, such as 20"),
        ("batched: {high: 20.0}", "batched.high", "must be a whole number, such as 20"),
        ("batched: {high: 1e3}", "batched.high", "must be a whole number, such as 20"),
        ("batched: {high: .inf}", "batched.high", "must be a whole number, such as 20"),
        ("batched: {high: 1:30}", "batched.high", "must be a whole number, such as 20, without quotes"),
        ("batched: {defer_client_deletions: 1}", "batched.defer_client_deletions", "must be true or false"),
        ("batched: {defer_client_deletions: yes}", "batched.defer_client_deletions", "must be true or false"),
        ("batched: {defer_client_deletions: 'true'}", "batched.defer_client_deletions", "without quotes"),
        ("description: 5", "description", "must be text; write it in quotes"),
        ("layout: {volatile_roles: user}", "layout.volatile_roles", "must be a list"),
        ("layout: {volatile_roles: [5]}", "layout.volatile_roles[0]", "must be text; write it in quotes"),
        ("match: {max_distance: false}", "match.max_distance", "must be a whole number"),
        ("quotas: {max_images: '3'}", "quotas.max_images", "must be a whole number, such as 20, without quotes"),
        (
            "batched: {break_even: {expected_turns: .nan, read_price: 0, write_price: 1}}",
            "batched.break_even.expected_turns",
            "must be a number that has an end",
        ),
        (
            "batched: {break_even: {expected_turns: .inf, read_price: 0, write_price: 1}}",
            "batched.break_even.expected_turns",
            "must be",
        ),
        (
            "batched: {break_even: {expected_turns: 9, read_price: '0', write_price: 1}}",
            "batched.break_even.read_price",
            "must be a number, without quotes",
        ),
    ],
)
def test_a_value_of_another_type_is_named_with_what_is_expected(line: str, key: str, told: str) -> None:
    with pytest.raises(PolicyFileError) as caught:
        read_document(HEAD.format(kind="batched") + line, "mine.yaml")
    (fault,) = caught.value.faults
    assert (fault.line, fault.key) == (4, key)
    assert told in fault.reason


@pytest.mark.parametrize(
    ("text", "high"), [("0x20", 32), ("0o20", 16), ("020", 20), ("+20", 20)], ids=["hex", "octal", "zero", "plus"]
)
def test_numbers_are_read_as_in_yaml_1_2(text: str, high: int) -> None:
    document: Any = read_document(HEAD.format(kind="batched") + f"batched: {{high: {text}}}", "mine.yaml")
    assert document.batched.high == high


def test_a_whole_number_may_stand_where_a_number_is_wanted() -> None:
    prices = "batched: {break_even: {expected_turns: 60, read_price: 0, write_price: 1e2}}"
    document: Any = read_document(HEAD.format(kind="batched") + prices, "mine.yaml")
    assert document.batched.break_even.write_price == 100


def special(kind: str, folder: Path) -> str:
    """Something that is no file, by its path."""
    path = folder / f"{kind}.yaml"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "dangling":
        path.symlink_to(folder / "gone.yaml")
    elif kind == "huge":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    elif kind == "utf-16":
        path.write_text(HEAD.format(kind="stable"), encoding="utf-16")
    return str(path)


UNUSABLE = {
    "pipe": "is a pipe or a device",
    "device": "is a pipe or a device",
    "folder": "is a folder; name the file in it",
    "loop": "cannot be read",
    "dangling": "there is no such file",
    "huge": "is longer than 65536 bytes",
    "utf-16": "is no text in UTF-8",
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize(("kind", "told"), UNUSABLE.items())
def test_what_is_no_file_is_refused_and_never_waited_for(tmp_path: Path, kind: str, told: str) -> None:
    path = special(kind, tmp_path)
    with pytest.raises(ConfigError) as caught:
        load_policy(path)
    assert caught.value.where == path
    assert told in caught.value.reason


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(HEAD.format(kind="stable"), encoding="utf-8-sig")
    assert load_policy(str(file)).name == "mine"


def test_every_parameter_has_a_type_in_the_schema() -> None:
    """A key without one would take anything in an editor."""
    kinds = cast("Mapping[str, Any]", policy_schema()["$defs"])
    open_keys = [
        f"{name}.{key}"
        for name, part in kinds.items()
        for key, one in part.get("properties", {}).items()
        if not {"type", "anyOf", "enum", "const", "$ref", "allOf"} & one.keys()
    ]
    assert open_keys == []
