"""Usage as engines and gateways write it, and what is read from it: golden answers, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.sse import EventRelay
from metrics.usage import DIALECTS, Usage, read_usage, usage_of

# name: (usage as sent, what is read). A prompt of 1000 tokens throughout, unless the point is another.
GOLDEN: dict[str, tuple[str, Usage]] = {
    "openai": (
        '{"prompt_tokens":1000,"completion_tokens":20,"total_tokens":1020,"prompt_tokens_details":{"cached_tokens":896,'
        '"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":0,"audio_tokens":0,'
        '"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}}',
        Usage(1000, 20, 896, 104, 0, True),
    ),
    "openai, nothing read": (
        '{"prompt_tokens":1000,"completion_tokens":20,"prompt_tokens_details":{"cached_tokens":0}}',
        Usage(1000, 20, 0, 1000, 0, True),
    ),
    "openai, nothing said": (
        '{"prompt_tokens":1000,"completion_tokens":20,"prompt_tokens_details":{"cached_tokens":null}}',
        Usage(1000, 20),
    ),
    "openai responses": (
        '{"input_tokens":1000,"input_tokens_details":{"cached_tokens":896,"cache_write_tokens":64},"output_tokens":20,'
        '"output_tokens_details":{"reasoning_tokens":0},"total_tokens":1020}',
        Usage(1000, 20, 896, 64, 40),
    ),
    "openrouter": (
        '{"prompt_tokens":1000,"completion_tokens":20,"prompt_tokens_details":{"cached_tokens":640,'
        '"cache_write_tokens":300},"cost":0.01}',
        Usage(1000, 20, 640, 300, 60),
    ),
    "vllm": (
        '{"prompt_tokens":1000,"total_tokens":1020,"completion_tokens":20,"prompt_tokens_details":{"cached_tokens":960,'
        '"created_cache_tokens":32,"multimodal_tokens":{"image":640}}}',
        Usage(1000, 20, 960, 32, 8, False, 640),
    ),
    "vllm, no details": (
        '{"prompt_tokens":1000,"total_tokens":1020,"completion_tokens":20,"prompt_tokens_details":null}',
        Usage(1000, 20),
    ),
    "sglang with --enable-cache-report": (
        '{"prompt_tokens":1000,"total_tokens":1020,"completion_tokens":20,"prompt_tokens_details":{"cached_tokens":960,'
        '"image_tokens":640},"reasoning_tokens":0}',
        Usage(1000, 20, 960, 40, 0, True, 640),
    ),
    "sglang, text": (
        '{"prompt_tokens":1000,"total_tokens":1020,"completion_tokens":20,"prompt_tokens_details":null,'
        '"reasoning_tokens":0}',
        Usage(1000, 20),
    ),
    "sglang, images, a zero that nobody counted": (
        '{"prompt_tokens":1000,"total_tokens":1020,"completion_tokens":20,"prompt_tokens_details":{"cached_tokens":0,'
        '"image_tokens":640},"reasoning_tokens":0}',
        Usage(1000, 20, visual_tokens=640),
    ),
    "anthropic": (
        '{"input_tokens":40,"cache_creation_input_tokens":64,"cache_read_input_tokens":896,"cache_creation":'
        '{"ephemeral_5m_input_tokens":64,"ephemeral_1h_input_tokens":0},"output_tokens":20,"service_tier":"standard"}',
        Usage(1000, 20, 896, 64, 40),
    ),
    "anthropic, no cache": (
        '{"input_tokens":1000,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":20}',
        Usage(1000, 20, 0, 0, 1000),
    ),
    # What `input_tokens` leaves out is not known, so neither is the prompt.
    "anthropic, null": (
        '{"input_tokens":40,"cache_creation_input_tokens":null,"cache_read_input_tokens":null,"output_tokens":20}',
        Usage(None, 20),
    ),
    "litellm": (
        '{"prompt_tokens":1000,"completion_tokens":20,"prompt_tokens_details":{"cached_tokens":896},'
        '"cache_creation_input_tokens":64,"cache_read_input_tokens":896}',
        Usage(1000, 20, 896, 64, 40),
    ),
    "deepseek": (
        '{"prompt_tokens":1000,"completion_tokens":20,"total_tokens":1020,"prompt_tokens_details":{"cached_tokens":'
        '896},"prompt_cache_hit_tokens":896,"prompt_cache_miss_tokens":104}',
        Usage(1000, 20, 896, 104, 0, True),
    ),
    "deepseek, an old one": (
        '{"prompt_tokens":1000,"completion_tokens":20,"prompt_cache_hit_tokens":0,"prompt_cache_miss_tokens":1000}',
        Usage(1000, 20, 0, 1000, 0, True),
    ),
    "gemini": (
        '{"promptTokenCount":1000,"candidatesTokenCount":15,"thoughtsTokenCount":5,"totalTokenCount":1020,'
        '"cachedContentTokenCount":896,"promptTokensDetails":[{"modality":"TEXT","tokenCount":360},'
        '{"modality":"IMAGE","tokenCount":640}],"cacheTokensDetails":[{"modality":"TEXT","tokenCount":896}]}',
        Usage(1000, 20, 896, 104, 0, True, 640),
    ),
    "gemini, nothing said": ('{"promptTokenCount":1000,"candidatesTokenCount":20}', Usage(1000, 20)),
    "moonshot": (
        '{"prompt_tokens":1000,"completion_tokens":20,"total_tokens":1020,"cached_tokens":896}',
        Usage(1000, 20, 896, 104, 0, True),
    ),
    "num_cached_tokens": (
        '{"prompt_tokens":1000,"completion_tokens":20,"num_cached_tokens":0}',
        Usage(1000, 20, 0, 1000, 0, True),
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(name: str) -> None:
    usage, expected = GOLDEN[name]
    assert read_usage(json.loads(usage)) == expected


@pytest.mark.parametrize("name", GOLDEN)
async def test_a_streamed_answer_gives_the_same(name: str) -> None:
    usage, expected = GOLDEN[name]
    last = json.dumps({"choices": [], "usage": json.loads(usage)})

    async def chunks() -> AsyncGenerator[bytes]:
        yield b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
        yield f"data: {last}\n\ndata: [DONE]\n\n".encode()

    relay = EventRelay(include_usage=False)
    async for _ in relay.relay(chunks()):
        pass
    assert read_usage(relay.usage) == expected


async def test_usage_in_the_last_choice_of_a_stream() -> None:
    async def chunks() -> AsyncGenerator[bytes]:
        yield b'data: {"choices":[{"delta":{},"usage":{"prompt_tokens":100,"cached_tokens":64}}]}\n\ndata: [DONE]\n\n'

    relay = EventRelay(include_usage=False)
    assert b"".join([chunk async for chunk in relay.relay(chunks())]).endswith(b"[DONE]\n\n")
    assert read_usage(relay.usage) == Usage(100, None, 64, 36, 0, True)


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 101}},
        {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 64}, "cached_tokens": 32},
        {"prompt_tokens": 100, "cached_tokens": 64, "num_cached_tokens": 32},
        {"prompt_tokens": 100, "prompt_cache_hit_tokens": 64, "prompt_cache_miss_tokens": 64},
        {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 64}, "cache_read_input_tokens": 0},
    ],
)
def test_figures_that_contradict_each_other_are_none(usage: dict[str, Any]) -> None:
    assert read_usage(usage) == Usage(100)


def test_prompts_that_contradict_each_other_are_none() -> None:
    assert read_usage({"prompt_tokens": 100, "input_tokens": 90, "cached_tokens": 64}) == Usage()


def test_two_names_of_the_write_figure_must_agree() -> None:
    details = {"cached_tokens": 64, "created_cache_tokens": 32, "cache_write_tokens": 16}
    assert read_usage({"prompt_tokens": 100, "prompt_tokens_details": details}) == Usage(100, None, 64, 36, 0, True)


_KEYS = sorted({key for dialect in DIALECTS.values() for key in dialect.keys})
_DETAILS = ("cached_tokens", "created_cache_tokens", "cache_write_tokens", "image_tokens")
_VALUES = st.none() | st.integers(-2, 50) | st.booleans() | st.text(max_size=1)
_OBJECTS = st.dictionaries(st.sampled_from(_DETAILS), _VALUES)


@given(st.dictionaries(st.sampled_from(_KEYS), _VALUES | _OBJECTS))
def test_whatever_is_said_the_parts_sum_to_the_prompt_or_are_unknown(usage: dict[str, Any]) -> None:
    found = read_usage(usage)
    parts = (found.read_tokens, found.write_tokens, found.uncached_tokens)
    if None in parts:
        assert parts == (None, None, None)
        return
    known = [part for part in parts if part is not None]
    assert min(known) >= 0
    assert sum(known) == found.prompt_tokens


def test_where_usage_stands() -> None:
    assert usage_of({"usage": {"prompt_tokens": 1}}) == {"prompt_tokens": 1}
    assert usage_of({"usage": None, "usageMetadata": {"promptTokenCount": 1}}) == {"promptTokenCount": 1}
    assert usage_of({"choices": [{"usage": {"cached_tokens": 1}}]}) == {"cached_tokens": 1}
    nothings: list[dict[str, Any]] = [
        {},
        {"choices": []},
        {"choices": [None]},
        {"choices": [{"usage": None}]},
        {"usage": None},
    ]
    assert [usage_of(nothing) for nothing in nothings] == [None] * len(nothings)
