"""Sessions in simulation: the bars of T1, what each shape costs, and what is done about refusals and summaries."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest
from rich.console import Console

from context.policies.choice import load_policy
from metrics.replay.figures import Row, TurnFigures, row
from metrics.replay.images import trace_images
from metrics.replay.options import Sizes
from metrics.replay.report import plot, tables
from metrics.replay.run import run, with_replies
from metrics.replay.simulate import Simulation
from metrics.replay.trace import Trace
from metrics.replay.traces import load_trace

SMALL = Sizes((112, 84), 0.1)


@lru_cache(maxsize=4)
def _trace(spec: str, sizes: Sizes = SMALL) -> Trace:
    return load_trace(spec, sizes)


async def simulated(trace: Trace, *policies: str) -> list[Row]:
    async with trace_images() as images:
        loaded = [load_policy(policy) for policy in policies]
        target = Simulation(images, {policy.name: policy for policy in loaded})
        return await run(target, images, [trace], [policy.name for policy in loaded])


def _file(folder: Path, preset: str, **changes: str) -> str:
    """A preset with other values, as a file."""
    lines = Path(f"configs/policies/{preset}.yaml").read_text().splitlines()
    for key, value in {"name": "changed", **changes}.items():
        (at,) = [at for at, line in enumerate(lines) if line.strip().startswith(f"{key}:")]
        lines[at] = f"{lines[at][: len(lines[at]) - len(lines[at].lstrip())]}{key}: {value}"
    file = folder / "changed.yaml"
    file.write_text("\n".join(lines))
    return str(file)


@pytest.mark.parametrize(
    ("policy", "least", "most", "longest"),
    [
        ("stable", 0.5, 1.02, 95_000),
        ("reference", 0.5, 1.05, 20_000),
        ("batched", 0.5, 1.25, 45_000),
        ("sliding", 2.5, 3.5, 20_000),
    ],
)
async def test_t1_costs_what_the_policy_promises(policy: str, least: float, most: float, longest: int) -> None:
    (found,) = await simulated(_trace("t1", Sizes()), policy)
    assert found.computed_over_floor is not None
    assert least <= found.computed_over_floor <= most
    assert found.max_prompt_tokens is not None
    assert found.max_prompt_tokens <= longest
    assert (found.turns, found.images, found.unique_images, found.refused_turns) == (60, 1830, 52, 0)


async def test_a_client_that_keeps_three_is_cheap_where_its_cuts_are_put_off(tmp_path: Path) -> None:
    trace = _trace("t1:window=keep3_delete", Sizes())
    at_once = _file(tmp_path, "batched", defer_client_deletions="false")
    deferred, cut = await simulated(trace, "batched", at_once)
    assert deferred.computed_over_floor is not None
    assert cut.computed_over_floor is not None
    assert deferred.computed_over_floor <= 1.3
    assert cut.computed_over_floor >= 2.5
    assert cut.breaks == {"client_window": 57}
    assert deferred.floor_tokens == cut.floor_tokens


async def test_figures_add_up_and_the_floor_is_the_same_for_all() -> None:
    rows = await simulated(_trace("t1:steps=8"), "stable", "sliding", "reference")
    assert len({one.floor_tokens for one in rows}) == 1
    for one in rows:
        assert one.engine == "simulated"
        assert one.prompt_tokens == (one.read_tokens or 0) + (one.write_tokens or 0) + (one.uncached_tokens or 0)
        assert one.computed_tokens == (one.write_tokens or 0) + (one.uncached_tokens or 0)
        assert one.prompt_tokens == sum(turn.prompt_tokens or 0 for turn in one.by_turn)
        assert one.ttft_seconds is None, "a simulation takes no time that means anything"
    # Nothing was evicted: the floor is the last prompt.
    assert rows[0].floor_tokens == rows[0].by_turn[-1].prompt_tokens == rows[0].max_prompt_tokens
    # 4 x 3 tokens an image, all of them in every prompt.
    assert rows[0].visual_tokens == 12 * rows[0].images


@pytest.mark.parametrize("spec", ["t2", "t3", "t5", "t5:long=on"])
async def test_what_is_lossless_breaks_nothing(spec: str) -> None:
    (found,) = await simulated(_trace(spec), "stable")
    assert found.breaks == {}
    assert found.computed_over_floor is not None
    assert found.computed_over_floor <= 1.02


async def test_changed_photos_break_and_are_named(tmp_path: Path) -> None:
    slots = _file(tmp_path, "stable", reencoded_images='"slot"')
    stable, matched = await simulated(_trace("t5:variant=b"), "stable", slots)
    assert stable.breaks == {"client_edit": 14}
    assert matched.breaks == {}


async def test_t6_misses_only_where_its_client_sums_up() -> None:
    (found,) = await simulated(_trace("t6"), "stable")
    assert [turn.turn for turn in found.by_turn if turn.broken] == [100, 150]
    assert found.breaks == {"client_window": 2}


async def test_t4_is_refused_by_the_engine_where_nothing_is_done() -> None:
    observe, stable = await simulated(_trace("t4"), "observe", "stable")
    assert [turn.turn for turn in observe.by_turn if turn.refused] == [6]
    assert observe.refused_turns == 1
    assert stable.refused_turns == 0


async def test_summaries_are_paid_for(tmp_path: Path) -> None:
    policy = _file(tmp_path, "summary", unit="turns", high="6", low="2", max_tokens="40")
    trace = _trace("t1:steps=12", Sizes((112, 84), 0.5))
    stable, found = await simulated(trace, "stable", policy)
    assert found.summaries >= 1
    assert found.breaks.get("summary") == found.summaries
    assert found.prompt_tokens == found.summary_prompt_tokens + sum(turn.prompt_tokens or 0 for turn in found.by_turn)
    assert (found.max_prompt_tokens or 0) < (stable.max_prompt_tokens or 0)


def test_replies_take_the_places_of_the_ones_that_were_written() -> None:
    trace = _trace("t2")
    told = {1: {"role": "assistant", "content": "one"}, 2: {"role": "assistant", "content": "two"}}
    sent = with_replies(trace, trace.turns[2].messages, told)
    assert [message["content"] for message in sent if message["role"] == "assistant"] == ["one", "two"]
    same = replace(
        trace, turns=tuple(replace(turn, reply={"role": "assistant", "content": "ok"}) for turn in trace.turns)
    )
    cut = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "ok"}]
    assert with_replies(same, cut, told)[1]["content"] == "two", "a client that cuts has the latest"


def test_what_was_not_reported_is_not_zero() -> None:
    turns = [TurnFigures(1, 10, 0, 8, 2), TurnFigures(2, 12, None, None, None, ttft_seconds=0.5)]
    found = row("mine", "stable", "vllm", turns, 12, (0, 0))
    assert (found.prompt_tokens, found.read_tokens, found.computed_tokens, found.computed_over_floor) == (
        22,
        None,
        None,
        None,
    )
    assert found.ttft_seconds == 0.5
    assert "?" in _shown([found])


def _shown(rows: Sequence[Row]) -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    for table in tables(rows):
        console.print(table)
    return console.export_text()


async def test_table_and_picture(tmp_path: Path) -> None:
    rows = await simulated(_trace("t1:steps=6"), "stable", "sliding")
    shown = _shown(rows)
    assert "t1:steps=6: 6 turns, floor" in shown
    for one in rows:
        (line,) = [line for line in shown.splitlines() if line.split()[:1] == [one.policy]]
        assert f"{one.prompt_tokens:,}" in line
        assert f"{one.computed_over_floor:.3f}" in line
    assert "policy_eviction 3" in shown
    assert max(map(len, shown.splitlines())) <= 80
    plot(rows, tmp_path / "rows.png")
    assert (tmp_path / "rows.png").read_bytes().startswith(b"\x89PNG")
