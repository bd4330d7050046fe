"""Blocks of the memory tier on their way to files and back, beside the scheduler.

vLLM's own file tier writes atomically, but has neither checksums nor a bound, and names files by the model's name.

Source: vLLM 0.32, vllm/v1/kv_offload/tiering/base.py::SecondaryTierManager.
"""

# vLLM leaves much of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeStubs=false, reportUntypedBaseClass=false

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, ClassVar

from engine.vllm import tiers_0_32 as vllm_tiers
from engine.vllm.block_tiers.files import BlockFiles

_READERS, _WRITERS = 2, 1
_Places = Sequence[tuple[bytes, int]]
_Move = Callable[[bytes, memoryview], bool]


class FileTier(vllm_tiers.SecondaryTierManager):
    """Every block of the memory tier also in a file, as far as the disk keeps up.

    Args:
        spec: vLLM's.
        view: the memory tier, [blocks, bytes].
        files: where to.
        max_waiting_blocks: more than these are not written: what waits cannot leave memory.
    """

    medium: ClassVar[Any] = vllm_tiers.Medium.STORAGE

    def __init__(self, spec: Any, view: memoryview, files: BlockFiles, max_waiting_blocks: int) -> None:
        super().__init__(offloading_spec=spec, primary_kv_view=view, tier_type="files")
        vllm_tiers.check_made(self, "SecondaryTierManager")
        self.files, self._max_waiting = files, max_waiting_blocks
        # Rows of a memoryview of two dimensions cannot be taken.
        self._flat = view.cast("B")
        self._waiting = 0
        self._readers = ThreadPoolExecutor(_READERS, "stillframe-blocks-read")
        self._writers = ThreadPoolExecutor(_WRITERS, "stillframe-blocks-write")
        self._jobs: set[Future[None]] = set()
        self._finished: deque[tuple[vllm_tiers.JobResult, int]] = deque()

    def lookup(self, key: Any, req_context: Any) -> Any:
        return vllm_tiers.LookupResult.HIT if key in self.files else vllm_tiers.LookupResult.MISS

    def on_new_request(self, req_context: Any) -> Any:
        return vllm_tiers.RequestOffloadingContext()

    def submit_store(self, job_metadata: Any) -> None:
        places = list(zip(job_metadata.keys, (int(row) for row in job_metadata.chunk_ids), strict=True))
        wanted = [(key, row) for key, row in places if key not in self.files]
        if self._waiting + len(wanted) > self._max_waiting:
            self.files.drop(len(wanted))
            wanted = []
        self._waiting += len(wanted)
        self._begin(self._writers, self.files.write, job_metadata.job_id, wanted, len(wanted))

    def submit_load(self, job_metadata: Any) -> None:
        places = list(zip(job_metadata.keys, (int(row) for row in job_metadata.chunk_ids), strict=True))
        self._begin(self._readers, self.files.read, job_metadata.job_id, places, 0)

    def get_finished_jobs(self) -> Iterable[Any]:
        finished: list[vllm_tiers.JobResult] = []
        while self._finished:
            result, written = self._finished.popleft()
            self._waiting -= written
            finished.append(result)
        self._jobs = {job for job in self._jobs if not job.done()}
        return finished

    def drain_jobs(self) -> None:
        wait(self._jobs)

    def shutdown(self) -> None:
        """What waits is written first."""
        self._readers.shutdown(cancel_futures=True)
        self._writers.shutdown()
        self._flat.release()
        self.files.close()

    def _begin(self, threads: ThreadPoolExecutor, move: _Move, job_id: int, places: _Places, waiting: int) -> None:
        self._jobs.add(threads.submit(self._work, move, job_id, places, waiting))

    def _work(self, move: _Move, job_id: int, places: _Places, waiting: int) -> None:
        """In a thread. Whatever happens, the job ends: what waits for one that does not would wait for ever."""
        begun, moved = time.perf_counter(), list[Any]()
        try:
            # From the end: of what is used as late, what nothing stands on goes first.
            moved += [key for key, row in reversed(places) if move(key, self._row(row))]
        finally:
            seconds = time.perf_counter() - begun
            is_whole, size = len(moved) == len(places), len(moved) * self.block_size_bytes
            self._finished.append((vllm_tiers.JobResult(job_id, is_whole, moved, seconds, size), waiting))

    def _row(self, row: int) -> memoryview:
        size = self.block_size_bytes
        return self._flat[row * size : (row + 1) * size]
