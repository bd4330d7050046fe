"""What the gateway calls in every worker, between its steps: vLLM adds this class to its worker's by
`worker_extension_cls`, and `embedded.py` has its methods called by their names.
"""

# vLLM leaves much of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

from engine.vllm import core_0_32 as core
from engine.vllm.image_kv.connector import ImageKvConnector


class ImageKvExtension:
    """A part of vLLM's worker, which has the model; the connector's classes are given none."""

    model_runner: Any

    def stillframe_attach(self) -> None:
        """Have the pool's worker stand around the layers of the model.

        Raises:
            ConfigError: as `Narrowing.attach`.
        """
        _connector().attach(self.model_runner.get_model())

    def stillframe_clear_images(self) -> bool:
        """Have the pool forget all entries, in memory and in files; whether all files are gone. Waits for the disk."""
        return _connector().clear()

    def stillframe_image_pool(self) -> list[int]:
        """The pool now: the values of `engine.base.ImagePoolState` in their order."""
        return _connector().pool_values()


def _connector() -> ImageKvConnector:
    connector = core.get_kv_transfer_group()
    assert isinstance(connector, ImageKvConnector)
    return connector
