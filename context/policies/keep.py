"""Policies that keep everything."""

from __future__ import annotations

from dataclasses import dataclass, field

from context.policies.base import Rules, Shaped, View


@dataclass(frozen=True, slots=True)
class KeepAll:
    """Sends all that came: `stable`, and `observe` by its rules. The history is replayed and healed as those allow."""

    name: str = "stable"
    version: str = "1"
    rules: Rules = field(default_factory=Rules)

    def shape(self, view: View) -> Shaped:
        """All of it."""
        return Shaped(view.sent, state=view.state)


OBSERVE = KeepAll("observe", rules=Rules(replay=False, canonical_tools=False, control_tokens=None))
STABLE = KeepAll()
