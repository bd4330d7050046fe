"""The dashboard's views: the records' figures, and beside them what only the running process knows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from typing import Any

from app.dashboard.access import Viewer
from app.dashboard.pool_and_tiers import pool_and_tiers
from app.gateway import Gateway
from context.errors import RequestError
from metrics.dashboard.conversations import conversation, conversation_list
from metrics.dashboard.images import IMAGE_ID, PAGE, by_modality, image, image_list
from metrics.dashboard.overview import overview
from metrics.dashboard.policies import document, measured
from metrics.dashboard.window import RANGES, window
from metrics.kv_mirror import KvMirror, Owner
from metrics.records import queries
from metrics.records.queries import Filter, Records

_MOST_CHARS = 1024
_NEAREST = 12


@dataclass(frozen=True, slots=True)
class Asked:
    """A question: who asks, what the page's address says, and when."""

    viewer: Viewer
    query: Mapping[str, str]
    now: float

    @property
    def names(self) -> Filter:
        """Whose turns. A tenant's viewer never asks for another's."""
        query = self.query
        tenant = self.viewer.tenant if self.viewer.tenant is not None else query.get("tenant") or None
        return Filter(None, None, tenant, query.get("model") or None, query.get("policy") or None)

    @property
    def range(self) -> str:
        """The name of the time's range.

        Raises:
            RequestError: there is no such range.
        """
        name = self.query.get("range", "1h")
        if name not in RANGES:
            raise RequestError(f"range takes one of {', '.join(RANGES)}.", code="invalid_value", param="range")
        return name

    def number(self, name: str, otherwise: int | None) -> int | None:
        """A whole number.

        Raises:
            RequestError: it is none.
        """
        text = self.query.get(name, "")
        if not text:
            return otherwise
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise RequestError(f"{name} takes a whole number.", code="invalid_value", param=name)
        return int(text)

    def tenant_of(self, what: str) -> str:
        """Whose conversation or image is asked for.

        Raises:
            RequestError: (404) not the viewer's, which is said as if there were none.
        """
        tenant = self.query.get("tenant", "")
        if self.viewer.tenant is not None and self.viewer.tenant != tenant:
            raise missing(what)
        return tenant


def missing(what: str) -> RequestError:
    """There is no such thing, or it is another tenant's."""
    return RequestError(
        f"There is no such {what} in the records. They are kept for records.max_age_seconds.",
        code="not_found",
        status=404,
    )


def live_version(gateway: Gateway, name: str) -> tuple[Any, ...]:
    """Changes when what the process knows beside the records does, as far as a view shows it."""
    mirror = _mirror(gateway)
    seen = (mirror.last_eviction, mirror.resident_blocks) if mirror is not None else ()
    checks = tuple(gateway.engine_checks().values()) if name == "status" else ()
    if name == "images":
        seen = (*seen, gateway.engine_log.pool, gateway.engine_log.tiers)
    return (gateway.engine.health().state, gateway.metrics.running_now, checks, *seen)


async def status(gateway: Gateway, asked: Asked) -> dict[str, Any]:
    """Who looks, and at what."""
    of, info, health = Filter(tenant=asked.viewer.tenant), gateway.engine.info(), gateway.engine.health()
    mirror = _mirror(gateway)

    def names(records: Records) -> dict[str, list[str]]:
        return {
            f"{kind}s" if kind != "policy" else "policies": [g.values[0] for g in queries.by(records, [kind], of)]
            for kind in (("model", "policy") if asked.viewer.tenant is not None else ("tenant", "model", "policy"))
        }

    return {
        "version": _version(),
        "boot": gateway.dashboard.started,
        "viewer": {"by": asked.viewer.by, "tenant": asked.viewer.tenant},
        "engine": {
            "kind": info.kind,
            "state": health.state,
            "reason": health.reason,
            "models": list(info.models),
            "block_tokens": info.block_tokens,
            "checks": gateway.engine_checks(),
            "warnings": [*gateway.reporting.warnings, *gateway.template.warnings],
        },
        "kv": None
        if mirror is None
        else {
            "resident_blocks": mirror.resident_blocks,
            "resident_tokens": mirror.resident_blocks * mirror.block_tokens,
            "uncertain_blocks": mirror.uncertain_blocks,
            "evictions": mirror.last_eviction,
            "gaps": mirror.gaps,
            "restarts": mirror.restarts,
        },
        "has_encoder_events": gateway.recorder.has_encoder_events,
        "running": gateway.metrics.running_now,
        "policy": gateway.policies.default.name,
        "names": await gateway.dashboard.source.ask(names),
    }


async def overview_view(gateway: Gateway, asked: Asked) -> dict[str, Any]:
    """Now and over time."""
    mirror = _mirror(gateway)
    evicted = None if mirror is None else mirror.evictions()
    return await gateway.dashboard.source.ask(
        lambda records: overview(records, window(records, asked.range, asked.now), asked.names, evicted)
    )


async def conversations_view(gateway: Gateway, asked: Asked) -> dict[str, Any]:
    """The list of conversations."""
    before = asked.number("before", None)
    find = asked.query.get("find", "")[:_MOST_CHARS]
    return await gateway.dashboard.source.ask(lambda records: conversation_list(records, asked.names, before, find))


