"""What is asked of the records is what the records say, wherever the sums come from."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from context.errors import ConfigError
from metrics.records import queries
from metrics.records.buckets import BUCKETS
from metrics.records.figures import Split, Totals
from metrics.records.latency import latencies
from metrics.records.queries import Filter, Records, open_records
from metrics.records.record import TurnRecord
from metrics.records.schema import DAY, HOUR, NANOSECONDS
from metrics.records.store import RecordStore
from tests.unit.metrics.records.some import BEGIN, IMAGES, many, record

_MADE = many(1500, 24 * 4)
# The whole; whole days; hours; ends within an hour; within one hour; nothing.
_TIMES = [
    (None, None),
    (BEGIN // DAY * DAY + DAY, BEGIN // DAY * DAY + 3 * DAY),
    (BEGIN // HOUR * HOUR + 2 * HOUR, BEGIN // HOUR * HOUR + 40 * HOUR),
    (_MADE[100].id, _MADE[-100].id),
    (_MADE[700].id, _MADE[704].id),
    (_MADE[3].id, None),
    (None, _MADE[-3].id),
    (BEGIN + 400 * DAY, None),
]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Records]:
    path = tmp_path_factory.mktemp("records") / "ledger.db"
    store = RecordStore(path, 0.5)
    store.write(_MADE)
    store.close()
    with open_records(path) as opened:
        yield opened


def _of(since: int | None, until: int | None, **names: str) -> Filter:
    # Through nanoseconds: a double of seconds holds microseconds, and records are farther apart.
    return Filter(
        None if since is None else since / NANOSECONDS, None if until is None else until / NANOSECONDS, **names
    )


def _chosen(of: Filter) -> list[TurnRecord]:
    return [
        one
        for one in _MADE
        if of.first <= one.id < of.end
        and all(getattr(of, name) in (None, getattr(one, name)) for name in ("tenant", "model", "policy"))
    ]


def _summed(chosen: list[TurnRecord]) -> dict[str, Any]:
    """What the sums of records are, by what is said of them in words."""
    told = [one for one in chosen if one.read_tokens is not None and one.prompt_tokens is not None]
    return {
        "requests": len(chosen),
        "reported": len(told),
        "unreported": sum(one.outcome == "completed" and one.read_tokens is None for one in chosen),
        "prompt_tokens": sum(one.prompt_tokens or 0 for one in told),
        "read_tokens": sum(one.read_tokens or 0 for one in told),
        "write_tokens": sum(one.write_tokens or 0 for one in told),
        "derived_write_tokens": sum((one.write_tokens or 0) * one.write_derived for one in told),
        "lost_tokens": sum(one.lost_tokens or 0 for one in chosen),
        "images": sum(one.images for one in chosen),
        "answered": sum(one.first_token_seconds is not None for one in chosen),
        "priced": sum(one.cost is not None for one in chosen),
        "cost_sum": sum(one.cost or 0 for one in chosen),
    }


def _of_totals(totals: Totals) -> dict[str, Any]:
    return {name: getattr(totals, name) for name in _summed([])}


@pytest.mark.parametrize(("since", "until"), _TIMES)
@pytest.mark.parametrize("names", [{}, {"tenant": "bob"}, {"model": "large", "policy": "stable"}, {"tenant": "nobody"}])
def test_totals(records: Records, since: int | None, until: int | None, names: dict[str, str]) -> None:
    of = _of(since, until, **names)
    assert _of_totals(queries.totals(records, of)) == _summed(_chosen(of))


_KEYS: dict[Split, Callable[[TurnRecord], str]] = {
    "model": lambda one: one.model,
    "policy": lambda one: one.policy,
    "tenant": lambda one: one.tenant,
    "multi_turn": lambda one: "multi turn" if one.number > 1 else "single turn",
    "multimodal": lambda one: "text" if one.text_only else "multimodal",
    "eviction": lambda one: "eviction" if one.image_eviction else "no eviction",
    "summary": lambda one: "summary" if one.summary else "no summary",
    "outcome": lambda one: one.outcome,
    "turn": lambda one: _range("turn", one.number),
    "images": lambda one: _range("images", one.images),
    "visual_tokens": lambda one: _range("visual_tokens", one.visual_tokens),
    "prompt_length": lambda one: _range("prompt_length", one.prompt_tokens),
}


def _range(split: str, value: int | None) -> str:
    return "unknown" if value is None else BUCKETS[split].label(BUCKETS[split].low_of(value))


@pytest.mark.parametrize("splits", [[split] for split in _KEYS] + [["model", "turn"], ["turn", "eviction", "policy"]])
@pytest.mark.parametrize(("since", "until"), _TIMES)
def test_every_split(records: Records, splits: list[Split], since: int | None, until: int | None) -> None:
    of = _of(since, until, tenant="alice")
    found = {group.values: _of_totals(group.totals) for group in queries.by(records, splits, of)}
    apart: dict[tuple[str, ...], list[TurnRecord]] = {}
    for one in _chosen(of):
        apart.setdefault(tuple(_KEYS[split](one) for split in splits), []).append(one)
    assert found == {key: _summed(chosen) for key, chosen in apart.items()}


def test_there_is_a_key_for_every_split() -> None:
    assert set(_KEYS) == set(queries.SPLITS)


def test_groups_stand_in_their_order(records: Records) -> None:
    lows = [group.lows[0] for group in queries.by_turn(records)]
    assert lows == sorted(BUCKETS["turn"].lows)
    assert [group.values[0] for group in queries.by(records, ["visual_tokens"])][-1] == "unknown"


@pytest.mark.parametrize("bin_seconds", [60, 3600, 6 * 3600, 86_400])
def test_over_time(records: Records, bin_seconds: int) -> None:
    of = _of(_MADE[200].id, _MADE[900].id)
    found = {one.start: one.totals.requests for one in queries.over_time(records, bin_seconds, of)}
    unit = bin_seconds * NANOSECONDS
    assert found == Counter(one.id // unit * bin_seconds for one in _chosen(of))


def test_causes_the_most_lost_first(records: Records) -> None:
    found = queries.causes(records, Filter(tenant="bob"))
    lost: Counter[Any] = Counter()
    for one in _chosen(Filter(tenant="bob")):
        if one.cause is not None:
            lost[one.cause, one.actor] += one.lost_tokens or 0
    assert {(one.cause, one.actor): one.lost_tokens for one in found} == lost
    assert [one.lost_tokens for one in found] == sorted(lost.values(), reverse=True)


def test_read_shares(tmp_path: Path) -> None:
    reads = [0, 0, 1, 99, 100, 101, 999, 1000, None]
    store = RecordStore(tmp_path / "ledger.db", 0.5)
    store.write([record(BEGIN + at, prompt_tokens=1000, read_tokens=read) for at, read in enumerate(reads)])
    store.close()
    with open_records(tmp_path / "ledger.db") as opened:
        shares = queries.read_shares(opened)
    assert [(one.low, one.high) for one in shares[:3]] == [(0, 0), (0, 0.1), (0.1, 0.2)]
    assert [one.requests for one in shares] == [2, 2, 2, 0, 0, 0, 0, 0, 0, 0, 2]


def test_conversations(records: Records) -> None:
    found = queries.conversations(records, Filter(tenant="alice"), limit=5)
    latest: dict[str, int] = {}
    for one in _chosen(Filter(tenant="alice")):
        latest[one.conversation] = one.id
    order = sorted(latest, key=lambda name: -latest[name])
    assert [one.conversation for one in found] == order[: len(found)]
    assert found
    for one in found:
        turns = [turn for turn in _chosen(Filter(tenant="alice")) if turn.conversation == one.conversation]
        assert (one.totals.requests, one.turns) == (len(turns), max(turn.number for turn in turns))
        assert set(one.models) == {turn.model for turn in turns}
        kept = queries.conversation_turns(records, "alice", one.conversation)
        assert [turn.id for turn in kept] == [turn.id for turn in turns]
    pages = [one.conversation for one in found]
    while found:
        found = queries.conversations(records, Filter(tenant="alice"), limit=5, before=found[-1].last_record)
        pages += [one.conversation for one in found]
    assert pages == order


def test_images(records: Records) -> None:
    found = {one.image_id: one for one in queries.images(records, Filter(tenant="bob"))}
    chosen = _chosen(Filter(tenant="bob"))
    assert found.keys() == set(IMAGES)
    for image, totals in found.items():
        turns = [one for one in chosen if image in one.image_ids]
        assert (totals.turns, totals.occurrences) == (len(turns), len(turns))
        assert totals.conversations == len({(one.conversation, one.model, one.policy) for one in turns})
        latest = queries.turns_of_image(records, "bob", image, limit=3)
        assert [one.id for one in latest] == [one.id for one in turns[:-4:-1]]


def test_evictions(records: Records) -> None:
    found = queries.evictions(records, Filter(tenant="bob"), limit=10)
    evicting = [one.id for one in _chosen(Filter(tenant="bob")) if one.image_eviction]
    assert [one.id for one in found] == evicting[:-11:-1]


@pytest.mark.parametrize("split", [None, "policy"])
@pytest.mark.parametrize("seed", range(3))
def test_percentiles_are_near_those_of_all_times(tmp_path: Path, split: Split | None, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311
    made = [
        record(
            BEGIN + at * DAY // 700,
            policy=rng.choice(["a", "b"]),
            first_token_seconds=rng.lognormvariate(-2, 1) if at % 3 else None,
            total_seconds=rng.lognormvariate(1, 0.5),
        )
        for at in range(3000)
    ]
    _write(tmp_path, made)
    since = made[777].id
    with open_records(tmp_path / "ledger.db") as opened:
        found = latencies(opened, _of(since, None), split)
    assert [one.values for one in found] == ([()] if split is None else [("a",), ("b",)])
    for one in found:
        chosen = [turn for turn in made if turn.id >= since and one.values in ((), (turn.policy,))]
        assert one.requests == len(chosen)
        for kind, told in (("first_token_seconds", one.first_token), ("total_seconds", one.total)):
            times = sorted(time for turn in chosen if (time := getattr(turn, kind)) is not None)
            assert told is not None
            for share, value in ((0.5, told.p50), (0.9, told.p90), (0.99, told.p99)):
                assert value == pytest.approx(times[int(share * len(times))], rel=0.13)


def test_no_times_no_percentiles(tmp_path: Path) -> None:
    _write(tmp_path, [record(first_token_seconds=None, total_seconds=0.5)])
    with open_records(tmp_path / "ledger.db") as opened:
        (found,) = latencies(opened, Filter())
    assert found.first_token is None
    assert found.total is not None
    assert 0.4 < found.total.p50 < 0.65


def test_who_lost_blocks_and_who_paid(tmp_path: Path) -> None:
    def paid(at: int, number: int, lost: int, whose: str | None, image: str | None) -> TurnRecord:
        changes = {"cause": "engine_eviction", "actor": "engine", "lost_tokens": lost, "number": number}
        return record(BEGIN + at, **changes, evicted_conversation=whose, evicted_image=image, evicted_tokens=lost)

    other = record(BEGIN + 9, cause="template", actor="template", lost_tokens=999, image_eviction=True)
    _write(
        tmp_path,
        [paid(1, 3, 64, "c1", IMAGES[0]), paid(2, 5, 32, "c1", IMAGES[0]), paid(3, 6, 48, "c2", None), other],
    )
    with open_records(tmp_path / "ledger.db") as opened:
        first, second = queries.evicted(opened)
        assert queries.evicted(opened, Filter(tenant="nobody")) == []
    assert (first.conversation, first.image_id, first.turns, first.lost_tokens) == ("c1", IMAGES[0], 2, 96)
    assert (first.paid_by, first.paid_turn) == ("c1", 5)
    assert (second.conversation, second.image_id, second.paid_turn, second.lost_tokens) == ("c2", None, 6, 48)


def _write(folder: Path, records: list[TurnRecord]) -> None:
    store = RecordStore(folder / "ledger.db", 0.5)
    store.write(records)
    store.close()


def test_heaps_hold_whole_conversations(records: Records) -> None:
    heaps = queries.heaps_of_conversations(records)
    for policy in ("stable", "batched"):
        own = [heap for heap in heaps if heap.policy == policy]
        told = _summed(_chosen(Filter(policy=policy)))
        assert sum(heap.prompt_tokens for heap in own) == told["prompt_tokens"]
        assert sum(heap.read_tokens for heap in own) == told["read_tokens"]


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        open_records(tmp_path / "nothing.db")
    (tmp_path / "words.db").write_text("words " * 500)
    with pytest.raises(ConfigError, match=r"words\.db: is damaged, or no file of a gateway's"):
        open_records(tmp_path / "words.db")
    (tmp_path / "empty.db").touch()
    with pytest.raises(ConfigError, match="holds no records"):
        open_records(tmp_path / "empty.db")


def test_nothing_yet(tmp_path: Path) -> None:
    RecordStore(tmp_path / "ledger.db", 0.5).close()
    with open_records(tmp_path / "ledger.db") as opened:
        assert queries.totals(opened) == Totals()
        assert queries.span(opened) is None
        assert queries.by_turn(opened) == queries.causes(opened) == queries.conversations(opened) == []
        assert sum(one.requests for one in queries.read_shares(opened)) == 0
