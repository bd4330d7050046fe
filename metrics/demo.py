"""The demonstration: plays a planned session through a gateway, as a client, and keeps each turn's figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from context.errors import EngineUnavailable
from engine.demo_model.questions import is_right
from metrics.demo_plan import Change, Plan, Turn
from metrics.experiment_client import GatewayClient
from metrics.usage import Usage

_ANSWER_TOKENS = 12


@dataclass(frozen=True, slots=True)
class TurnResult:
    """One turn with what it cost. Tokens and encoder figures are the engine's; None is unreported.

    `history_tokens` is what the turn before left in the prefix cache, in whole blocks, 0 in the first turn: a turn
    that only goes on reads at least that. `write_derived`: see `Usage`.
    """

    turn: int
    change: Change
    kind: str
    question: str
    expected: str
    answer: str
    right: bool
    images: int
    new_images: int
    prompt_tokens: int | None
    read_tokens: int | None
    write_tokens: int | None
    write_derived: bool
    uncached_tokens: int | None
    visual_tokens: int | None
    history_tokens: int | None
    encoder_runs: int | None
    encoder_hits: int | None
    ttft_seconds: float
    total_seconds: float

    @property
    def computed_tokens(self) -> int | None:
        """Prompt tokens that the engine had to compute: all that it did not read."""
        if self.prompt_tokens is None or self.read_tokens is None:
            return None
        return self.prompt_tokens - self.read_tokens


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over a session. A sum is None where one of its turns is unreported. `prompt_tokens` is also what would have
    been computed without any reuse, and `images` what would have been encoded."""

    turns: int
    right: int
    images: int
    prompt_tokens: int | None
    read_tokens: int | None
    write_tokens: int | None
    uncached_tokens: int | None
    computed_tokens: int | None
    encoder_runs: int | None
    write_derived: bool


class Session:
    """A client in the middle of its conversation. Turns are asked in the order of the plan."""

    def __init__(self, client: GatewayClient, plan: Plan, engine: Mapping[str, Any]) -> None:
        """Args: `engine` is what the gateway's `/admin/state` says of its engine."""
        self._client, self._plan = client, plan
        self._model: str | None = next(iter(engine["models"]), None)
        self._block_tokens: int | None = engine["block_tokens"]
        # An engine over HTTP never does; the gateway would wait for its events each time.
        self._tells_encoder = engine["kind"] != "remote"
        self._answers: list[str] = []
        self._last_prompt_tokens: int | None = 0

    @classmethod
    async def open(cls, client: GatewayClient, plan: Plan) -> Session:
        """Begin the session on a gateway whose engine is ready.

        Raises:
            EngineUnavailable: there is no gateway, it refuses the token, or its engine is not ready.
        """
        engine: dict[str, Any] = (await client.state()).get("engine") or {}
        if not {"state", "models", "block_tokens", "kind"} <= engine.keys():
            raise EngineUnavailable("What answers there is no Stillframe gateway, or one of another version.")
        if engine["state"] != "ready":
            raise EngineUnavailable("The engine is not ready yet; try again when /health/ready says so.")
        return cls(client, plan, engine)

    async def ask(self, turn: Turn) -> TurnResult:
        """Play the next turn.

        Raises:
            EngineUnavailable: the request was refused, or the gateway broke off.
        """
        model = {} if self._model is None else {"model": self._model}
        messages = self._plan.messages(turn, self._answers)
        body = {**model, "messages": messages, "temperature": 0, "max_tokens": _ANSWER_TOKENS}
        answer = await self._client.chat("gateway", body)
        encoder = await self._client.encoder(answer.request_id) if self._tells_encoder else (None, None)
        history = _whole_blocks(self._last_prompt_tokens, self._block_tokens)
        self._answers.append(answer.text)
        self._last_prompt_tokens = answer.usage.prompt_tokens
        times = answer.ttft_seconds, answer.total_seconds
        return _result(turn, answer.text, answer.usage, history, encoder, times)


def _whole_blocks(prompt_tokens: int | None, block_tokens: int | None) -> int | None:
    """What of a prompt a longer one reads at least: its last token may have become another, or part of another."""
    if prompt_tokens == 0:
        return 0
    if prompt_tokens is None or not block_tokens:
        return None
    return (prompt_tokens - 1) // block_tokens * block_tokens


def _result(
    turn: Turn,
    answer: str,
    usage: Usage,
    history_tokens: int | None,
    encoder: tuple[int | None, int | None],
    seconds: tuple[float, float],
) -> TurnResult:
    return TurnResult(
        turn=turn.number,
        change=turn.change,
        kind=turn.question.kind,
        question=turn.question.text,
        expected=turn.question.answer,
        answer=answer,
        right=is_right(answer, turn.question.answer),
        images=len(turn.pictures),
        new_images=len(turn.new),
        prompt_tokens=usage.prompt_tokens,
        read_tokens=usage.read_tokens,
        write_tokens=usage.write_tokens,
        write_derived=usage.write_derived,
        uncached_tokens=usage.uncached_tokens,
        visual_tokens=usage.visual_tokens,
        history_tokens=history_tokens,
        encoder_runs=encoder[0],
        encoder_hits=encoder[1],
        ttft_seconds=seconds[0],
        total_seconds=seconds[1],
    )


def totals(results: Sequence[TurnResult]) -> Totals:
    """Add a session up."""
    return Totals(
        turns=len(results),
        right=sum(result.right for result in results),
        images=sum(result.images for result in results),
        prompt_tokens=_sum([result.prompt_tokens for result in results]),
        read_tokens=_sum([result.read_tokens for result in results]),
        write_tokens=_sum([result.write_tokens for result in results]),
        uncached_tokens=_sum([result.uncached_tokens for result in results]),
        computed_tokens=_sum([result.computed_tokens for result in results]),
        encoder_runs=_sum([result.encoder_runs for result in results]),
        write_derived=any(result.write_derived for result in results),
    )


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
