"""Writes the tables of docs/ from what the code knows: `python -m app.docs`. A test compares them."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

from app.settings import ENVIRONMENT_PREFIX, flat_keys
from metrics.catalogue import CATALOGUE

_DOCS = Path(__file__).parent.parent / "docs"
_LINE = re.compile(r"^(\s*)([\w]+):\s*(.*?)\s*(?:#\s*(.*))?$")


def settings_page() -> str:
    """docs/settings.md."""
    rows = [
        "# Settings",
        "",
        "Order: `configs/default.yaml`, `--config FILE` (or `STILLFRAME_CONFIG`), environment, flags; the last wins.",
        "A wrong value stops the start and names its place. Values in the environment are YAML.",
        "",
        "| setting | default | environment | meaning |",
        "|---|---|---|---|",
    ]
    comments = _comments()
    for key in flat_keys():
        value, comment = comments[key]
        variable = ENVIRONMENT_PREFIX + key.upper().replace(".", "__")
        rows.append(f"| `{key}` | `{value}` | `{variable}` | {comment} |")
    return "\n".join(rows) + "\n"


def _comments() -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    section = ""
    for line in resources.files("configs").joinpath("default.yaml").read_text().splitlines():
        match = _LINE.match(line)
        if match is None or line.startswith("#"):
            continue
        indent, key, value, comment = match.groups()
        if not indent and not value:
            section = f"{key}."
            continue
        name = f"{section}{key}" if indent else key
        found[name] = (value.replace("|", "\\|"), (comment or "").replace("|", "\\|"))
    return found


def metrics_page() -> str:
    """docs/metrics.md."""
    rows = [
        "# Metrics",
        "",
        "`/metrics` gives these in Prometheus' text format, and an embedded engine's own (`vllm:...`) after them.",
        "",
        "| metric | type | labels | meaning | what to do about it |",
        "|---|---|---|---|---|",
    ]
    for entry in CATALOGUE.values():
        labels = "; ".join(f"`{label}`: {values}" for label, values in entry.labels.items())
        rows.append(f"| `{entry.exposed}` | {entry.kind} | {labels} | {entry.meaning} | {entry.remedy} |")
    return "\n".join(rows) + "\n"


PAGES = {"settings.md": settings_page, "metrics.md": metrics_page}


def main() -> None:
    """Write every page."""
    for name, page in PAGES.items():
        (_DOCS / name).write_text(page())


if __name__ == "__main__":
    main()
