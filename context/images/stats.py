"""What the image service counted."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from context.store.blobs import StoreError

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class ImageStats:
    """Counts since the start. `wire_hits`, `byte_hits` and `snapshot_hits` are images that were not decoded;
    `rewrites` are decoded images whose original bytes would show an engine other pixels; `queue_refusals` are images
    that found too many others waiting to be fetched or decoded."""

    wire_hits: int = 0
    byte_hits: int = 0
    snapshot_hits: int = 0
    decodes: int = 0
    rewrites: int = 0
    fetches: int = 0
    payload_hits: int = 0
    payload_loads: int = 0
    store_failures: int = 0
    queue_refusals: int = 0

    def store_failed(self, error: StoreError) -> None:
        """Count a failure that a request survives; the first one is logged."""
        if not self.store_failures:
            _log.warning("images go on from memory alone: %s", error)
        self.store_failures += 1
