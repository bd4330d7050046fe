"""Turns as JSON Lines of OpenAI bodies as they were sent, without the images' bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from context.transcript import ImagePart
from metrics.exports.turns import ExportedTurn
from metrics.records.record import TurnRecord


def openai_line(turn: ExportedTurn) -> dict[str, Any]:
    """One turn. An image part is `{"type": "image_ref", "image_id", "width", "height", ...}`; what was not reported is
    null."""
    record = turn.record
    body: dict[str, Any] = {"messages": [without_bytes(one.wire) for one in turn.sent]}
    if record is not None:
        body = {"model": record.model, "stream": record.stream, **body}
    if turn.tools is not None:
        body["tools"] = list(turn.tools)
    return {
        "request_id": turn.request_id,
        "timestamp_ms": turn.milliseconds if record is None else record.id // 1_000_000,
        "tenant": turn.tenant,
        "conversation": turn.conversation,
        "turn": turn.number,
        "policy": turn.policy,
        "policy_version": None if record is None else record.policy_version,
        "epoch": turn.epoch,
        "body": body,
        "reply": None if turn.reply is None else without_bytes(turn.reply),
        "outcome": None if record is None else record.outcome,
        "usage": None if record is None else _usage(record),
        "timing": None if record is None else _timing(record),
        "break": None if record is None or record.cause is None else _break(record),
        "cost": None if record is None else record.cost,
        "reuse": None if record is None or record.reuse is None else _reuse(record),
    }


def without_bytes(wire: Mapping[str, Any]) -> dict[str, Any]:
    """A message with a reference in place of each image."""
    content: Any = wire.get("content")
    if not isinstance(content, list):
        return dict(wire)
    parts = [_reference(part) if isinstance(part, ImagePart) else part for part in cast("Sequence[Any]", content)]
    return {key: parts if key == "content" else value for key, value in wire.items()}


def _reference(part: ImagePart) -> dict[str, Any]:
    ref = part.ref
    made: dict[str, Any] = {
        "type": "image_ref",
        "image_id": ref.image_id,
        "media_type": ref.media_type,
        "size_bytes": ref.size_bytes,
        "width": ref.width,
        "height": ref.height,
    }
    return made if part.detail is None else {**made, "detail": part.detail}


def _usage(record: TurnRecord) -> dict[str, Any]:
    """As vLLM writes it, with what the gateway knows beside it."""
    prompt, completion = record.prompt_tokens, record.completion_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": None if prompt is None or completion is None else prompt + completion,
        "prompt_tokens_details": {
            "cached_tokens": record.read_tokens,
            "created_cache_tokens": None if record.write_derived else record.write_tokens,
            "multimodal_tokens": {"image": record.visual_tokens},
        },
        "uncached_tokens": record.uncached_tokens,
        "expected_read_tokens": record.expected_read,
        "loaded_tokens": record.loaded_tokens,
        "encoder_runs": record.encoder_runs,
        "encoder_hits": record.encoder_hits,
    }


def _timing(record: TurnRecord) -> dict[str, Any]:
    return {"first_token_seconds": record.first_token_seconds, "total_seconds": record.total_seconds}


def _reuse(record: TurnRecord) -> dict[str, Any]:
    return {"allowed": record.reuse, "by": record.reuse_by}


def _break(record: TurnRecord) -> dict[str, Any]:
    return {
        "cause": record.cause,
        "actor": record.actor,
        "message": record.break_message,
        "part": record.break_part,
        "token": record.break_token,
        "lost_tokens": record.lost_tokens,
    }
