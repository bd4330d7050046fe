"""How a context shrinks: policies, the files that they are written in, and the choice among them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from context.policies.choice import LoadedPolicy, Policies, PolicyRule, load_policy

__all__ = ["LoadedPolicy", "Policies", "PolicyRule", "load_policy"]


def __getattr__(name: str) -> Any:
    """What a policy is (`base.py`) is needed by the planner, on which the policies are built: all of them at once would
    be a circle of imports."""
    if name not in __all__:
        raise AttributeError(name)
    from context.policies import choice

    return getattr(choice, name)
