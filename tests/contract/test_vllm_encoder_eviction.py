"""Which image features make room in vLLM's encoder cache, on the real manager, without a model."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import pytest

from engine import torchvision_ops
from engine.vllm.event_socket import EventSocket
from tests.bench.encoder_replay import make_images, replay_images

pytestmark = [pytest.mark.vllm]


@pytest.fixture
def managers() -> Any:
    """vLLM's manager and ours."""
    torchvision_ops.declare_missing()
    from vllm.v1.core.encoder_cache_manager import EncoderCacheManager

    from engine.vllm.encoder_cache import ReportingEncoderCacheManager

    return EncoderCacheManager, ReportingEncoderCacheManager


def freed(manager: Any) -> list[str]:
    """What it evicted, in that order."""
    return list(manager.freed)


@pytest.mark.parametrize("seed", range(3))
def test_reports_alone_leave_every_eviction_as_vllm_makes_it(managers: Any, seed: int) -> None:
    load = make_images(seed)
    stock, ours = (kind(load.cache) for kind in managers)
    assert replay_images(load, stock) == replay_images(load, ours)
    assert freed(stock) == freed(ours)
    assert len(freed(ours)) > 100


@pytest.mark.parametrize("seed", range(3))
def test_by_value_what_a_request_needs_stays_and_all_room_is_accounted_for(managers: Any, seed: int) -> None:
    load = make_images(seed)
    manager = managers[1](load.cache, by_value=True)
    replay_images(load, _Watching(manager))
    assert len(freed(manager)) > 100
    assert manager.num_free_slots + sum(manager.num_embeds_by_hash.values()) == load.cache


class _Watching:
    """The manager, with a look at each eviction: whether a request needed what went."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    def can_allocate(self, *args: Any) -> bool:
        needed = {name for name, requests in self._manager.cached.items() if requests}
        before = len(self._manager.freed)
        answer = self._manager.can_allocate(*args)
        assert not needed & set(self._manager.freed[before:])
        return bool(answer)


def test_by_value_a_tenth_fewer_embeddings_are_computed_again(managers: Any) -> None:
    stock, ours = managers
    loads = [make_images(seed, 400) for seed in range(100, 112)]
    lru = sum(replay_images(load, stock(load.cache)) for load in loads)
    by_value = sum(replay_images(load, ours(load.cache, by_value=True)) for load in loads)
    assert by_value <= 0.9 * lru


def test_features_that_are_held_of_the_image_pool_make_room_first(managers: Any) -> None:
    from tests.bench.block_replay import request_with

    manager = managers[1](4096, by_value=True)
    manager.is_pooled = "pooled".__eq__
    for number, name in enumerate(("first", "pooled", "last", "new")):
        request = request_with(number, ((name, 1024),) if name != "new" else ((name, 2048),))
        assert manager.can_allocate(request, 0, 1 << 30, 0)
        manager.allocate(request, 0)
        manager.free(request)
    assert freed(manager) == ["pooled"]


class Told(EventSocket):
    """Keeps what would be sent: kind and request."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[str, object]] = []

    def send(self, kind: str, *values: object) -> None:
        self.sent.append((kind, values[0]))


def end(manager: Any, request: Any) -> None:
    """However a request ends, vLLM sets its status and frees what it has."""
    from vllm.v1.request import RequestStatus

    request.status = RequestStatus.FINISHED_ABORTED
    manager.free(request)


def test_a_request_that_waits_for_room_or_is_preempted_hits_an_image_once(managers: Any) -> None:
    from tests.bench.block_replay import request_with

    told = Told()
    manager = managers[1](4096, by_value=True, events=told)
    first, second = (request_with(number, (("image", 1024),)) for number in (1, 2))
    assert not manager.check_and_update_cache(first, 0)
    manager.allocate(first, 0)
    end(manager, first)
    for _ in range(20):
        # No room for its tokens: vLLM has it let go, and asks again at the next step.
        assert manager.check_and_update_cache(second, 0)
        manager.free(second)
    # Preempted: computed again where another has taken its place.
    other = request_with(3, (("other", 4096),))
    assert manager.can_allocate(other, 0, 1 << 30, 0)
    manager.allocate(other, 0)
    end(manager, other)
    assert not manager.check_and_update_cache(second, 0)
    assert manager.can_allocate(second, 0, 1 << 30, 0)
    manager.allocate(second, 0)
    assert manager.check_and_update_cache(second, 0)
    end(manager, second)
    assert told.sent == [
        *(("run", "r1"), ("done", "r1")),
        ("hit", "r2"),
        *(("evict", "r3"), ("run", "r3"), ("done", "r3")),
        *(("evict", "r2"), ("run", "r2"), ("done", "r2")),
    ]
    # Nothing is kept of requests that are over: another one of the name counts anew.
    assert manager.check_and_update_cache(request_with(2, (("image", 1024),)), 0)
    assert told.sent[-1] == ("hit", "r2")
