"""Whole blocks between the cache and the memory tier, each group of layers its own."""

# torch leaves much of its types open.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from engine import torchvision_ops

pytestmark = pytest.mark.vllm
BLOCKS, ROWS = 5, 4
# Bytes of a block: the first two tensors are one group's, the third is another's.
SIZES = (8, 8, 16)


class Region:
    """The memory tier as vLLM lays it out: in each row all tensors side by side."""

    def __init__(self) -> None:
        self.memory = torch.zeros(ROWS * sum(SIZES), dtype=torch.int8)
        self._at = 0
        self.is_gone = False

    def create_next_worker_view(self, tensor_page_size: int) -> torch.Tensor:
        view = torch.as_strided(self.memory, (ROWS, tensor_page_size), (sum(SIZES), 1), self._at)
        self._at += tensor_page_size
        return view

    def cleanup(self) -> None:
        self.is_gone = True


def gpu(blocks: list[int], *sizes: int) -> Any:
    return SimpleNamespace(block_ids=np.array(blocks, dtype=np.int32), group_sizes=sizes)


def cpu(*rows: int) -> Any:
    return SimpleNamespace(block_ids=np.array(rows, dtype=np.int32))


def test_each_group_s_blocks_go_to_their_rows_and_come_back_elsewhere() -> None:
    torchvision_ops.declare_missing()
    from engine.vllm.block_tiers.copying import CopyingWorker

    tensors = [
        torch.tensor([[10 * number + block] * size for block in range(BLOCKS)], dtype=torch.int8)
        for number, size in enumerate(SIZES)
    ]
    caches = SimpleNamespace(
        tensors=[SimpleNamespace(tensor=one, page_size_bytes=one.shape[1]) for one in tensors],
        group_data_refs=[
            [SimpleNamespace(tensor_idx=0), SimpleNamespace(tensor_idx=1)],
            [SimpleNamespace(tensor_idx=2)],
        ],
    )
    region = Region()
    worker = CopyingWorker(caches, region)  # pyright: ignore[reportArgumentType]
    # Blocks 1 and 2 of the first group to rows 0 and 3, block 4 of the second to row 2.
    assert worker.submit_store(7, gpu([1, 2, 4], 2, 1), cpu(0, 3, 2))
    (stored,) = worker.get_finished()
    assert (stored.job_id, stored.success, stored.transfer_size) == (7, True, 2 * 16 + 16)
    rows = region.memory.view(ROWS, -1)
    assert rows[0].tolist() == [1] * 8 + [11] * 8 + [0] * 16
    assert rows[2].tolist() == [0] * 16 + [24] * 16
    assert rows[3].tolist() == [2] * 8 + [12] * 8 + [0] * 16
    for one in tensors:
        one.zero_()
    worker.submit_load(8, cpu(3, 2), gpu([0, 3], 1, 1))
    worker.submit_load(9, cpu(0), gpu([4], 1, 0))
    assert [done.job_id for done in worker.get_finished()] == [8, 9]
    assert [one[:, 0].tolist() for one in tensors] == [[2, 0, 0, 0, 1], [12, 0, 0, 0, 11], [0, 0, 0, 24, 0]]
    worker.shutdown()
    assert region.is_gone
