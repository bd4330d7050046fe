"""A replay in this process: the real context code in front of the fake engine's caches, which are exact to the block.

The scripted replies are what the engine says, so that every policy has the same work.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from context.conversations import Begun, Conversations
from context.errors import RequestError
from context.layout.tail import with_tail
from context.ledger import Ledger, LedgerLimits
from context.plan import PromptPlan, SummaryRequest
from context.policies.base import Limits, Request
from context.policies.choice import LoadedPolicy
from context.visual_tokens import QWEN2_5_VL
from engine.fake import FakeConfig
from engine.fake.core import FakeCore, Usage
from engine.fake.errors import Refused
from metrics.replay.figures import EngineKind, TurnFigures
from metrics.replay.images import TENANT, TraceImages
from metrics.replay.material import words
from metrics.replay.trace import Trace, TraceTurn, Wire

# The longest session that ships fits; its blocks take some 30 MB.
KV_TOKENS, MAX_MODEL_TOKENS, _BLOCK_TOKENS = 2_097_152, 262_144, 16
# Nothing is forgotten on the way.
_LEDGER = LedgerLimits(memory_bytes=1024**3)


def default_config() -> FakeConfig:
    """The engine of a simulation: images as Qwen2.5-VL counts them, and room for a whole session."""
    return FakeConfig(
        visual=QWEN2_5_VL,
        block_tokens=_BLOCK_TOKENS,
        num_blocks=KV_TOKENS // _BLOCK_TOKENS + 1,
        max_model_tokens=MAX_MODEL_TOKENS,
        # It holds no pixels, only their sizes.
        processor_cache_bytes=1 << 60,
    )


class Simulation:
    """A target that needs no engine.

    Args:
        images: resolves the traces' images.
        policies: by the names under which sessions are asked for.
        config: the fake engine's; a trace's own limits go before.
    """

    engine: EngineKind = "simulated"

    def __init__(
        self, images: TraceImages, policies: Mapping[str, LoadedPolicy], config: FakeConfig | None = None
    ) -> None:
        self._images, self._policies, self._config = images, policies, config or default_config()

    @asynccontextmanager
    async def session(self, trace: Trace, policy: str) -> AsyncGenerator[SimulatedSession]:
        """See `Target.session`."""
        config = self._config
        config = replace(
            config,
            max_images_per_prompt=trace.limits.get("max_images", config.max_images_per_prompt),
            max_model_tokens=trace.limits.get("max_prompt_tokens", config.max_model_tokens),
        )
        ledger = await Ledger.open(None, _LEDGER)
        try:
            yield SimulatedSession(FakeCore(config), Conversations(ledger), self._policies[policy], self._images)
        finally:
            await ledger.close()

    async def floor(self, trace: Trace, messages: Sequence[Wire]) -> int | None:
        """See `Target.floor`."""
        core = FakeCore(replace(self._config, max_images_per_prompt=100_000))
        try:
            written = await self._images.written(await self._images.resolved(messages))
            return len(core.render(_body(written, trace.turns[-1].tools), for_tokenize=True).tokens)
        except (RequestError, Refused):
            return None


class SimulatedSession:
    """A conversation with the context code and a fake engine of its own."""

    def __init__(self, core: FakeCore, conversations: Conversations, policy: LoadedPolicy, images: TraceImages) -> None:
        self._core, self._conversations, self._policy, self._images = core, conversations, policy, images
        self._held: set[str] = set()
        config = core.config
        self._limits = Limits(config.max_images_per_prompt, config.max_model_tokens)

    async def ask(self, turn: TraceTurn, messages: Sequence[Wire]) -> tuple[TurnFigures, Wire]:
        """See `Session.ask`."""
        try:
            begun, summary = await self._begin(turn, messages)
            prompt = await self._written(begun.plan)
            body = {**_body(prompt, begun.plan.tools), "cache_salt": TENANT.cache_salt}
            usage = self._core.complete(body, f"turn-{turn.number}", answer=said(turn.reply))
        except RequestError as error:
            return TurnFigures(turn.number, refused=error.message), turn.reply
        except Refused as error:
            return TurnFigures(turn.number, refused=str(error)), turn.reply
        await self._conversations.accept(begun, turn.reply)
        broken = begun.plan.breaks[0].cause if begun.plan.breaks else None
        if turn.number > 1 and begun.number == 1:
            # Nothing of the conversation was found again.
            broken = "cold"
        return _figures(turn.number, usage, broken, summary), turn.reply

    async def _begin(self, turn: TraceTurn, messages: Sequence[Wire]) -> tuple[Begun, Usage | None]:
        wires = await self._images.resolved(messages)
        made: list[Usage] = []

        async def summarize(request: SummaryRequest, _: str) -> str | None:
            """A fixed text of the length that was asked for, at the price of its prompt."""
            text = words(request.max_tokens, "summary", turn.number)
            written = await self._images.written(request.messages, held=self._held)
            try:
                body = {**_body(written, request.tools), "cache_salt": TENANT.cache_salt}
                made.append(self._core.complete(body, f"summary-{turn.number}", answer=text))
            except Refused:
                return None
            return text

        begun = await self._conversations.begin(
            wires,
            turn.tools,
            tenant=TENANT.name,
            key=TENANT.key,
            policy=self._policy,
            request=Request(limits=self._limits, slot_match=await self._images.slot_match(self._policy.slot_distance)),
            # A trace is one conversation by what it is; a client that edits its history has to say so.
            conversation="replay",
            summarize=summarize,
        )
        return begun, made[0] if made else None

    async def _written(self, plan: PromptPlan) -> list[dict[str, Any]]:
        whole = with_tail(plan.sent, plan.tail)
        return await self._images.written([one.wire for one in whole], held=self._held)


def said(reply: Wire) -> str:
    """A reply as the engine's words, calls included, in the form that the built-in template shows them in."""
    from engine.fake.template import ChatMLTemplate, parse_messages

    conversation, _ = parse_messages([reply], wraps_parts=True)
    shown = ChatMLTemplate().render(conversation, None, {"add_generation_prompt": False})
    return shown.removeprefix("<|im_start|>assistant\n").removesuffix("<|im_end|>\n")


def _body(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
    return {"messages": messages} | ({"tools": list(tools), "tool_choice": "none"} if tools else {})


def _figures(number: int, usage: Usage, broken: str | None, summary: Usage | None) -> TurnFigures:
    return TurnFigures(
        turn=number,
        prompt_tokens=usage.prompt_tokens,
        read_tokens=usage.read_tokens,
        write_tokens=usage.write_tokens,
        uncached_tokens=usage.prompt_tokens - usage.read_tokens - usage.write_tokens,
        visual_tokens=usage.image_tokens,
        broken=broken,
        summary_prompt_tokens=summary.prompt_tokens if summary else 0,
        summary_computed_tokens=summary.prompt_tokens - summary.read_tokens if summary else 0,
    )
