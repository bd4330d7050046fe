"""Writes what is written from what the code knows: `python -m app.docs`. A test compares it.

The tables of docs/, and the JSON schema of policy files.
"""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path

from app.settings import ENVIRONMENT_PREFIX, flat_keys
from context.policies.document import policy_schema
from metrics.catalogue import CATALOGUE

_ROOT = Path(__file__).parent.parent
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


def schema_page() -> str:
    """configs/policies/schema.json."""
    return json.dumps(policy_schema(), indent=2, ensure_ascii=False) + "\n"


PAGES = {
    "docs/settings.md": settings_page,
    "docs/metrics.md": metrics_page,
    "configs/policies/schema.json": schema_page,
}


def main() -> None:
    """Write every page."""
    for name, page in PAGES.items():
        (_ROOT / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
