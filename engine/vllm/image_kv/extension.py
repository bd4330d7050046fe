"""What gives the pool's worker its model: the connector's classes are given none.

vLLM adds this class to its worker's by `worker_extension_cls`; `embedded.py` has `stillframe_attach` called once the
engine stands. Only where ratios by layer are set.
"""

# vLLM leaves much of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

from engine.vllm import core_0_32 as core
from engine.vllm.image_kv.connector import ImageKvConnector


class LayerAccess:
    """A part of vLLM's worker, which has the model."""

    model_runner: Any

    def stillframe_attach(self) -> None:
        """Have the pool's worker stand around the layers of the model.

        Raises:
            ConfigError: as `Narrowing.attach`.
        """
        connector = core.get_kv_transfer_group()
        assert isinstance(connector, ImageKvConnector)
        connector.attach(self.model_runner.get_model())
