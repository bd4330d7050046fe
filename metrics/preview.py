"""What a policy would do to a session, without an engine: the real planner, a ledger in memory, and a prefix cache that
never forgets.

The session is a GUI agent's: instructions, a task, then a screenshot and an action a step, all of it sent again with
each request. Every seventh screenshot shows what the one before did. Token counts are estimates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blake3 import blake3
from pydantic_core import to_json

from context.conversations import Begun, Conversations
from context.estimates import message_tokens
from context.images.base import ImageRef
from context.layout.tail import with_tail
from context.ledger import Ledger
from context.plan import SummaryRequest
from context.policies.base import Estimate, Policy, Request
from context.transcript import ImagePart, parts_of

BLOCK_TOKENS = 16
_WIDTH, _HEIGHT = 1280, 800
_SYSTEM_WORDS, _TASK_WORDS, _STEP_WORDS, _ACTION_WORDS = 2_700, 120, 40, 120
_SAME_AS_BEFORE = 7
_WORDS = ("page", "open", "list", "form", "name", "mail", "file", "save", "next", "back", "menu")


@dataclass(frozen=True, slots=True)
class PreviewTurn:
    """One turn: how long its prompt is, how much of it no earlier prompt began with, and where it broke.

    `cause` is of the break; empty when the prompt extends what was sent. `place` is where the break is. What a summary
    of this turn costs the engine counts as computed, too.
    """

    turn: int
    messages: int
    images: int
    prompt_tokens: int
    computed_tokens: int
    cause: str = ""
    actor: str = ""
    place: str = ""
    lost_tokens: int = 0


async def preview(policy: Policy, steps: int, estimate: Estimate = message_tokens) -> list[PreviewTurn]:
    """Play a session of so many steps under a policy."""
    ledger = await Ledger.open(None)
    try:
        return await _play(Conversations(ledger), policy, steps, estimate)
    finally:
        await ledger.close()


async def _play(conversations: Conversations, policy: Policy, steps: int, estimate: Estimate) -> list[PreviewTurn]:
    cache, turns = PrefixCache(estimate), list[PreviewTurn]()
    history: list[dict[str, Any]] = [
        {"role": "system", "content": _words(_SYSTEM_WORDS, "system")},
        {"role": "user", "content": _words(_TASK_WORDS, "task")},
    ]
    for step in range(1, steps + 1):
        shot = ImagePart(_screenshot(step - 1 if step % _SAME_AS_BEFORE == 0 else step))
        history.append({"role": "user", "content": [{"type": "text", "text": _words(_STEP_WORDS, step)}, shot]})
        extra = cache.extra_tokens
        begun = await conversations.begin(
            history,
            None,
            tenant="preview",
            key=b"preview",
            policy=policy,
            request=Request(estimate=estimate),
            summarize=cache.summarize,
        )
        action = {"role": "assistant", "content": _words(_ACTION_WORDS, "action", step)}
        turns.append(turn_of(begun, cache, action, cache.extra_tokens - extra))
        await conversations.accept(begun, action)
        history.append(action)
    return turns


def turn_of(begun: Begun, cache: PrefixCache, action: Mapping[str, Any], extra_tokens: int) -> PreviewTurn:
    """A planned turn's figures; the cache takes in its prompt and its answer."""
    plan = begun.plan
    sent = [one.wire for one in with_tail(plan.sent, plan.tail)]
    prompt, read = cache.take(sent, action)
    images = sum(isinstance(part, ImagePart) for wire in sent for part in parts_of(wire))
    counts = (begun.number, len(sent), images, prompt, prompt - read + extra_tokens)
    if not plan.breaks:
        return PreviewTurn(*counts)
    first = plan.breaks[0]
    return PreviewTurn(*counts, first.cause, first.actor, first.place, first.lost_tokens)


class PrefixCache:
    """Every prompt that was sent, and its answer, by the digest of each beginning."""

    def __init__(self, estimate: Estimate) -> None:
        self._estimate = estimate
        self._known: set[bytes] = set()
        self.extra_tokens = 0

    async def summarize(self, request: SummaryRequest, conversation: str) -> str:
        """An engine's summary, of three quarters of the length that it may have."""
        text = _words(request.max_tokens * 3 // 4, "summary", len(request.messages))
        prompt, read = self.take(request.messages, {"role": "assistant", "content": text})
        self.extra_tokens += prompt - read
        return text

    def take(self, prompt: Sequence[Mapping[str, Any]], answer: Mapping[str, Any]) -> tuple[int, int]:
        """Tokens of a prompt, and how many of them can be read: whole blocks, and never the last token."""
        total = read = 0
        chain, fresh, is_known = b"", list[bytes](), True
        for piece, tokens in self._pieces(prompt):
            chain = blake3(chain + piece).digest()
            fresh.append(chain)
            total += tokens
            is_known = is_known and chain in self._known
            read = total if is_known else read
        for piece, _ in self._pieces([answer]):
            chain = blake3(chain + piece).digest()
            fresh.append(chain)
        self._known.update(fresh)
        return total, min(read, max(0, total - 1)) // BLOCK_TOKENS * BLOCK_TOKENS

    def _pieces(self, wires: Sequence[Mapping[str, Any]]) -> Iterator[tuple[bytes, int]]:
        """What a prompt is made of, in order: the head of a message, then each of its parts."""
        for wire in wires:
            head = {**wire, "content": None}
            so_far = self._estimate(head)
            yield to_json(head), so_far
            parts = parts_of(wire)
            for count, part in enumerate(parts, 1):
                now = self._estimate({**wire, "content": list(parts[:count])})
                yield (part.ref.image_id.encode() if isinstance(part, ImagePart) else to_json(part)), now - so_far
                so_far = now


def _screenshot(step: int) -> ImageRef:
    return ImageRef(blake3(f"preview {step}".encode()).hexdigest(), _WIDTH, _HEIGHT, "image/png", 100_000)


def _words(count: int, *seed: object) -> str:
    """So many short words, the same for the same seed, others for another."""
    name = "-".join(map(str, seed))
    start = int.from_bytes(blake3(name.encode()).digest()[:4], "big")
    return " ".join([name, *(_WORDS[(start + at * at) % len(_WORDS)] for at in range(count - 1))])
