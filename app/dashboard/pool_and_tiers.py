"""What the engine last said of the pool of images' KV and of its tiers for blocks, with the bounds that are set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.gateway import Gateway
from metrics.dashboard.pool_and_tiers import Bounds, pool_figures, tier_figures


def pool_and_tiers(gateway: Gateway) -> dict[str, Any]:
    """`pool` and `tiers`; None for what the engine does not have, or has not spoken of."""
    pool, tiers = gateway.engine_log.pool, gateway.engine_log.tiers
    if pool is None and tiers is None:
        return {"pool": None, "tiers": None}
    of_pool, of_tiers = _bounds(gateway.settings.engine.vllm)
    return {
        "pool": None if pool is None else pool_figures(pool, of_pool),
        "tiers": None if tiers is None else tier_figures(tiers, of_tiers),
    }


def _bounds(options: Mapping[str, Any]) -> tuple[Bounds, Bounds]:
    # Not before there is something to bound: who asks an upstream has no use for them.
    from engine.vllm.features import block_tiers_of, image_kv_of
    from engine.vllm.options import by_long_name

    given = by_long_name(options)
    pool, tiers = image_kv_of(given), block_tiers_of(given)
    return (
        Bounds() if pool is None else Bounds(pool.memory_bytes, pool.folder_bytes if pool.folder else None),
        Bounds() if tiers is None else Bounds(tiers.memory_bytes, tiers.folder_bytes if tiers.folder else None),
    )
