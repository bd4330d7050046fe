"""Policies: what is in force, and what the recorded turns under each of them came to."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from context.policies.choice import LoadedPolicy
from context.policies.document import Part
from metrics.dashboard.overview import figures
from metrics.dashboard.window import Window
from metrics.records import queries
from metrics.records.queries import Filter, Records
from metrics.report.compare import compare

# Keys of a policy's document that are no parameters.
_OWN = frozenset(("kind", "name", "version", "description"))


def document(policy: LoadedPolicy) -> dict[str, Any]:
    """A policy as its file has it: name, version, description, and its parameters by dotted key."""
    document = policy.document
    return {
        "name": policy.name,
        "version": policy.version,
        "kind": document.kind,
        "description": document.description,
        "parameters": [one for one in _parameters(document) if one["key"] not in _OWN],
    }


def measured(records: Records, window: Window, names: Filter, baseline: str | None) -> dict[str, Any]:
    """What the turns of a time cost under each policy, and how policies differ by conversation."""
    of = window.of(names)
    return {
        "window": window.json(),
        "policies": [
            {"policy": group.values[0], **figures(group.totals)} for group in queries.by(records, ["policy"], of)
        ],
        "compared": [asdict(one) for one in compare(queries.heaps_of_conversations(records, of), baseline)],
    }


def _parameters(part: Part, at: str = "") -> list[dict[str, Any]]:
    """A part's keys with what they mean, those of its own parts among them."""
    found: list[dict[str, Any]] = []
    for name, field in type(part).model_fields.items():
        value: Any = getattr(part, name)
        if isinstance(value, Part):
            found += _parameters(value, f"{at}{name}.")
        else:
            found.append({"key": f"{at}{name}", "value": _plain(value), "meaning": field.description or ""})
    return found


def _plain(value: Any) -> Any:
    """A value for JSON: what is a collection of parts, as their own values."""
    if isinstance(value, Part):
        return value.model_dump(mode="json")
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]  # pyright: ignore[reportUnknownVariableType]
    return value
