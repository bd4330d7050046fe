"""vLLM's KV connector of the image pool: one class, made once in the scheduler and once in each worker.

Named by `kv_connector_module_path`. It hands what vLLM calls on to `Planner` there and to `Worker` here.

Source: vLLM 0.32, vllm/distributed/kv_transfer/kv_connector/v1/base.py::KVConnectorBase_V1.
"""

# vLLM leaves much of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUntypedBaseClass=false, reportUnknownParameterType=false, reportMissingParameterType=false
# pyright: reportMissingTypeStubs=false, reportIncompatibleMethodOverride=false

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from engine.vllm import core_0_32 as core
from engine.vllm.image_kv.loaded_model import block_tokens_of, layer_profile_of, merge_of, worker_of
from engine.vllm.image_kv.messages import Plan, Report
from engine.vllm.image_kv.planner import Planner
from engine.vllm.image_kv.reporting import Reporter, pool_values
from engine.vllm.image_kv.worker import Worker


@dataclass
class PlanMetadata(core.KVConnectorMetadata):
    """A plan on its way to the workers."""

    plan: Plan


@dataclass
class ReportMetadata(core.KVConnectorWorkerMetadata):
    """A report on its way to the scheduler."""

    report: Report

    def aggregate(self, other: Any) -> ReportMetadata:
        """With another worker's."""
        return ReportMetadata(self.report.add(other.report))


class ImageKvConnector(core.KVConnectorBase_V1, core.SupportsHMA):
    """The image pool's connector. `planner` is there on the scheduler's side, `worker` on a worker's."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        core.check()
        self._config, self._cache_config = vllm_config, kv_cache_config
        self.planner: Planner | None = None
        self.worker: Worker | None = None
        if role == core.KVConnectorRole.SCHEDULER:
            ours = core.own_config(vllm_config, "image_kv")
            self._reporter = Reporter(ours.get("endpoint", ""))
            self.planner = Planner(
                block_tokens_of(kv_cache_config),
                merge_of(vllm_config.model_config),
                vllm_config.parallel_config.world_size,
                self._reporter,
                profile=layer_profile_of(vllm_config),
            )

    @property
    def requires_kv_delivery(self) -> bool:
        """What it keeps is a cache: nobody waits for it."""
        return False

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """Captures are made by Python between the pieces of a graph."""
        return True

    # The scheduler's side.

    def on_new_request(self, request: Any) -> None:
        self._planner.arrive(request, self.lookup)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        return self._planner.reach(request, num_computed_tokens), False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if not num_external_tokens:
            self._planner.forget_reach(request)
        elif request.prefill_stats is not None and request.num_preemptions <= 0:
            # What the pool gives was not read from the prefix cache, which is what the usage says of cached tokens.
            stats = request.prefill_stats
            stats.set(request.num_prompt_tokens, stats.num_local_cached_tokens, 0)

    def build_connector_meta(self, scheduler_output: Any) -> PlanMetadata:
        plan = self._planner.plan(scheduler_output.num_scheduled_tokens, self._blocks_of)
        for request, tokens in self._planner.loading:
            core.count_loaded(request, tokens)
        if plan.loads:
            # Or the worker would load after the forward pass that reads it.
            scheduler_output.has_sync_kv_loads = True
        return PlanMetadata(plan)

    def update_connector_output(self, connector_output: Any) -> None:
        meta = connector_output.kv_connector_worker_meta
        if isinstance(meta, ReportMetadata):
            self._planner.told(meta.report)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self._planner.finished(request)
        return False, None

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished(request, block_ids[0])

    def lookup(self, request: Any) -> int:
        """How many tokens the prefix cache has for a request's hashes."""
        assert self._kv_cache_manager is not None
        return int(self._kv_cache_manager.get_computed_blocks(request)[1])

    def _blocks_of(self, request_id: str) -> list[int]:
        assert self._kv_cache_manager is not None
        return self._kv_cache_manager.get_block_ids(request_id)[0]

    @property
    def _planner(self) -> Planner:
        assert self.planner is not None, "called on the scheduler's side alone"
        return self.planner

    # A worker's side.

    def register_kv_caches(self, kv_caches: dict[str, Tensor]) -> None:
        self.worker = worker_of(self._config, self._cache_config)

    def attach(self, model: Any) -> None:
        """Give the worker its model, for ratios by layer."""
        self._worker.attach(model)

    def clear(self) -> bool:
        """Empty the worker's pool; whether all its files are gone."""
        return self._worker.clear()

    def pool_values(self) -> list[int]:
        """Of the worker's pool now, as `reporting.pool_values`; of requests and their holds it knows nothing."""
        return pool_values(0, 0, *self._worker.figures())

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        super().bind_connector_metadata(connector_metadata)
        self._worker.take(connector_metadata.plan)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, PlanMetadata)
        self._worker.load(metadata.plan.loads)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing is loaded while layers run."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Rows are copied where the model writes them: `transfer.Recorder`."""

    def wait_for_save(self) -> None:
        self._worker.finish()

    def build_connector_worker_meta(self) -> ReportMetadata | None:
        report = self._worker.report()
        return None if report is None else ReportMetadata(report)

    @property
    def _worker(self) -> Worker:
        assert self.worker is not None, "called on a worker's side, after its caches are made"
        return self.worker

    def shutdown(self) -> None:
        if self.worker is not None:
            self.worker.close()
        if self.planner is not None:
            self._reporter.close()
