"""docs/cases.md, and the marks of the tests, say the same."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
DOCS = TESTS.parent / "docs"
CASES = 70
STATUS = re.compile(r"holds|holds in part|later \(#\d\)|other answer \(\[ADR \d{4}\]\(adr/(\d{4}-[a-z-]+\.md)\)\)")


def rows() -> list[list[str]]:
    lines = (DOCS / "cases.md").read_text().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| MC-")]


def ids_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """Ids in `pytest.mark.case(...)`, on the test or on one of its parameters."""
    for decorator in function.decorator_list:
        for node in ast.walk(decorator):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "case":
                for given in node.args:
                    assert isinstance(given, ast.Constant)
                    yield str(given.value)


def marks() -> dict[str, set[str]]:
    """Tests by the cases that they prove."""
    found: dict[str, set[str]] = {}
    for file in sorted(TESTS.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
                for case in ids_of(node):
                    found.setdefault(case, set()).add(f"{file.relative_to(TESTS)}::{node.name}")
    return found


def test_every_case_is_there_once() -> None:
    ids = [row[0] for row in rows()]
    assert len(set(ids)) == len(ids) == CASES
    assert ids == sorted(ids)


def test_every_case_has_a_test_and_every_mark_a_case() -> None:
    found = marks()
    listed = {row[0]: set(re.findall(r"`([^`]+)`", row[5])) for row in rows()}
    assert found == listed


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_every_row_is_whole(row: list[str]) -> None:
    assert len(row) == 7
    assert all(row)
    assert re.search(r"[\w.-]+/[\w.-]+(#\d+| code: )|CVE-|commit", row[1])
    status = STATUS.fullmatch(row[6])
    assert status, row[6]
    if status[1]:
        assert row[0] in (DOCS / "adr" / status[1]).read_text()
