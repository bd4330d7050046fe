"""Recorded turns as files: bodies without image bytes, token ids, block hashes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from context.conversations import Conversations
from context.errors import ConfigError
from context.ledger import Ledger
from context.policies.choice import load_policy
from engine.fake.core import FakeCore
from metrics.exports.tokens import CheckpointTokens, EngineTokens, find_images
from metrics.exports.turns import ExportedTurn, recorded_turns
from metrics.exports.write import Format, write
from metrics.records.record import TurnRecord
from metrics.records.store import RecordStore
from metrics.replay.figures import TurnFigures
from metrics.replay.images import trace_images
from metrics.replay.options import Sizes
from metrics.replay.simulate import SimulatedSession, default_config
from metrics.replay.trace import Trace
from metrics.replay.traces import load_trace
from tests.contract.ledger_chats import assistant, converse, new_turn, system, user


@asynccontextmanager
async def _ledger(folder: Path) -> AsyncGenerator[Ledger]:
    ledger = await Ledger.open(folder / "ledger.db")
    try:
        yield ledger
    finally:
        await ledger.close()


def _tokens() -> CheckpointTokens:
    return CheckpointTokens(FakeCore(replace(default_config(), max_images_per_prompt=10_000)))


def _turns(folder: Path, tenant: str | None = None) -> list[ExportedTurn]:
    with recorded_turns(folder / "ledger.db", tenant) as turns:
        return list(turns)


async def _lines(folder: Path, format: Format, **options: Any) -> list[dict[str, Any]]:
    file = folder / "out.jsonl"
    await write(_turns(folder), format, file, _tokens(), **options)
    return [json.loads(line) for line in file.read_text().splitlines()]


def _record(turn: ExportedTurn, before: int, **more: Any) -> TurnRecord:
    return TurnRecord(
        id=turn.id - before,
        request_id=f"r{turn.number}",
        tenant=turn.tenant,
        conversation=turn.conversation,
        number=turn.number,
        model="demo",
        policy="stable",
        policy_version="1",
        stream=True,
        outcome="completed",
        **more,
    )


async def test_turns_come_in_the_order_of_their_time_and_by_tenant(tmp_path: Path) -> None:
    async with _ledger(tmp_path) as ledger:
        await converse(ledger, 3, "c1", "alice")
        await converse(ledger, 2, "c2", "bob")
        await ledger.flush()
        # While it is open: a gateway may run.
        turns = _turns(tmp_path)
    assert [(one.tenant, one.conversation, one.number) for one in turns] == [
        *[("alice", "c1", number) for number in (1, 2, 3)],
        *[("bob", "c2", number) for number in (1, 2)],
    ]
    assert [one.id for one in turns] == sorted(one.id for one in turns)
    assert [len(one.sent) for one in turns] == [2, 4, 6, 2, 4]
    assert turns[2].reply == assistant("c1: answer 2")
    assert {one.tenant for one in _turns(tmp_path, "bob")} == {"bob"}
    assert _turns(tmp_path, "nobody") == []


async def test_bodies_hold_references_in_place_of_images(tmp_path: Path) -> None:
    async with _ledger(tmp_path) as ledger:
        tools: tuple[dict[str, Any], ...] = ({"type": "function", "function": {"name": "click", "parameters": {}}},)
        await ledger.commit("alice", new_turn([system(), user("what is this", 7)], tenant="alice", tools=tools))
    [line] = await _lines(tmp_path, "openai")
    text, image = line["body"]["messages"][1]["content"]
    assert text == {"type": "text", "text": "what is this"}
    assert image == {
        "type": "image_ref",
        "image_id": f"{7:064x}",
        "media_type": "image/png",
        "size_bytes": 1007,
        "width": 320,
        "height": 200,
    }
    assert line["body"]["tools"][0]["function"]["name"] == "click"
    assert (line["reply"], line["usage"], line["outcome"]) == (None, None, None)
    assert "base64" not in (tmp_path / "out.jsonl").read_text()


async def test_a_turn_has_the_record_that_was_made_for_it(tmp_path: Path) -> None:
    async with _ledger(tmp_path) as ledger:
        await converse(ledger, 3, "c1", "alice")
    first, second, third = _turns(tmp_path)
    store = RecordStore(tmp_path / "ledger.db", 1.0)
    figures = {"prompt_tokens": 100, "read_tokens": 64, "write_tokens": 36, "uncached_tokens": 0}
    store.write(
        [
            _record(first, 5, reuse="0.05", reuse_by="client"),
            # The same turn, asked for again later, and one that was refused.
            replace(_record(first, -7), request_id="again"),
            replace(_record(second, 9), request_id="refused", outcome="refused"),
            _record(second, 11, write_derived=True, **figures, total_seconds=1.5, cause="client_edit", actor="client"),
        ]
    )
    store.close()
    lines = await _lines(tmp_path, "openai")
    assert [line["request_id"] for line in lines] == ["r1", "r2", f"turn-{third.id}"]
    assert lines[1]["body"]["model"] == "demo"
    assert lines[1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 64
    # Nobody has said what was written.
    assert lines[1]["usage"]["prompt_tokens_details"]["created_cache_tokens"] is None
    assert lines[1]["usage"]["total_tokens"] is None
    assert lines[1]["timing"]["total_seconds"] == 1.5
    assert lines[1]["break"]["cause"] == "client_edit"
    assert lines[0]["break"] is None
    # Whether an answer was made of approximate KV.
    assert [line["reuse"] for line in lines] == [{"allowed": "0.05", "by": "client"}, None, None]


async def test_token_ids_tell_images_of_one_size_apart(tmp_path: Path) -> None:
    async with _ledger(tmp_path) as ledger:
        for number in (1, 2):
            await ledger.commit("alice", new_turn([user("look", number)], conversation=f"c{number}", tenant="alice"))
    one, other = await _lines(tmp_path, "token_ids")
    assert one["input_length"] == other["input_length"] == len(one["token_ids"])
    assert [span["type"] for span in one["spans"]] == ["text", "image", "text"]
    image = one["spans"][1]
    assert image["image_id"] == f"{1:064x}"
    assert one["spans"][0]["end"] == image["start"]
    assert one["spans"][2] == {"type": "text", "start": image["end"], "end": one["input_length"]}
    inside = slice(image["start"], image["end"])
    assert len(set(one["token_ids"][inside])) == 1
    assert one["token_ids"][: image["start"]] == other["token_ids"][: image["start"]]
    assert one["token_ids"][inside] != other["token_ids"][inside]
    assert all(0 <= id < 2**32 for id in one["token_ids"])
    assert one["tags"] == {"policy": "", "conversation": "c1", "turn": "1", "part": "prompt"}


async def test_block_hashes_are_equal_where_everything_before_is(tmp_path: Path) -> None:
    async with _ledger(tmp_path) as ledger:
        await converse(ledger, 3, "c1", "alice")
        await converse(ledger, 1, "c1", "bob")
    lines = await _lines(tmp_path, "mooncake", block_tokens=16)
    assert [set(line) for line in lines] == [
        {"timestamp", "input_length", "output_length", "hash_ids", "block_size"}
    ] * 4
    for before, now in pairwise(lines[:3]):
        full = before["input_length"] // 16
        assert now["hash_ids"][:full] == before["hash_ids"][:full]
        # A block that is not full is another one once it is.
        assert not set(now["hash_ids"][full:]) & set(before["hash_ids"])
        assert len(now["hash_ids"]) == -(-now["input_length"] // 16)
    # Another tenant's cache is another cache.
    assert not set(lines[3]["hash_ids"]) & set(lines[0]["hash_ids"])
    assert lines[0]["timestamp"] == 0
    assert [line["timestamp"] for line in lines] == sorted(line["timestamp"] for line in lines)


async def test_replies_fill_blocks_of_their_own(tmp_path: Path) -> None:
    async with _ledger(tmp_path) as ledger:
        await converse(ledger, 2, "c1", "alice")
    first, second = await _lines(tmp_path, "mooncake", block_tokens=4, replies=True)
    assert len(first["hash_ids"]) > -(-first["input_length"] // 4)
    assert second["hash_ids"][: len(first["hash_ids"])] == first["hash_ids"]
    lines = await _lines(tmp_path, "token_ids", replies=True)
    assert [line["tags"]["part"] for line in lines] == ["prompt", "reply"] * 2
    assert lines[1]["token_ids"][: lines[0]["input_length"]] == lines[0]["token_ids"]
    assert lines[2]["token_ids"][: lines[1]["input_length"]] == lines[1]["token_ids"]
    assert len({line["request_id"] for line in lines}) == 4


async def test_the_engine_itself_gives_the_same(tmp_path: Path) -> None:
    """Asked over /tokenize it says no places: they are found by how many tokens the images are."""
    async with _ledger(tmp_path) as ledger:
        await ledger.commit("alice", new_turn([user("look", 1, 2, 1), assistant("yes"), user("again", 3)]))
    [turn] = _turns(tmp_path)
    expected = await _tokens().prompt(turn)
    asked: list[Any] = []

    async def tokenize(body: Any) -> list[int]:
        asked.append(body)
        return expected.ids

    async def load(part: Any, tenant: str) -> str:
        return f"data:image/png;base64,{part.ref.image_id[-1]}"

    count = expected.images[0].tokens if expected.images else 0
    made = await EngineTokens(tokenize, load, lambda width, height: count, "demo").prompt(turn)
    assert made == expected
    assert asked[0]["model"] == "demo"
    assert asked[0]["messages"][0]["content"][1] == {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64,1"},
    }
    unknown = await EngineTokens(tokenize, load, lambda width, height: count + 1, "demo").prompt(turn)
    assert unknown.images is None


@pytest.mark.parametrize(
    ("ids", "counts", "found"),
    [
        ([5, 9, 9, 9, 6], [3], [(1, 3)]),
        ([9, 9, 9, 9], [1, 3], [(0, 1), (1, 3)]),
        ([9, 9, 5, 9, 9], [2, 2], [(0, 2), (3, 2)]),
        ([9, 9, 5, 9, 9], [3, 1], None),
        ([9, 9, 8, 8], [2], None),
        ([1, 2, 3], [2], None),
        ([1, 2, 3], [], []),
    ],
)
def test_where_images_stand(ids: list[int], counts: list[int], found: list[tuple[int, int]] | None) -> None:
    spans = find_images(ids, [f"{at:064x}" for at in range(len(counts))], counts)
    assert (spans if spans is None else [(span.start, span.tokens) for span in spans]) == found


async def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    async with _ledger(tmp_path) as ledger:
        await converse(ledger, 2)
    file = tmp_path / "out.jsonl"

    class Broken:
        async def prompt(self, turn: ExportedTurn, *, replied: bool = False) -> Any:
            raise ConfigError("settings", "model", "cannot")

    with pytest.raises(ConfigError):
        await write(_turns(tmp_path), "token_ids", file, Broken())
    assert not [name for name in os.listdir(tmp_path) if "out" in name]
    await write(_turns(tmp_path), "openai", file, None)
    assert file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError, match="--out"):
        await write([], "openai", tmp_path / "nowhere" / "out.jsonl", None)


def test_a_data_folder_without_turns_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no gateway has served a chat"), recorded_turns(tmp_path / "ledger.db"):
        pass
    assert list(tmp_path.iterdir()) == []


async def _replayed(folder: Path, trace: Trace) -> list[TurnFigures]:
    """A replay in simulation whose turns are kept in a file."""
    async with trace_images() as images, _ledger(folder) as ledger:
        session = SimulatedSession(FakeCore(default_config()), Conversations(ledger), load_policy("stable"), images)
        return [(await session.ask(turn, turn.messages))[0] for turn in trace.turns]


def _run(module: str, *arguments: str) -> Any:
    result = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return json.loads(result.stdout)


def _read_share(figures: Sequence[TurnFigures]) -> float:
    return sum(one.read_tokens or 0 for one in figures) / sum(one.prompt_tokens or 0 for one in figures)


@pytest.mark.parametrize("spec", ["t1:steps=12", "t3"])
async def test_the_simulation_and_the_export_agree_on_every_turn(tmp_path: Path, spec: str) -> None:
    """An own count over the exported blocks: what was seen before, up to the first that was not."""
    figures = await _replayed(tmp_path, load_trace(spec, Sizes((112, 84), 0.5)))
    lines = await _lines(tmp_path, "mooncake", block_tokens=16, replies=True)
    assert [line["input_length"] for line in lines] == [one.prompt_tokens for one in figures]
    seen: set[int] = set()
    for line, one in zip(lines, figures, strict=True):
        # The last token of a prompt is always computed.
        blocks = line["hash_ids"][: (line["input_length"] - 1) // 16]
        hits = next((at for at, block in enumerate(blocks) if block not in seen), len(blocks))
        assert hits * 16 == pytest.approx(one.read_tokens, abs=16)
        seen.update(line["hash_ids"])


@pytest.mark.skipif(find_spec("prefixlens") is None, reason="prefixlens is not installed: pip install prefixlens")
@pytest.mark.parametrize("spec", ["t1:steps=12", "t3"])
async def test_prefixlens_agrees(tmp_path: Path, spec: str) -> None:
    figures = await _replayed(tmp_path, load_trace(spec, Sizes((112, 84), 0.5)))
    await _lines(tmp_path, "token_ids", replies=True)
    report = _run("prefixlens.cli", "analyze", str(tmp_path / "out.jsonl"), "--capacity-blocks", "131072", "--json")
    assert report["by_tag"]["part"]["prompt"]["hit_rate"] == pytest.approx(_read_share(figures), abs=0.02)


@pytest.mark.skipif(find_spec("kvcache_sim") is None, reason="it is not installed: pip install kvcache-simulator")
@pytest.mark.parametrize("spec", ["t1:steps=12", "t3"])
async def test_kvcache_simulator_agrees(tmp_path: Path, spec: str) -> None:
    figures = await _replayed(tmp_path, load_trace(spec, Sizes((112, 84), 0.5)))
    await _lines(tmp_path, "mooncake", block_tokens=16, replies=True)
    trace = ("--trace", str(tmp_path / "out.jsonl"), "--model", "qwen3-8b", "--backend", "python", "--format", "json")
    report = _run("kvcache_sim", "run", *trace)
    # It measures the second half.
    assert report["hitRateCeiling"] == pytest.approx(_read_share(figures[len(figures) // 2 :]), abs=0.02)
