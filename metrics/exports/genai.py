"""A turn record in the words of OpenTelemetry's conventions for generative AI.

Names that the conventions have stand under `gen_ai.`, the gateway's own under `stillframe.`. A figure that the engine
did not report has no attribute. Nothing of what was said is among them.

Source: open-telemetry/semantic-conventions-genai, docs/gen-ai/gen-ai-spans.md and gen-ai-metrics.md. What was written
to the cache is `cache_creation` in what was released and `cache_write` in what comes next; both are given.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from metrics.records.record import TurnRecord

Value = str | bool | int | float
OPERATION, PROVIDER, MODEL = "gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model"
TOKEN_TYPE, ERROR = "gen_ai.token.type", "error.type"
CHAT = "chat"
DURATION, TOKEN_USAGE = "gen_ai.client.operation.duration", "gen_ai.client.token.usage"
FIRST_CHUNK, FIRST_TOKEN = "gen_ai.client.operation.time_to_first_chunk", "gen_ai.server.time_to_first_token"
# Bounds of the histograms, as the conventions have them.
BUCKETS: dict[str, tuple[float, ...]] = {
    DURATION: (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
    FIRST_CHUNK: (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
    FIRST_TOKEN: (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    TOKEN_USAGE: tuple(4.0**power for power in range(14)),
}


def provider_name(kind: Literal["vllm", "remote", "fake"]) -> str:
    """What `gen_ai.provider.name` says of an engine; there is no word of the conventions for one's own."""
    return {"vllm": "vllm", "remote": "openai", "fake": "stillframe_fake"}[kind]


def common_attributes(record: TurnRecord, provider: str) -> dict[str, Value]:
    """What every span and metric of a turn has; few different values."""
    found: dict[str, Value] = {OPERATION: CHAT, PROVIDER: provider}
    if record.model:
        found[MODEL] = record.model
    return found


def error_type(record: TurnRecord) -> str | None:
    """How a turn failed; None where it did not. A client that leaves has not made it fail."""
    return record.outcome if record.outcome in ("failed", "refused") else None


def span_attributes(record: TurnRecord, provider: str) -> dict[str, Value]:
    """All that a span says of a turn."""
    found = common_attributes(record, provider)
    for name, value in _named(record):
        if value is not None:
            found[name] = value
    return found


def _named(record: TurnRecord) -> Iterator[tuple[str, Value | None]]:
    yield "gen_ai.conversation.id", record.conversation or None
    yield "gen_ai.request.stream", record.stream
    yield "gen_ai.usage.input_tokens", record.prompt_tokens
    yield "gen_ai.usage.output_tokens", record.completion_tokens
    yield "gen_ai.usage.image.input_tokens", record.visual_tokens
    yield "gen_ai.usage.cache_read.input_tokens", record.read_tokens
    yield "gen_ai.usage.cache_creation.input_tokens", record.write_tokens
    yield "gen_ai.usage.cache_write.input_tokens", record.write_tokens
    yield "gen_ai.response.time_to_first_chunk", record.first_token_seconds if record.stream else None
    yield ERROR, error_type(record)
    yield "stillframe.request_id", record.request_id
    yield "stillframe.tenant", record.tenant
    yield "stillframe.turn", record.number or None
    yield "stillframe.policy", record.policy
    yield "stillframe.policy_version", record.policy_version
    yield "stillframe.outcome", record.outcome
    yield "stillframe.images", record.images
    yield "stillframe.unique_images", record.unique_images
    yield "stillframe.new_images", record.new_images
    yield "stillframe.encoder_runs", record.encoder_runs
    yield "stillframe.encoder_hits", record.encoder_hits
    yield "stillframe.uncached_tokens", record.uncached_tokens
    yield "stillframe.write_derived", True if record.write_derived else None
    yield "stillframe.loaded_tokens", record.loaded_tokens
    yield "stillframe.expected_read_tokens", record.expected_read
    yield "stillframe.lost_tokens", record.lost_tokens
    yield "stillframe.break.cause", record.cause
    yield "stillframe.break.actor", record.actor
    yield "stillframe.break.message", record.break_message
    yield "stillframe.break.part", record.break_part
    yield "stillframe.break.token", record.break_token
    yield "stillframe.evicted_image", record.evicted_image
    yield "stillframe.image_eviction", True if record.image_eviction else None
    yield "stillframe.summary", True if record.summary else None
    yield "stillframe.first_token_seconds", record.first_token_seconds
    yield "stillframe.cost", record.cost
    yield "stillframe.reuse", record.reuse
    yield "stillframe.reuse.by", record.reuse_by
