"""Blocks between memory and files, beside the scheduler: jobs that always end, and no more waiting than is allowed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engine import torchvision_ops
from engine.vllm.block_tiers.files import BlockFiles
from tests.unit.engine.block_tiers.test_files import BLOCK, ROOM, key

pytestmark = pytest.mark.vllm
ROWS, WAITING = 6, 2


class Tier:
    """A file tier over a small memory: block n in row n."""

    def __init__(self, folder: Path) -> None:
        torchvision_ops.declare_missing()
        from engine.vllm.block_tiers.file_tier import FileTier

        self.rows: Any = np.arange(ROWS, dtype=np.int8)[:, None].repeat(BLOCK, axis=1)
        self.files = BlockFiles(folder, ROOM, "model")
        self.tier: Any = FileTier(None, memoryview(self.rows), self.files, WAITING)

    def store(self, job: int, *numbers: int) -> None:
        self.tier.submit_store(_job(job, numbers, numbers))

    def load(self, job: int, *places: tuple[int, int]) -> None:
        self.tier.submit_load(_job(job, [number for number, _ in places], [row for _, row in places]))

    def ended(self) -> dict[int, tuple[bool, list[bytes]]]:
        self.tier.drain_jobs()
        return {job.job_id: (job.success, sorted(job.successful_keys)) for job in self.tier.get_finished_jobs()}

    def finds(self, number: int) -> str:
        return self.tier.lookup(key(number), None).name


def _job(job: int, numbers: Any, rows: Any) -> Any:
    return SimpleNamespace(job_id=job, keys=[key(number) for number in numbers], chunk_ids=np.array(rows))


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[Tier]:
    made = Tier(tmp_path / "blocks")
    yield made
    made.tier.shutdown()


def test_blocks_come_back_to_other_rows_as_they_were(tier: Tier) -> None:
    assert tier.finds(1) == "MISS"
    tier.store(7, 1, 2)
    assert tier.ended() == {7: (True, [key(1), key(2)])}
    assert (tier.finds(1), tier.finds(3)) == ("HIT", "MISS")
    tier.load(8, (1, 4), (2, 5))
    assert tier.ended() == {8: (True, [key(1), key(2)])}
    assert [int(row[0]) for row in tier.rows] == [0, 1, 2, 3, 1, 2]
    assert np.array_equal(tier.rows[4], tier.rows[1])


def test_of_a_job_with_a_damaged_block_the_others_are_had(tier: Tier, tmp_path: Path) -> None:
    tier.store(1, 1)
    tier.ended()
    (path,) = (tmp_path / "blocks").glob("*.blockkv")
    path.write_bytes(path.read_bytes()[:-1])
    tier.store(2, 2)
    tier.ended()
    tier.load(3, (1, 4), (2, 5), (9, 0))
    assert tier.ended() == {3: (False, [key(2)])}
    assert (tier.finds(1), tier.finds(2)) == ("MISS", "HIT")


def test_no_more_wait_for_the_disk_than_may_and_the_rest_is_dropped(tier: Tier) -> None:
    tier.store(1, 1, 2)
    # Whether they are written by now or not: nobody was told.
    tier.store(2, 3)
    # What is there already does not wait.
    assert set(tier.ended()) == {1, 2}
    assert (tier.finds(3), tier.files.stats().dropped) == ("MISS", 1)
    tier.store(3, 3)
    tier.store(4, 1, 2)
    assert tier.ended() == {3: (True, [key(3)]), 4: (True, [])}
    assert (tier.finds(3), tier.files.stats().stored) == ("HIT", 3)


def test_a_job_that_breaks_ends_all_the_same(tier: Tier) -> None:
    tier.load(1, (1, ROWS + 5))
    tier.store(2, 1)
    tier.tier.submit_store(_job(3, [4], [ROWS + 5]))
    ended = tier.ended()
    assert ended[1] == (False, [])
    assert set(ended) == {1, 2, 3}


def test_what_waits_is_written_before_the_end(tmp_path: Path) -> None:
    tier = Tier(tmp_path / "blocks")
    tier.store(1, 1, 2)
    tier.tier.shutdown()
    again = BlockFiles(tmp_path / "blocks", ROOM, "model")
    assert key(1) in again
    assert key(2) in again
