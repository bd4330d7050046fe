"""Times and their bins."""

from __future__ import annotations

from pathlib import Path

import pytest

from metrics.dashboard.overview import overview
from metrics.dashboard.window import RANGES, window
from metrics.kv_mirror import Eviction, Owner
from metrics.records.queries import Filter, open_records
from metrics.records.store import RecordStore

NOW = 1_790_000_123.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "ledger.db"
    RecordStore(file, 5.0).close()
    return file


@pytest.mark.parametrize("name", RANGES)
def test_a_range_ends_with_the_bin_of_now(path: Path, name: str) -> None:
    with open_records(path) as records:
        found = window(records, name, NOW)
    assert found.until - found.bin_seconds <= NOW < found.until
    assert found.since % found.bin_seconds == 0
    assert 1 <= found.bins <= 72


def test_evicted_blocks_stand_in_their_bin_and_are_their_tenants(path: Path) -> None:
    mine, theirs = Owner("acme", "a"), Owner("globex", "b")
    evicted = [
        Eviction(1, NOW - 70, b"1", None, (mine,), 16, 1),
        Eviction(2, NOW - 70, b"2", None, (theirs,), 16, 1),
        Eviction(3, NOW - 7200, b"3", None, (mine,), 16, 1),
    ]
    with open_records(path) as records:
        hour = window(records, "1h", NOW)
        every = overview(records, hour, Filter(), evicted)["evictions"]["blocks"]
        own = overview(records, hour, Filter(tenant="acme"), evicted)["evictions"]["blocks"]
        unknown = overview(records, hour, Filter())["evictions"]["blocks"]
    start = (NOW - 70) // 60 * 60
    assert every == [{"start": start, "blocks": 2, "tokens": 32}]
    assert own == [{"start": start, "blocks": 1, "tokens": 16}]
    assert unknown is None
