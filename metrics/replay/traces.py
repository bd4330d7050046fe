"""The traces that ship, by name: `t1` to `t6`, with options behind a colon; or a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from context.errors import ConfigError
from metrics.replay import t1, t2_to_t5, t6
from metrics.replay.options import Options, Sizes
from metrics.replay.trace import Trace, read


@dataclass(frozen=True, slots=True)
class Kind:
    """One shape of session: how it is made, and its options with their defaults. docs/replay.md says what they mean."""

    make: Callable[[Options], Trace]
    defaults: Mapping[str, str]


KINDS: Mapping[str, Kind] = {
    "t1": Kind(t1.make, t1.DEFAULTS),
    "t2": Kind(t2_to_t5.t2, t2_to_t5.T2_DEFAULTS),
    "t3": Kind(t2_to_t5.t3, t2_to_t5.T3_DEFAULTS),
    "t4": Kind(t2_to_t5.t4, t2_to_t5.T4_DEFAULTS),
    "t5": Kind(t2_to_t5.t5, t2_to_t5.T5_DEFAULTS),
    "t6": Kind(t6.make, t6.DEFAULTS),
}


def load_trace(spec: str, sizes: Sizes | None = None) -> Trace:
    """A trace by name or file. Its name is `spec`, for a file without its folder.

    Raises:
        ConfigError: there is none, an option is wrong, or the file is no trace.
    """
    name, _, given = spec.partition(":")
    kind = KINDS.get(name)
    if kind is not None:
        made = kind.make(Options(name, given, kind.defaults, sizes or Sizes()))
        return Trace(spec, made.turns, made.limits)
    file = Path(spec)
    if not file.is_file():
        raise ConfigError(
            "trace", spec, f"is neither one of {', '.join(KINDS)} (with options as in t1:steps=20) nor a file"
        )
    return read(file)
