"""Writes what is written from what the code knows: `python -m app.docs`. A test compares it.

The tables of docs/, and the JSON schema of policy files.
"""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import MISSING, fields
from importlib import resources
from pathlib import Path
from typing import Any

from app.settings import ENVIRONMENT_PREFIX, flat_keys
from context.policies.document import policy_schema
from engine.vllm.block_tiers import settings as block_tiers
from engine.vllm.image_kv import settings as image_kv
from metrics.catalogue import CATALOGUE

# The settings among vLLM's options that are ours, by where they stand.
ENGINE_PARTS: dict[str, type[Any]] = {
    image_kv.SETTING: image_kv.ImageKvSettings,
    block_tiers.SETTING: block_tiers.BlockTierSettings,
}

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
    return "\n".join([*rows, *_engine_parts()]) + "\n"


def _engine_parts() -> list[str]:
    rows = ["", "## Of `engine.vllm`", "", "These are not vLLM's own. All of them are off by default.", ""]
    rows += ["| setting | type | default | meaning |", "|---|---|---|---|"]
    rows.append(
        "| `engine.vllm.eviction` | `lru` or `modality` | `lru` | what leaves the prefix and the encoder cache first: "
        "what was not used for longest, or what is worth least. |"
    )
    for prefix, settings in ENGINE_PARTS.items():
        meanings = _attributes(settings)
        for field in fields(settings):
            default = "required" if field.default is MISSING else f"`{json.dumps(field.default)}`"
            rows.append(f"| `{prefix}.{field.name}` | {field.type} | {default} | {meanings[field.name]} |")
    return rows


def _attributes(described: type[Any]) -> dict[str, str]:
    """What a class says of each of its attributes, under `Attributes:`."""
    _, _, said = (inspect.getdoc(described) or "").partition("Attributes:\n")
    parts = re.findall(r"^    (\w+): (.+(?:\n {5,}.+)*)", said, re.M)
    return {name: re.sub(r"\s+", " ", meaning) for name, meaning in parts}


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
