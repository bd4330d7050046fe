"""What a replay found out: by turn, and by session under one policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

EngineKind = Literal["vllm", "simulated"]


@dataclass(frozen=True, slots=True)
class TurnFigures:
    """What one turn cost. None is unreported; all are None where it was refused.

    Attributes:
        turn: its number.
        prompt_tokens: the sum of the next three.
        read_tokens: came from the prefix cache.
        write_tokens: were computed and put there.
        uncached_tokens: were computed and not put there: what does not fill a block.
        visual_tokens: of the prompt, images.
        broken: why the prompt stopped extending what was sent before; None where it did not.
        ttft_seconds: until the first token.
        refused: why the turn was refused; None where it was answered.
        summary_prompt_tokens, summary_computed_tokens: of a summary that was asked for on the way, beside the turn.
    """

    turn: int
    prompt_tokens: int | None = None
    read_tokens: int | None = None
    write_tokens: int | None = None
    uncached_tokens: int | None = None
    visual_tokens: int | None = None
    broken: str | None = None
    ttft_seconds: float | None = None
    refused: str | None = None
    summary_prompt_tokens: int = 0
    summary_computed_tokens: int = 0

    @property
    def computed_tokens(self) -> int | None:
        """What was not read."""
        if self.write_tokens is None or self.uncached_tokens is None:
            return None
        return self.write_tokens + self.uncached_tokens


@dataclass(frozen=True, slots=True)
class Row:
    """One session under one policy. Tokens are summed over its turns; None where one turn did not report them.

    Attributes:
        trace, policy: which ones.
        engine: what answered.
        turns: of the session; `refused_turns` of them were refused and are in no sum.
        prompt_tokens, read_tokens, write_tokens, uncached_tokens: see `TurnFigures`; with the summaries.
        computed_tokens: what was not read: written and uncached tokens together.
        floor_tokens: the prompt of the last turn as if nothing were ever evicted, every token computed once; the same
            for every policy. None where the engine could not count it.
        computed_over_floor: `computed_tokens` over `floor_tokens`.
        breaks: turns whose prompt stopped extending what was sent before, by cause.
        ttft_seconds: mean of the turns.
        max_prompt_tokens: of any turn.
        visual_tokens: in all prompts.
        images: image parts that the client sent, in all turns.
        unique_images: different ones among them, by pixels.
        summaries, summary_prompt_tokens: how many summaries the engine was asked for, and their prompts.
        by_turn: the figures of each turn.
    """

    trace: str
    policy: str
    engine: EngineKind
    turns: int
    prompt_tokens: int | None
    read_tokens: int | None
    write_tokens: int | None
    uncached_tokens: int | None
    computed_tokens: int | None
    floor_tokens: int | None
    computed_over_floor: float | None
    breaks: Mapping[str, int]
    ttft_seconds: float | None
    max_prompt_tokens: int | None
    visual_tokens: int | None
    images: int
    unique_images: int
    refused_turns: int
    summaries: int
    summary_prompt_tokens: int
    by_turn: Sequence[TurnFigures]


def row(
    trace: str,
    policy: str,
    engine: EngineKind,
    turns: Sequence[TurnFigures],
    floor_tokens: int | None,
    images: tuple[int, int],
) -> Row:
    """Sum up a session. `images` are all image parts and the unique ones."""
    answered = [turn for turn in turns if turn.refused is None]
    extra_prompt = sum(turn.summary_prompt_tokens for turn in turns)
    extra = sum(turn.summary_computed_tokens for turn in turns)
    prompt, read = _sum([turn.prompt_tokens for turn in answered]), _sum([turn.read_tokens for turn in answered])
    write, uncached = _sum([turn.write_tokens for turn in answered]), _sum([turn.uncached_tokens for turn in answered])
    computed = None if write is None or uncached is None else write + uncached + extra
    times = [turn.ttft_seconds for turn in answered if turn.ttft_seconds is not None]
    prompts = [turn.prompt_tokens for turn in answered if turn.prompt_tokens is not None]
    return Row(
        trace=trace,
        policy=policy,
        engine=engine,
        turns=len(turns),
        prompt_tokens=None if prompt is None else prompt + extra_prompt,
        read_tokens=None if read is None else read + extra_prompt - extra,
        # A summary's prompt is counted as written as far as it was computed.
        write_tokens=None if write is None else write + extra,
        uncached_tokens=uncached,
        computed_tokens=computed,
        floor_tokens=floor_tokens,
        computed_over_floor=round(computed / floor_tokens, 4) if computed is not None and floor_tokens else None,
        breaks=dict(Counter(turn.broken for turn in turns if turn.broken is not None)),
        ttft_seconds=sum(times) / len(times) if times else None,
        max_prompt_tokens=max(prompts, default=None),
        visual_tokens=_sum([turn.visual_tokens for turn in answered]),
        images=images[0],
        unique_images=images[1],
        refused_turns=len(turns) - len(answered),
        summaries=sum(turn.summary_prompt_tokens > 0 for turn in turns),
        summary_prompt_tokens=extra_prompt,
        by_turn=turns,
    )


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
