"""What moved in vLLM is said by name when the engine starts."""

# vLLM leaves much of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import pytest

from context.errors import ConfigError
from engine import torchvision_ops

pytestmark = pytest.mark.vllm

LAYER = {
    "layer_name": "layers.0",
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_size": 64,
    "kv_cache": SimpleNamespace(dtype="float32"),
    "kv_cache_dtype": "auto",
    "isa": "vec",
    "impl": SimpleNamespace(sliding_window=-1),
}


@pytest.fixture(autouse=True)
def importable() -> None:
    torchvision_ops.declare_missing()


def a_scheduler(without: str) -> type[Any]:
    """As much of vLLM's scheduler as the mix-ins look at, without one of its parts."""
    from engine.vllm.image_kv.connector import ImageKvConnector

    pool = SimpleNamespace(get_num_free_blocks=len)
    parts: dict[str, Any] = {
        "block_size": 16,
        "connector": ImageKvConnector.__new__(ImageKvConnector),
        "ec_connector": None,
        "encoder_cache_manager": None,
        "finished_req_ids": set[str](),
        "kv_cache_manager": SimpleNamespace(block_pool=pool, get_block_ids=len),
        "max_num_active_reqs": 1,
        "max_num_running_reqs": 1,
        "max_num_scheduled_tokens": 1,
        "model_uses_mrope": True,
        "requests": {},
        "running": [],
        "waiting": [],
    }
    parts["connector"].planner = None
    del parts[without]

    class Stock:
        def __init__(self, vllm_config: Any) -> None:
            self.__dict__.update(parts)

    return Stock


@pytest.mark.parametrize(
    "name", ["waiting", "finished_req_ids", "max_num_active_reqs", "model_uses_mrope", "connector"]
)
def test_a_part_that_a_scheduler_lacks_is_named(name: str) -> None:
    from engine.vllm.scheduler import ImageKvScheduling

    made: Any = type("Scheduler", (ImageKvScheduling, a_scheduler(name)), {})
    with pytest.raises(ConfigError, match=rf"knows it: Scheduler\.{name}\."):
        made(SimpleNamespace(additional_config={}))


def test_what_the_tiers_miss_of_a_scheduler_is_named() -> None:
    from engine.vllm.block_tiers.scheduling import BlockTierScheduling

    made: Any = type("Scheduler", (BlockTierScheduling, a_scheduler("requests")), {})
    assert made(SimpleNamespace(additional_config={}))
    with pytest.raises(ConfigError, match=r"Scheduler\.requests\. .*remove block_tiers"):
        made(SimpleNamespace(additional_config={"stillframe": {"block_tiers": {"memory_gib": 1.0}}}))


def test_what_eviction_by_modality_misses_of_a_scheduler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.vllm.blocks.install import BlockScheduling

    made: Any = type("Scheduler", (BlockScheduling, a_scheduler("requests")), {})
    with pytest.raises(ConfigError, match=r"single_type_managers, Scheduler\.requests\. .*set eviction to lru"):
        made(SimpleNamespace(additional_config={"stillframe": {"blocks": {"eviction": "modality"}}}))


@pytest.mark.parametrize("name", ["freed", "freeable", "num_freeable_slots"])
def test_a_part_that_the_encoder_cache_lacks_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.core.encoder_cache_manager import EncoderCacheManager

    from engine.vllm.encoder_cache import ReportingEncoderCacheManager

    def without(self: Any, cache_size: int) -> None:
        self.num_free_slots = self.num_freeable_slots = cache_size
        self.freeable, self.freed = OrderedDict[str, int](), list[str]()
        delattr(self, name)

    assert ReportingEncoderCacheManager(64)
    monkeypatch.setattr(EncoderCacheManager, "__init__", without)
    with pytest.raises(ConfigError, match=rf"EncoderCacheManager\.{name}"):
        ReportingEncoderCacheManager(64)


def test_a_request_without_its_hasher_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.request import Request

    from engine.vllm.core_0_32 import check

    made = Request.__init__

    def without(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        del self._block_hasher

    check()
    monkeypatch.setattr(Request, "__init__", without)
    with pytest.raises(ConfigError, match=r"Request\._block_hasher\."):
        check()


def test_an_answer_of_the_scheduler_with_another_shape_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.core.sched.scheduler import Scheduler

    from engine.vllm.core_0_32 import check

    annotations = Scheduler._try_schedule_encoder_inputs.__annotations__  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setitem(annotations, "return", tuple[list[int], int, int, list[int]])
    with pytest.raises(ConfigError, match=r"Scheduler\._try_schedule_encoder_inputs\(return\)"):
        check()


def test_a_name_of_the_gateways_process_that_moved_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.engine.async_llm import AsyncLLM

    from engine.vllm.v0_32 import check

    check()
    monkeypatch.delattr(AsyncLLM, "collective_rpc")
    with pytest.raises(ConfigError, match=r"AsyncLLM\.collective_rpc"):
        check()


class TestNarrowing:
    def test_what_is_there_is_enough(self) -> None:
        from engine.vllm.narrowing_0_32 import check

        check([SimpleNamespace(**LAYER)])

    @pytest.mark.parametrize("name", ["isa", "kv_cache_dtype", "kv_cache", "layer_name"])
    def test_a_part_that_a_layer_lacks_is_named(self, name: str) -> None:
        from engine.vllm.narrowing_0_32 import check

        layer = {key: value for key, value in LAYER.items() if key != name}
        with pytest.raises(ConfigError, match=rf"knows it: Attention\.{name}.*remove profile"):
            check([SimpleNamespace(**LAYER), SimpleNamespace(**layer)])

    def test_a_window_that_the_layers_kernel_lacks_is_named(self) -> None:
        from engine.vllm.narrowing_0_32 import check

        with pytest.raises(ConfigError, match=r"Attention\.impl\.sliding_window\."):
            check([SimpleNamespace(**LAYER | {"impl": SimpleNamespace()})])

    def test_a_parameter_that_went_or_came_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import inspect

        from vllm import _custom_ops

        from engine.vllm.narrowing_0_32 import check

        def other(**_: Any) -> None: ...

        signature = inspect.signature(_custom_ops.cpu_attn_get_scheduler_metadata)
        kept = [one for one in signature.parameters.values() if one.name != "isa"]
        added = inspect.Parameter("rows", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        other.__signature__ = signature.replace(parameters=[added, *kept])  # pyright: ignore[reportFunctionMemberAccess]
        monkeypatch.setattr(_custom_ops, "cpu_attn_get_scheduler_metadata", other)
        with pytest.raises(ConfigError, match=r"metadata\(isa\), cpu_attn_get_scheduler_metadata\(rows\)"):
            check([SimpleNamespace(**LAYER)])
