"""Both tiers below vLLM's own bookkeeping, with a real region of shared memory."""

# vLLM leaves much of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUntypedBaseClass=false

from __future__ import annotations

import logging
import secrets
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

from context.errors import ConfigError
from engine import torchvision_ops
from engine.vllm.block_tiers.files import BlockFiles
from engine.vllm.event_socket import EventSocket
from tests.unit.engine.block_tiers.test_files import BLOCK, ROOM, key

pytestmark = pytest.mark.vllm
ROWS, STEPS = 2, 50


class TouchedFiles(BlockFiles):
    """Says what was used."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, ROOM, "model")
        self.touched: list[bytes] = []

    def touch(self, keys: Iterable[bytes]) -> None:
        self.touched += keys


class Told(EventSocket):
    """Keeps what would be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[object, ...]] = []

    def send(self, kind: str, *values: object) -> None:
        self.sent.append((kind, *values))


def region(engine_id: str, rank: int | None = None) -> Any:
    torchvision_ops.declare_missing()
    from engine.vllm import tiers_0_32 as vllm_tiers

    return vllm_tiers.Region(
        engine_id=engine_id, num_chunks=ROWS, rank=rank, kv_bytes_per_chunk=BLOCK, cpu_page_size=BLOCK
    )


@contextmanager
def tiers(
    folder: Path, memory_of: Any = None, manager_of: Any = None, events: Any = None
) -> Generator[tuple[Any, TouchedFiles]]:
    """A manager of both tiers, of two blocks in memory."""
    made = region(secrets.token_hex(8))
    from engine.vllm.block_tiers.file_tier import FileTier
    from engine.vllm.block_tiers.manager import BlockTiersManager, Contents, MemoryTier

    contents, files = Contents(16), TouchedFiles(folder)
    try:
        memory = (memory_of or MemoryTier)(contents, num_chunks=ROWS, mmap_region=made)
        tier = FileTier(None, memory.get_kv_memoryview(), files, ROWS)
        manager: Any = (manager_of or BlockTiersManager)(memory, tier, contents, events or EventSocket())
        yield manager, files
        manager.shutdown()
    finally:
        made.cleanup()


def test_what_finds_no_room_is_offered_at_each_step_and_kept_once(tmp_path: Path) -> None:
    with tiers(tmp_path / "blocks") as (manager, files):
        from engine.vllm import tiers_0_32 as vllm_tiers

        request = vllm_tiers.ReqContext(req_id="request")
        manager.on_new_request(request)
        first, rest = [key(0), key(1)], [key(2), key(3), key(4)]
        assert manager.prepare_store(first, request).keys_to_store == first
        # Memory is full of what is still being copied.
        assert [manager.prepare_store(rest, request) for _ in range(STEPS)] == [None] * STEPS
        manager.complete_store(first, request)
        manager.on_request_finished(request)
        assert files.touched == [key(number) for number in (4, 3, 2, 1, 0)]
        assert manager.state().memory_dropped == len(rest)


def test_tiers_say_what_they_have_before_there_is_a_request(tmp_path: Path) -> None:
    told = Told()
    with tiers(tmp_path / "blocks", events=told) as (manager, _):
        assert told.sent == [("tiers", astuple(manager.state()))]


def test_a_region_whose_name_is_gone_ends_without_a_complaint(caplog: pytest.LogCaptureFixture) -> None:
    torchvision_ops.declare_missing()
    from engine.vllm import tiers_0_32 as vllm_tiers

    engine_id = secrets.token_hex(8)
    of_worker, of_scheduler = region(engine_id, rank=0), region(engine_id)
    name = Path(of_worker.mmap_path)
    vllm_tiers.forget_name(of_scheduler)
    assert not name.exists()
    log = logging.getLogger("vllm.v1.kv_offload.cpu.shared_offload_region")
    log.addHandler(caplog.handler)
    try:
        of_worker.cleanup()
        of_scheduler.cleanup()
    finally:
        log.removeHandler(caplog.handler)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_name_that_nobody_took_away_goes_with_its_maker() -> None:
    made = region(secrets.token_hex(8), rank=0)
    name = Path(made.mmap_path)
    assert name.exists()
    made.cleanup()
    assert not name.exists()


def test_what_vllm_s_objects_lack_is_named_when_they_are_made(tmp_path: Path) -> None:
    with tiers(tmp_path / "sound"):
        pass
    from engine.vllm import tiers_0_32 as vllm_tiers
    from engine.vllm.block_tiers.manager import BlockTiersManager, MemoryTier

    class OtherMemory(vllm_tiers.CPUPrimaryTierOffloadingManager):
        def __init__(self, **given: Any) -> None:
            super().__init__(**given)
            del self._free_list
            del self._num_allocated_chunks

    class OtherTiers(vllm_tiers.TieringOffloadingManager):
        def __init__(self, **given: Any) -> None:
            super().__init__(**given)
            del self._req_state

    memory_of, manager_of = (
        type("Memory", (MemoryTier, OtherMemory), {}),
        type("T", (BlockTiersManager, OtherTiers), {}),
    )
    for number, (given, missing) in enumerate(
        (
            ({"memory_of": memory_of}, ("_free_list", "_num_allocated_chunks")),
            ({"manager_of": manager_of}, ("TieringOffloadingManager._req_state",)),
        )
    ):
        with pytest.raises(ConfigError) as caught, tiers(tmp_path / str(number), **given):
            pass
        assert all(name in caught.value.reason for name in missing)
        assert "remove block_tiers" in caught.value.reason


@pytest.mark.parametrize("name", ["SharedOffloadRegion", "SecondaryTierManager", "TieringOffloadingSpec"])
def test_an_object_without_what_is_read_of_it_is_refused(name: str) -> None:
    torchvision_ops.declare_missing()
    from engine.vllm import tiers_0_32 as vllm_tiers

    with pytest.raises(ConfigError) as caught:
        vllm_tiers.check_made(object(), name)
    assert f"{name}." in caught.value.reason


def test_parameters_that_are_passed_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    torchvision_ops.declare_missing()
    from vllm.v1.attention.backends import cpu_attn

    from engine.vllm import tiers_0_32 as vllm_tiers

    vllm_tiers.check()

    def other(dtype: object, block_size: int, head_size: int) -> None:
        """Of another version."""

    monkeypatch.setattr(cpu_attn, "_get_attn_isa", other)
    with pytest.raises(ConfigError) as caught:
        vllm_tiers.check()
    assert "cpu_attn._get_attn_isa(kv_cache_dtype)" in caught.value.reason
