"""How fast are the records with a million turns in the file, and how large? What does it cost to put one?

    python -m tests.bench.records [--records 1000000] [--file FILE] [--json FILE]

Conversations of 1 to 60 turns by some tenants over thirty days, half of them with images. Its figures are wall times:
give it a quiet machine. With `--file` the file is kept, and used again where it is there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, cast

from metrics.records import queries
from metrics.records.latency import latencies
from metrics.records.queries import Filter, Records, open_records
from metrics.records.record import TurnRecord
from metrics.records.schema import NANOSECONDS
from metrics.records.store import RecordStore
from metrics.records.writer import RecordWriter
from metrics.report.base import make_report

_DAYS = 30
_END = 1_790_000_000
_TENANTS = [f"tenant-{number}" for number in range(12)]
_MODELS = ["large", "small"]
_POLICIES = ["stable", "batched", "sliding"]
_CAUSES = [
    ("client_edit", "client"),
    ("engine_eviction", "engine"),
    ("template", "template"),
    ("below_block", "engine"),
]
_BLOCK = 16


def turns(count: int, seed: int = 0) -> Iterator[TurnRecord]:
    """So many turns, or some more, conversation by conversation."""
    rng = random.Random(seed)  # noqa: S311
    number = made = 0
    while made < count:
        number += 1
        began = _END - (1 - made / count) * _DAYS * 86_400
        tenant = _TENANTS[min(int(rng.expovariate(0.4)), len(_TENANTS) - 1)]
        length = min(60, 1 + int(rng.expovariate(1 / 12)))
        pictures = rng.random() < 0.5
        images = [rng.randbytes(32).hex() for _ in range(length)] if pictures else []
        names = (f"{number:032x}", tenant, rng.choice(_MODELS), rng.choice(_POLICIES))
        made += length
        yield from conversation(rng, began, names, length, images)


def conversation(
    rng: random.Random, began: float, names: tuple[str, str, str, str], length: int, images: list[str]
) -> Iterator[TurnRecord]:
    """The turns of one conversation, two minutes apart."""
    name, tenant, model, policy = names
    prompt = rng.randrange(300, 4000)
    step, before = rng.randrange(50, 1500), 0
    for turn in range(1, length + 1):
        id = int((began + 120 * turn) * NANOSECONDS) + rng.randrange(NANOSECONDS)
        prompt += step
        expected = before // _BLOCK * _BLOCK
        lost = rng.randrange(expected + 1) if turn > 1 and rng.random() < 0.15 else 0
        cause, actor = ("cold", "client") if turn == 1 else rng.choice(_CAUSES) if lost else (None, None)
        shown = images[max(0, turn - 8) : turn]
        yield TurnRecord(
            id=id,
            request_id=f"{id:024x}",
            tenant=tenant,
            conversation=name,
            number=turn,
            model=model,
            policy=policy,
            policy_version="1",
            stream=True,
            outcome="completed" if rng.random() < 0.97 else "aborted",
            text_only=not shown,
            images=len(shown),
            unique_images=len(shown),
            new_images=min(1, len(shown)),
            encoder_runs=min(1, len(shown)),
            encoder_hits=0,
            visual_tokens=1300 * len(shown),
            prompt_tokens=prompt,
            completion_tokens=rng.randrange(400),
            read_tokens=expected - lost,
            write_tokens=prompt - expected + lost,
            uncached_tokens=0,
            expected_read=expected,
            lost_tokens=lost,
            cause=cast("Any", cause),
            actor=cast("Any", actor),
            evicted_image=shown[0] if cause == "engine_eviction" and shown else None,
            evicted_conversation=name if cause == "engine_eviction" else None,
            image_eviction=policy != "stable" and rng.random() < 0.05,
            first_token_seconds=rng.random(),
            total_seconds=1 + rng.random(),
            cost=0.001,
            image_ids=tuple(shown),
        )
        before = prompt


def fill(path: Path, count: int) -> dict[str, Any]:
    """Write so many, about in the order in which they came."""
    store = RecordStore(path, 5.0)
    made = turns(count)
    wall = cpu = 0.0
    while some := list(islice(made, 1024)):
        began, used = time.perf_counter(), time.process_time()
        store.write(some)
        wall, cpu = wall + time.perf_counter() - began, cpu + time.process_time() - used
    estimate = store.used_bytes()
    store.close()
    return {"write_seconds_each": wall / count, "write_cpu_seconds_each": cpu / count, "used_bytes_estimate": estimate}


def ask(path: Path) -> dict[str, float]:
    """Seconds of each query, the best of three: the first one may read the disk."""
    week = Filter(since=_END - 7 * 86_400 - 1234, until=_END - 321)
    hours = Filter(since=_END - 6 * 3600, until=_END)
    one = Filter(tenant=_TENANTS[1])
    taken: dict[str, float] = {}
    with open_records(path) as records:
        first = queries.conversations(records, limit=1)[0]
        image = queries.images(records, limit=1)[0]
        asked: dict[str, Callable[[Records], Any]] = {
            "totals": queries.totals,
            "totals_of_a_week": lambda r: queries.totals(r, week),
            "totals_of_a_tenant": lambda r: queries.totals(r, one),
            **{f"by_{split}": lambda r, split=split: queries.by(r, [split]) for split in queries.SPLITS},
            "by_model_and_policy": lambda r: queries.by(r, ["model", "policy"]),
            "by_turn_of_a_week": lambda r: queries.by_turn(r, week),
            "over_days": lambda r: queries.over_time(r, 86_400),
            "over_six_hours": lambda r: queries.over_time(r, 6 * 3600),
            "over_hours": lambda r: queries.over_time(r, 3600),
            "over_minutes_of_six_hours": lambda r: queries.over_time(r, 60, hours),
            "causes": queries.causes,
            "read_shares": queries.read_shares,
            "conversations": queries.conversations,
            "conversations_of_a_tenant": lambda r: queries.conversations(r, one),
            "conversation_turns": lambda r: queries.conversation_turns(r, first.tenant, first.conversation),
            "images": queries.images,
            "images_of_a_tenant": lambda r: queries.images(r, one),
            "turns_of_image": lambda r: queries.turns_of_image(r, image.tenant, image.image_id),
            "evictions": queries.evictions,
            "evicted": queries.evicted,
            "latency": lambda r: latencies(r, Filter()),
            "latency_of_a_week_by_policy": lambda r: latencies(r, week, "policy"),
            "report_by_policy": lambda r: make_report(r, Filter(), [["policy"]]),
            "latest": queries.latest,
            "heaps_of_conversations": queries.heaps_of_conversations,
            "names": lambda r: queries.names(r, "tenant"),
        }
        for name, query in asked.items():
            taken[name] = min(_timed(query, records) for _ in range(3))
    return taken


def _timed(query: Callable[[Records], Any], records: Records) -> float:
    began = time.perf_counter()
    assert query(records)
    return time.perf_counter() - began


async def put(path: Path, count: int = 20_000) -> dict[str, float]:
    """Seconds that it takes the event loop to put a record."""
    made = list(islice(turns(count, 1), count))
    writer = await RecordWriter.open(path)
    taken: list[float] = []
    for record in made:
        began = time.perf_counter()
        writer.put(record)
        taken.append(time.perf_counter() - began)
        if len(taken) % 100 == 0:
            await asyncio.sleep(0.005)
    await writer.close()
    assert writer.stats().written == count
    taken.sort()
    return {"mean": sum(taken) / count, "p50": taken[count // 2], "p99": taken[count * 99 // 100]}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.records")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--file", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result: dict[str, Any] = {"records": options.records}
    with tempfile.TemporaryDirectory() as folder:
        result["put_seconds"] = asyncio.run(put(Path(folder) / "put.db"))
        path: Path = options.file or Path(folder) / "ledger.db"
        if not path.exists():
            result["fill"] = fill(path, options.records)
        with open_records(path) as records:
            tables = ("records", "rollups", "rollups_by_day", "record_conversations", "record_images")
            result["rows"] = {table: records.rows(f"SELECT count(*) FROM {table}")[0][0] for table in tables}
        result["file_bytes"] = path.stat().st_size
        result["query_seconds"] = ask(path)
    text = json.dumps(result, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text)


if __name__ == "__main__":
    main()
