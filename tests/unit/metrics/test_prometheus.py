"""What is counted as derived."""

from __future__ import annotations

from typing import Any

import pytest

from metrics.prometheus import GatewayMetrics
from metrics.usage import read_usage


@pytest.mark.parametrize(("written", "derived"), [(32, 0), (None, 36), (90, 36)])
async def test_written_tokens_that_nobody_reported_are_counted_apart(written: int | None, derived: int) -> None:
    details: dict[str, Any] = {"cached_tokens": 64, "created_cache_tokens": written}
    metrics = GatewayMetrics()
    metrics.count_usage(read_usage({"prompt_tokens": 100, "prompt_tokens_details": details}))
    metrics.count_usage(read_usage({"prompt_tokens": 100}))
    text = metrics.exposition(engine_ready=True).decode()
    assert f"stillframe_derived_write_tokens_total {derived}.0" in text
    assert f'stillframe_prompt_tokens_total{{disposition="write"}} {derived or written}.0' in text
