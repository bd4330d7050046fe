"""Every policy, with waters so low that short sessions reach them. One that is added here is tested with the others."""

from __future__ import annotations

from collections.abc import Mapping

from context.policies.base import Policy, Rules
from context.policies.batched import Batched, BreakEven
from context.policies.keep import OBSERVE, STABLE, KeepAll
from context.policies.reference import Reference
from context.policies.sliding import Sliding
from context.policies.summary import Summary

POLICIES: Mapping[str, Policy] = {
    "observe": OBSERVE,
    "stable": STABLE,
    "sliding": Sliding(2),
    "sliding-marker": Sliding(1, marker=True),
    "images": Batched("images", 4, 1),
    "images-honoured": Batched("images", 4, 1, defer_client_deletions=False),
    "images-pinned": Batched("images", 3, 1, pin_first_images=1),
    "images-break-even": Batched("images", 6, 1, break_even=BreakEven(20, 1, 10)),
    "visual-tokens": Batched("visual_tokens", 5000, 1400),
    "visual-tokens-honoured": Batched("visual_tokens", 5000, 1400, defer_client_deletions=False),
    "turns": Batched("turns", 3, 2),
    "turns-honoured": Batched("turns", 3, 1, defer_client_deletions=False),
    "turns-pinned": Batched("turns", 2, 1, pin_first_images=1),
    "prompt-tokens": Batched("prompt_tokens", 3000, 60),
    "prompt-tokens-honoured": Batched("prompt_tokens", 3000, 60, defer_client_deletions=False),
    "reference": Reference(),
    "reference-kept": Reference(keep_turns=2, rules=Rules(defer_client_window=True)),
    "summary-turns": Summary("turns", 3, 1),
    "summary-images": Summary("images", 2, 1),
    "summary-tokens": Summary("prompt_tokens", 4000, 2000, max_tokens=20, rules=Rules(tool_images="hoist")),
    "freeze-hoist": KeepAll(rules=Rules(volatile="freeze", tool_images="hoist")),
    "tail": KeepAll(rules=Rules(volatile="tail")),
}
# Those for which the steps that an agent has finished within one question are history: all that shrink.
BY_STEP = frozenset(POLICIES) - {"observe", "stable"}
