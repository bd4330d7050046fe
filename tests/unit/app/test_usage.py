"""Tokens by disposition: exact where the engine says them, unreported where it does not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrics.prometheus import GatewayMetrics
from metrics.usage import Usage, read_usage


def _usage(prompt: Any, read: Any = None, write: Any = None) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "prompt_tokens_details": {"cached_tokens": read, "created_cache_tokens": write}}


def test_vllm_figures() -> None:
    usage: dict[str, Any] = _usage(100, 64, 32) | {"completion_tokens": 5}
    usage["prompt_tokens_details"]["multimodal_tokens"] = {"image": 40}
    assert read_usage(usage) == Usage(100, 5, 64, 32, 4, False, 40)


@pytest.mark.case("MC-088")
def test_write_is_derived_when_it_is_not_reported() -> None:
    assert read_usage(_usage(100, 64)) == Usage(100, None, 64, 36, 0, True)


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": None}, {"prompt_tokens_details": "x"}])
def test_nothing_reported(usage: Any) -> None:
    assert read_usage(usage) == Usage()


def test_zero_is_not_unreported() -> None:
    assert read_usage(_usage(0, 0, 0)) == Usage(0, None, 0, 0, 0)
    assert read_usage(_usage(10)) == Usage(10)


@given(
    prompt=st.none() | st.integers(-5, 100) | st.text(max_size=2) | st.booleans(),
    read=st.none() | st.integers(-5, 100) | st.floats(),
    write=st.none() | st.integers(-5, 100) | st.lists(st.none()),
)
def test_parts_sum_to_the_prompt_or_are_unknown(prompt: Any, read: Any, write: Any) -> None:
    usage = read_usage(_usage(prompt, read, write))
    if usage.prompt_tokens is not None and usage.read_tokens is not None:
        assert usage.write_tokens is not None
        assert usage.uncached_tokens is not None
        assert min(usage.read_tokens, usage.write_tokens, usage.uncached_tokens) >= 0
        assert usage.read_tokens + usage.write_tokens + usage.uncached_tokens == usage.prompt_tokens
    else:
        assert usage.uncached_tokens is None
    # Whatever an engine says, counting it never fails.
    GatewayMetrics().count_usage(usage)


async def test_counting() -> None:
    metrics = GatewayMetrics()
    metrics.count_usage(read_usage(_usage(100, 64, 32)))
    metrics.count_usage(read_usage(_usage(100)))
    text = metrics.exposition(engine_ready=True).decode()
    assert 'stillframe_prompt_tokens_total{disposition="read"} 64.0' in text
    assert 'stillframe_prompt_tokens_total{disposition="write"} 32.0' in text
    assert 'stillframe_prompt_tokens_total{disposition="uncached"} 4.0' in text
    assert "stillframe_unreported_requests_total 1.0" in text
