"""How fast is the ledger with 100,000 turns in it, and how large?

    python -m tests.bench.ledger [--turns 100000] [--json FILE]

Conversations of 60 turns and 180 messages with an image each, as a GUI agent makes them. One process writes them;
another, whose memory is empty, looks up the next turn of some hundred (cold), then again those it has just seen (warm).
Its figures are wall times: give it a quiet machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from app.collector import COLLECTOR
from context.images.base import ImageRef
from context.ledger import Ledger, NewReply, NewTurn
from context.plan import SentMessage
from context.transcript import ImagePart, Message, Transcript, transcript

_KEY = b"bench"
_TURNS = 60
_LOOK_UPS = 400
_TOOLS = tuple(
    {"type": "function", "function": {"name": f"tool_{number}", "description": "what it does " * 30}}
    for number in range(10)
)


def conversation(number: int) -> Transcript:
    """System, then for each turn a tool's result with a screenshot, a user's words and the reply."""
    wires: list[dict[str, Any]] = [
        {"role": "system", "content": f"You work on a computer. {number} " + "Rules. " * 150}
    ]
    for turn in range(_TURNS):
        shot = ImagePart(ImageRef(f"{number * _TURNS + turn:064x}", 1280, 800, "image/png", 210_000), "high")
        text = {"type": "text", "text": f"screenshot {number}.{turn}"}
        wires.append({"role": "tool", "tool_call_id": f"call_{number}_{turn}", "content": [text, shot]})
        wires.append({"role": "user", "content": f"Go on with step {turn}. " + "words " * 20})
        arguments = json.dumps({"x": turn, "y": number, "why": "because of this " * 10})
        call = {
            "id": f"call_{number}_{turn + 1}",
            "type": "function",
            "function": {"name": "t", "arguments": arguments},
        }
        wires.append({"role": "assistant", "content": None, "tool_calls": [call]})
    return transcript(wires, _KEY)


async def fill(path: Path, turns: int) -> dict[str, Any]:
    """Write them."""
    ledger = await Ledger.open(path)
    commits: list[float] = []
    replies: list[float] = []
    for number in range(turns // _TURNS):
        read = conversation(number)
        sent = tuple(SentMessage(message.wire, index) for index, message in enumerate(read.messages))
        parent = None
        for end in range(3, len(read) + 1, 3):
            new = NewTurn(f"c{number}", end // 3, parent, read.messages[:end], read.chain[end - 1], sent[:end], _TOOLS)
            seconds, turn = await timed(lambda new=new: ledger.commit("tenant", new))
            commits.append(seconds)
            reply = NewReply(read.messages[end], sent[end], read.chain[end])
            seconds, turn = await timed(lambda turn=turn, reply=reply: ledger.reply("tenant", turn, reply))
            replies.append(seconds)
            parent = turn.id
    stats = ledger.stats()
    assert stats.failures == 0
    await ledger.close()
    return {
        "turns": stats.turns,
        "commit_seconds": spread(commits),
        "reply_seconds": spread(replies),
        "file_bytes": stats.file_bytes,
        "memory_bytes": stats.memory_bytes,
        "rss_bytes": rss_bytes(),
    }


async def look_up(path: Path, turns: int) -> dict[str, Any]:
    """Look them up, in a process that has just begun."""
    before = rss_bytes()
    started = time.perf_counter()
    ledger = await Ledger.open(path)
    opening = time.perf_counter() - started
    step = max(1, turns // _TURNS // _LOOK_UPS)
    # 178 messages that are known, and two that are new. Half of the clients write all of them as before.
    numbers = range(0, turns // _TURNS, step)[:_LOOK_UPS]
    same = [continued(conversation(number)) for number in numbers]
    respelled = [
        continued(transcript([reworded(one.wire) for one in conversation(n + 1).messages], _KEY)) for n in numbers
    ]
    # As the gateway does once it has started.
    COLLECTOR.begin()
    cold, cold_cpu, collecting = await spreads(ledger, same)
    read, read_cpu, collecting_read = await spreads(ledger, respelled)
    assert ledger.stats().store_hits == len(same) + len(respelled)
    chains = [chain for chain, _ in respelled]
    # Those that are still in memory.
    recent = chains[-50:]
    warm = [(await timed(lambda chain=chain: ledger.find("tenant", chain)))[0] for _ in range(20) for chain in recent]
    stats = ledger.stats()
    assert (stats.hits, stats.failures) == (len(warm), 0)
    unknown = [tuple(os.urandom(32) for _ in range(180)) for _ in range(200)]
    misses = [(await timed(lambda chain=chain: ledger.find("tenant", chain)))[0] for chain in unknown]
    await ledger.close()
    return {
        "open_seconds": opening,
        "cold_seconds": cold,
        "cold_cpu_seconds": cold_cpu,
        "cold_respelled_seconds": read,
        "cold_respelled_cpu_seconds": read_cpu,
        # Behind a request, and so in none of the above.
        "collector_seconds_each": (collecting + collecting_read) / (len(same) + len(respelled)),
        "warm_seconds": spread(warm),
        "miss_seconds": spread(misses),
        "memory_bytes": stats.memory_bytes,
        "rss_bytes": rss_bytes(),
        "rss_before_bytes": before,
    }


def continued(known: Transcript) -> tuple[tuple[bytes, ...], tuple[Message, ...]]:
    """The chain and messages of a request that goes on from there."""
    return (*known.chain[:178], os.urandom(32), os.urandom(32)), known.messages


def reworded(wire: Mapping[str, Any]) -> dict[str, Any]:
    """A message with the same meaning and other bytes."""
    return dict(reversed(list(wire.items())))


async def spreads(
    ledger: Ledger, requests: Sequence[tuple[tuple[bytes, ...], tuple[Message, ...]]]
) -> tuple[Mapping[str, float], Mapping[str, float], float]:
    """Wall and processor seconds of finding each, and seconds of the collector behind all of them."""
    wall: list[float] = []
    cpu: list[float] = []
    collecting = 0.0
    for chain, came in requests:
        began = time.process_time()
        wall.append((await timed(lambda chain=chain, came=came: ledger.find("tenant", chain, came)))[0])
        cpu.append(time.process_time() - began)
        ended = time.perf_counter()
        COLLECTOR.look()
        collecting += time.perf_counter() - ended
    return spread(wall), spread(cpu), collecting


async def timed(call: Callable[[], Coroutine[Any, Any, Any]]) -> tuple[float, Any]:
    started = time.perf_counter()
    result = await call()
    return time.perf_counter() - started, result


def spread(seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {name: ordered[int(len(ordered) * share)] for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))}


def rss_bytes() -> int:
    """What this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.ledger")
    parser.add_argument("--turns", type=int, default=100_000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--look-up", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.look_up:
        print(json.dumps(asyncio.run(look_up(options.look_up, options.turns))))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        result: dict[str, Any] = {"fill": asyncio.run(fill(path, options.turns))}
        command = [sys.executable, "-m", "tests.bench.ledger", "--turns", str(options.turns), "--look-up", str(path)]
        result["look_up"] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    text = json.dumps(result, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text)


if __name__ == "__main__":
    main()
