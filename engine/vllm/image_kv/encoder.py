"""vLLM's encoder cache connector of the image pool: what the vision encoder gave for an image comes from its entry.

An image of which some tokens are computed needs its encoder output, and would cost the whole vision tower for them
where the encoder cache has lost it. vLLM asks here before it runs the tower, and only after it has found room in the
cache.

Source: vLLM 0.32, vllm/distributed/ec_transfer/ec_connector/base.py::ECConnectorBase;
vllm/v1/worker/ec_connector_model_runner_mixin.py.
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
from engine.vllm.image_kv.connector import ImageKvConnector
from engine.vllm.image_kv.planner import Planner


@dataclass
class LoadOutputs(core.ECConnectorMetadata):
    """The encoder outputs that a step needs: hold by identifier."""

    holds: dict[str, int]


class PooledEncoderConnector(core.ECConnectorBase):
    """The image pool's side of the encoder cache. The scheduler gives it its `planner`."""

    def __init__(self, vllm_config: Any, role: Any) -> None:
        super().__init__(vllm_config, role)
        self.planner: Planner | None = None
        self._loads: dict[str, int] = {}

    # The scheduler's side.

    def has_cache_item(self, identifier: str) -> bool:
        return self.planner is not None and self.planner.hold_of(identifier) is not None

    def update_state_after_alloc(self, request: Any, index: int) -> None:
        identifier = request.mm_features[index].identifier
        hold = None if self.planner is None else self.planner.hold_of(identifier)
        if hold is not None:
            self._loads[identifier] = hold

    def build_connector_meta(self, scheduler_output: Any) -> LoadOutputs:
        loads, self._loads = self._loads, {}
        return LoadOutputs(loads)

    # A worker's side.

    def start_load_caches(self, encoder_cache: dict[str, Tensor], **kwargs: Any) -> None:
        pool = core.get_kv_transfer_group()
        assert isinstance(pool, ImageKvConnector)
        assert pool.worker is not None
        # Whatever is captured in this step finds its encoder output there.
        pool.worker.encoder_outputs = encoder_cache
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, LoadOutputs)
        for identifier, hold in metadata.holds.items():
            if identifier not in encoder_cache and (output := pool.worker.encoder_output(hold)) is not None:
                encoder_cache[identifier] = output

    def save_caches(self, encoder_cache: dict[str, Tensor], mm_hash: str, **kwargs: Any) -> None:
        """Kept with the image's KV, once that is whole: `Worker.finish`."""
