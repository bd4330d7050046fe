"""What docs/ says is what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.cli import _parser  # pyright: ignore[reportPrivateUsage]
from app.docs import PAGES
from app.settings import flat_keys
from metrics.catalogue import CATALOGUE
from metrics.prometheus import GatewayMetrics

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_up_to_date(name: str) -> None:
    assert (ROOT / name).read_text() == PAGES[name](), "run: make docs"


def test_every_setting_is_explained() -> None:
    page = (DOCS / "settings.md").read_text()
    rows = {key: line for line in page.splitlines() for key in flat_keys() if line.startswith(f"| `{key}` ")}
    assert rows.keys() == set(flat_keys())
    assert [key for key, row in rows.items() if row.endswith("|  |")] == []


async def test_the_catalogue_is_what_is_exposed() -> None:
    text = GatewayMetrics().exposition(engine_ready=True).decode()
    exposed = set(re.findall(r"^# TYPE (stillframe_\S+) ", text, re.M))
    assert {name for name in exposed if not name.endswith("_created")} == {e.exposed for e in CATALOGUE.values()}


def test_the_readme_names_real_commands() -> None:
    readme = (ROOT / "README.md").read_text()
    commands = set(re.findall(r"`stillframe (\w+)", readme))
    usage = _parser().format_help()
    assert commands
    assert all(re.search(rf"^\s+{command}\s", usage, re.M) for command in commands)
    targets = set(re.findall(r"^(\w+):.*##", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"`?make (\w+)", readme)) <= targets


def test_links_lead_somewhere() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md"), *(ROOT / "configs").rglob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"
