"""Images: the list, and the conversations that one occurs in."""

from __future__ import annotations

import re
from typing import Any, get_args

from metrics.kv_mirror.base import MirrorCounts, Modality, TokenModality
from metrics.records import queries
from metrics.records.figures import ImageTotals
from metrics.records.queries import Filter, Records
from metrics.records.reader import names_where
from metrics.records.schema import NANOSECONDS

PAGE = 48
MOST = 960
_MOST_CONVERSATIONS = 100
_HEX = re.compile(r"[0-9a-f]{2,64}")
IMAGE_ID = re.compile(r"[0-9a-f]{64}")


def image_list(records: Records, names: Filter, find: str = "", limit: int = PAGE) -> dict[str, Any]:
    """Images, those that were sent last first.

    Args:
        records: the file.
        names: whose; models and policies are not heeded.
        find: the beginning of an image_id.
        limit: how many.
    """
    limit = max(1, min(limit, MOST))
    if find:
        return {"images": [_listed(one) for one in named(records, names.tenant, find, limit)], "has_more": False}
    found = queries.images(records, Filter(tenant=names.tenant), limit + 1)
    return {"images": [_listed(one) for one in found[:limit]], "has_more": limit < len(found)}


def by_modality(counts: MirrorCounts) -> dict[str, Any]:
    """What the engine's KV cache holds, and what has left it since the gateway started: tokens, and blocks."""
    gone: dict[str, int] = {}
    for (modality, _), tokens in counts.evicted_tokens.items():
        gone[modality] = gone.get(modality, 0) + tokens
    return {
        "resident_tokens": {modality: counts.resident_tokens.get(modality, 0) for modality in get_args(TokenModality)},
        "evicted_tokens": {modality: gone.get(modality, 0) for modality in get_args(TokenModality)},
        "resident_blocks": {kind: counts.resident_blocks.get(kind, 0) for kind in get_args(Modality)},
        "evicted_blocks": {kind: counts.evicted_blocks.get(kind, 0) for kind in get_args(Modality)},
    }


def named(records: Records, tenant: str | None, find: str, limit: int) -> list[ImageTotals]:
    """The images whose id begins so; none for what is no beginning of one."""
    find = find.lower()
    if not _HEX.fullmatch(find):
        return []
    low, high = bytes.fromhex(find.ljust(64, "0")), bytes.fromhex(find.ljust(64, "f"))
    where, parameters = names_where(Filter(tenant=tenant), "i.")
    # By tenant, for so the table is laid out.
    rows = records.rows(
        "SELECT t.name, i.image, sum(i.turns), sum(i.occurrences), count(*), min(i.first_record), max(i.last_record) "
        "FROM record_names t CROSS JOIN record_images i ON i.tenant = t.id "
        f"WHERE i.image >= ? AND i.image <= ?{where} GROUP BY 1, 2 ORDER BY 7 DESC LIMIT ?",
        (low, high, *parameters, limit),
    )
    return [
        ImageTotals(owner, image.hex(), turns, occurrences, count, first / NANOSECONDS, last / NANOSECONDS)
        for owner, image, turns, occurrences, count, first, last in rows
    ]


def image(records: Records, tenant: str, image_id: str) -> dict[str, Any] | None:
    """One image with the conversations it occurs in, the latest first; None where there is none."""
    found = named(records, tenant, image_id, 1)
    if not found:
        return None
    rows = records.rows(
        "SELECT c.name, p.name, m.name, i.turns, i.occurrences, i.first_record, i.last_record, c.turns "
        "FROM record_images i JOIN record_conversations c ON c.id = i.conversation "
        "JOIN record_names p ON p.id = c.policy JOIN record_names m ON m.id = c.model "
        "WHERE i.tenant = (SELECT id FROM record_names WHERE name = ?) AND i.image = ? "
        "ORDER BY i.last_record DESC LIMIT ?",
        (tenant, bytes.fromhex(image_id), _MOST_CONVERSATIONS),
    )
    evicted = [one for one in queries.turns_of_image(records, tenant, image_id) if one.evicted_image == image_id]
    return {
        **_listed(found[0]),
        "in": [
            {
                "conversation": name,
                "policy": policy,
                "model": model,
                "turns": turns,
                "occurrences": occurrences,
                "first_seconds": first / NANOSECONDS,
                "last_seconds": last / NANOSECONDS,
                "conversation_turns": length,
            }
            for name, policy, model, turns, occurrences, first, last, length in rows
        ],
        "evicted_in": [
            {
                "conversation": one.conversation,
                "turn": one.number,
                "seconds": one.seconds,
                "lost_tokens": one.lost_tokens,
            }
            for one in evicted
        ],
    }


def _listed(one: ImageTotals) -> dict[str, Any]:
    return {
        "tenant": one.tenant,
        "image_id": one.image_id,
        "turns": one.turns,
        "occurrences": one.occurrences,
        "conversations": one.conversations,
        "first_seconds": one.first_seconds,
        "last_seconds": one.last_seconds,
    }
