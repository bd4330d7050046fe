"""Failures on demand, so that what calls an engine can be tested against each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, cast, get_args

from engine.fake.errors import Refused

FaultKind = Literal["error", "fail", "break", "hang", "slow", "crash"]


class Broken(Exception):
    """The fake engine's app breaks on purpose: its server drops the connection."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong with one chat request, the next that comes.

    `error`: the answer is an error with `status`. `fail`: the app breaks before the first byte. `break`: it breaks
    after `after_chunks` chunks. `hang`: nothing is ever answered. `slow`: the headers come after `seconds`. `crash`:
    the engine core dies, and every later request fails too.
    """

    kind: FaultKind
    status: int = 500
    after_chunks: int = 2
    seconds: float = 0.0


def parse_fault(body: Any) -> Fault:
    """A fault from JSON.

    Raises:
        Refused: it names no known kind, or a key that a fault does not have.
    """
    given: Mapping[str, Any] = cast("Mapping[str, Any]", body) if isinstance(body, dict) else {}
    known = {entry.name for entry in fields(Fault)}
    if given.get("kind") not in get_args(FaultKind) or not given.keys() <= known:
        raise Refused(f"A fault has a kind of {', '.join(get_args(FaultKind))}, and maybe {', '.join(sorted(known))}.")
    return Fault(**given)
