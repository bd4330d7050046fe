"""Classes of values of which every request makes many."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(kind: type[T]) -> type[T]:
    """A slotted dataclass, equal and hashed by its fields, that the type checker keeps from being changed.

    A dataclass that Python itself holds frozen sets each field through `object.__setattr__`: eight fields take 1.1
    microseconds against 0.23, and a small chat sets hundreds. For what is made seldom, `@dataclass(frozen=True,
    slots=True)` stays the rule.
    """
    return dataclass(slots=True, unsafe_hash=True)(kind)
