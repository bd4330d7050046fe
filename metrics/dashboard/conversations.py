"""Conversations: the list, and the turns of one."""

from __future__ import annotations

from typing import Any

from metrics.dashboard.overview import figures
from metrics.records import queries
from metrics.records.figures import ConversationTotals
from metrics.records.queries import Filter, Records
from metrics.records.record import TurnRecord

PAGE = 25
MOST_TURNS = 500


def conversation_list(
    records: Records, names: Filter, before: int | None = None, find: str = "", limit: int = PAGE
) -> dict[str, Any]:
    """A page of conversations, the latest first.

    Args:
        records: the file.
        names: whose.
        before: `cursor` of the page before.
        find: a part of the id.
        limit: how many.
    """
    found = queries.conversations(records, names, limit + 1, before, find)
    shown = found[:limit]
    return {
        "conversations": [_listed(one) for one in shown],
        # As text: a number of 19 digits is more than a browser can hold.
        "cursor": str(shown[-1].last_record) if len(found) > limit else None,
    }


def conversation(records: Records, tenant: str, name: str) -> dict[str, Any] | None:
    """One conversation with its latest turns; None where there is none."""
    turns = queries.conversation_turns(records, tenant, name, MOST_TURNS)
    if not turns:
        return None
    return {
        "tenant": tenant,
        "conversation": name,
        "turns": [turn_figures(one) for one in turns],
        "is_cut": len(turns) == MOST_TURNS,
    }


def turn_figures(record: TurnRecord) -> dict[str, Any]:
    """What the page shows of a turn."""
    return {
        "id": str(record.id),
        "request_id": record.request_id,
        "seconds": record.seconds,
        "turn": record.number,
        "model": record.model,
        "policy": record.policy,
        "policy_version": record.policy_version,
        "epoch": record.epoch,
        "stream": record.stream,
        "outcome": record.outcome,
        "prompt_tokens": record.prompt_tokens,
        "read_tokens": record.read_tokens,
        "write_tokens": record.write_tokens,
        "uncached_tokens": record.uncached_tokens,
        "loaded_tokens": record.loaded_tokens,
        "write_derived": record.write_derived,
        "visual_tokens": record.visual_tokens,
        "completion_tokens": record.completion_tokens,
        "expected_read": record.expected_read,
        "lost_tokens": record.lost_tokens,
        "cause": record.cause,
        "actor": record.actor,
        "break_message": record.break_message,
        "break_part": record.break_part,
        "break_token": record.break_token,
        "evicted_image": record.evicted_image,
        "evicted_conversation": record.evicted_conversation,
        "evicted_tokens": record.evicted_tokens,
        "unseen_images": record.unseen_images,
        "image_eviction": record.image_eviction,
        "summary": record.summary,
        "images": record.images,
        "new_images": record.new_images,
        "encoder_runs": record.encoder_runs,
        "encoder_hits": record.encoder_hits,
        "first_token_seconds": record.first_token_seconds,
        "total_seconds": record.total_seconds,
        "cost": record.cost,
        "reuse": record.reuse,
        "reuse_by": record.reuse_by,
        "image_ids": list(record.image_ids),
    }


def _listed(one: ConversationTotals) -> dict[str, Any]:
    return {
        "tenant": one.tenant,
        "conversation": one.conversation,
        "models": list(one.models),
        "policies": list(one.policies),
        "first_seconds": one.first_seconds,
        "last_seconds": one.last_seconds,
        "turns": one.turns,
        **figures(one.totals),
    }
