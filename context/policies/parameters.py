"""The keys of a policy file as flat rows, for tables: `layout.volatile`, its default, what it means."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast, get_args

from pydantic import BaseModel

from context.policies.document import KINDS, AnyDocument


@dataclass(frozen=True, slots=True)
class Parameter:
    """One key. `required` ones have no default."""

    key: str
    default: Any
    required: bool
    meaning: str


def parameters(kind: str) -> list[Parameter]:
    """Every key of a kind of policy, in the order of the file; the keys of a block that may be null after it."""
    return list(_of_model(KINDS[kind], ""))


def values(document: AnyDocument) -> dict[str, Any]:
    """The value of every key of a document that is there."""
    data = document.model_dump(mode="json")
    found: dict[str, Any] = {}
    for one in parameters(document.kind):
        *blocks, name = one.key.split(".")
        block: Any = data
        for outer in blocks:
            block = block and block[outer]
        if block is not None:
            found[one.key] = block[name]
    return found


def part_of(annotation: Any) -> type[BaseModel] | None:
    """The model that an annotation holds, if any."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for one in get_args(annotation) if (found := part_of(one)) is not None), None)


def _of_model(model: type[BaseModel], at: str) -> Iterator[Parameter]:
    for name, field in model.model_fields.items():
        key, inner = f"{at}{name}", part_of(field.annotation)
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        is_list = isinstance(default, tuple)
        if inner is None or default is None or is_list:
            plain = list(cast("tuple[Any, ...]", default)) if is_list else default
            yield Parameter(key, plain, field.is_required(), field.description or "")
        if inner is not None and not is_list:
            yield from _of_model(inner, f"{key}.")