async def conversation_view(gateway: Gateway, asked: Asked) -> dict[str, Any]:
    """One conversation."""
    tenant, name = asked.tenant_of("conversation"), asked.query.get("id", "")
    found = await gateway.dashboard.source.ask(lambda records: conversation(records, tenant, name))
    if found is None:
        raise missing("conversation")
    mirror = _mirror(gateway)
    if mirror is not None:
        owner = Owner(tenant, name)
        blocks = mirror.blocks(owner)
        found["kv"] = {
            "known_blocks": len(blocks),
            "resident_blocks": sum(block.sure for block in blocks),
            "resident_prefix_tokens": mirror.resident_prefix(owner),
            "block_tokens": mirror.block_tokens,
        }
    return found


async def images_view(gateway: Gateway, asked: Asked) -> dict[str, Any]:
    """The list of images."""
    limit, find = asked.number("limit", PAGE) or PAGE, asked.query.get("find", "")[:_MOST_CHARS]

    def ask(records: Records) -> dict[str, Any]:
        found = image_list(records, asked.names, find, limit)
        for one in found["images"]:
            one["near"] = gateway.images.alike(one["image_id"], tenant=one["tenant"], most=0).count
        return found

    found = await gateway.dashboard.source.ask(ask)
    for one in found["images"]:
        one.update(_in_engine(gateway, one["tenant"], one["image_id"]))
    # Of all tenants together, so none of a tenant's business.
    if asked.viewer.tenant is not None:
        return {**found, "kv": None, "pool": None, "tiers": None}
    mirror = _mirror(gateway)
    return {**found, "kv": None if mirror is None else by_modality(mirror.counts()), **pool_and_tiers(gateway)}


async def image_view(gateway: Gateway, asked: Asked) -> dict[str, Any]:
    """One image."""
    tenant, image_id = asked.tenant_of("image"), asked.query.get("id", "")
    if not IMAGE_ID.fullmatch(image_id):
        raise missing("image")
    found = await gateway.dashboard.source.ask(lambda records: image(records, tenant, image_id))
    if found is None:
        raise missing("image")
    shown = await gateway.images.thumbnail(image_id, tenant=tenant)
    alike = gateway.images.alike(image_id, tenant=tenant, most=_NEAREST)
    return {
        **found,
        **_in_engine(gateway, tenant, image_id),
        "stored": None
        if shown is None
        else {
            "width": shown.width,
            "height": shown.height,
            "media_type": shown.media_type,
            "size_bytes": shown.size_bytes,
        },
        "near_count": alike.count,
        "near": [
            {"image_id": one.second, "distance": one.distance, "low_information": one.low_information}
            for one in alike.nearest
        ],
    }


async def policy_view(gateway: Gateway, asked: Asked) -> dict[str, Any]:
    """The policies in force, and what turns under each came to."""
    tenant, default = asked.viewer.tenant, gateway.policies.default
    # Other tenants' names are none of a tenant's business.
    named = zip(gateway.settings.policy_rules, gateway.policies.rule_names, strict=True)
    rules = [(rule, name) for rule, name in named if tenant is None or rule.tenant in (None, tenant)]
    found = await gateway.dashboard.source.ask(
        lambda records: measured(records, window(records, asked.range, asked.now), asked.names, default.name)
    )
    return {
        "default": document(default),
        "rules": [
            {"model": rule.model, "tenant": rule.tenant, "share": rule.share, "policy": name} for rule, name in rules
        ],
        "headers": list(gateway.policies.header_names),
        **found,
    }


View = Callable[[Gateway, Asked], Awaitable[dict[str, Any]]]
VIEWS: Mapping[str, View] = {
    "status": status,
    "overview": overview_view,
    "conversations": conversations_view,
    "conversation": conversation_view,
    "images": images_view,
    "image": image_view,
    "policy": policy_view,
}
# Views whose time goes on even where nothing happens.
WINDOWED = frozenset(("overview", "policy"))


def _in_engine(gateway: Gateway, tenant: str, image_id: str) -> dict[str, Any]:
    """What the engine's caches hold of an image, and what they did for it; None where the engine does not tell."""
    uuid = gateway.dashboard.access.tenant(tenant).image_uuid(image_id)
    mirror = _mirror(gateway)
    held = None if mirror is None else mirror.image(uuid)
    encoder = gateway.engine_log.of_image(uuid) if gateway.recorder.has_encoder_events else None
    return {
        "resident_tokens": None if mirror is None else held.tokens if held is not None else 0,
        "resident_blocks": None if mirror is None else held.blocks if held is not None else 0,
        "encoder_runs": None if encoder is None else encoder.runs,
        "encoder_hits": None if encoder is None else encoder.hits,
    }


def _mirror(gateway: Gateway) -> KvMirror | None:
    return None if gateway.recorder.attributor is None else gateway.recorder.attributor.mirror


@lru_cache(maxsize=1)
def _version() -> str:
    try:
        return metadata.version("stillframe")
    except metadata.PackageNotFoundError:
        return ""
