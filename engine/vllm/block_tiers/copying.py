"""Blocks between the CPU build's paged cache and the memory tier: whole ones, as they lie.

vLLM's own worker copies between a GPU and memory and refuses a CPU. Nothing is known here of what is in a block, so the
layout of the CPU build, which is permuted by the processor, does not matter.

Source: vLLM 0.32, vllm/v1/kv_offload/cpu/gpu_worker.py::CPUOffloadingWorker.
"""

# torch and vLLM leave much of their types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUntypedBaseClass=false

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.vllm import tiers_0_32 as vllm_tiers

_Rows = NDArray[np.int8]


class CopyingWorker(vllm_tiers.OffloadingWorker):
    """Copies at once and in order, so that a transfer is over when it is submitted.

    Args:
        kv_caches: vLLM's `CanonicalKVCaches`: tensors of [blocks, bytes], and which of them each group of layers has.
        region: the memory tier; one block in each of its rows.
    """

    def __init__(self, kv_caches: Any, region: vllm_tiers.Region) -> None:
        self._region = region
        self._cache: list[_Rows] = [one.tensor.numpy() for one in kv_caches.tensors]
        self._kept: list[_Rows] = [
            region.create_next_worker_view(one.page_size_bytes).numpy() for one in kv_caches.tensors
        ]
        self._of_group = [sorted({ref.tensor_idx for ref in refs}) for refs in kv_caches.group_data_refs]
        self._finished: list[vllm_tiers.TransferResult] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self._copy(job_id, self._cache, self._kept, src_spec, src_spec.block_ids, dst_spec.block_ids)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self._copy(job_id, self._kept, self._cache, dst_spec, src_spec.block_ids, dst_spec.block_ids)

    def get_finished(self) -> list[vllm_tiers.TransferResult]:
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Nothing is under way."""

    def shutdown(self) -> None:
        self._cache, self._kept = [], []
        self._region.cleanup()

    def _copy(
        self, job_id: int, source: Sequence[_Rows], target: Sequence[_Rows], groups: Any, there: Any, here: Any
    ) -> bool:
        begun, copied = time.perf_counter(), 0
        for tensors, rows in self._parts(groups.group_sizes):
            pairs = list(zip(there[rows].tolist(), here[rows].tolist(), strict=True))
            for index in tensors:
                # A row at a time is a plain copy of memory. torch goes byte by byte over an index, and wakes threads
                # for each row: seconds, not milliseconds.
                for from_row, to_row in pairs:
                    target[index][to_row] = source[index][from_row]
                copied += len(pairs) * source[index].shape[1]
        seconds = time.perf_counter() - begun
        self._finished.append(vllm_tiers.TransferResult(job_id, True, copied, seconds))
        return True

    def _parts(self, sizes: Sequence[int]) -> Iterator[tuple[list[int], slice]]:
        """For each group of layers that has blocks in a transfer: its tensors, and where its blocks stand."""
        first = 0
        for tensors, size in zip(self._of_group, sizes, strict=True):
            if size:
                yield tensors, slice(first, first + size)
            first += size
