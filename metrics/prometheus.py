"""The gateway's own Prometheus metrics, made from the catalogue."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from typing import Literal

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from context.images.stats import ImageStats
from engine.base import BlockTierState, ImagePoolState, ImageReuse
from metrics.catalogue import ANSWERS, BLOCKS, CATALOGUE, CHECKS, HEALED, MODALITIES, USERS
from metrics.kv_mirror import MirrorCounts
from metrics.records.record import Outcome, TurnRecord
from metrics.usage import Usage

# Set before prometheus_client is imported, it makes the worker processes share their figures through files.
WORKERS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_TIER_EVENTS = tuple(
    (tier, event, f"{field}_{event}")
    for tier, field in (("memory", "memory"), ("files", "file"))
    for event in ("stored", "loaded", "evicted", "dropped", "refused")
    if (tier, event) != ("memory", "refused")
)
_POOL_EVENTS = (
    ("memory", "evicted", "memory_evicted"),
    ("memory", "refused", "refused_entries"),
    ("files", "evicted", "file_evicted"),
    ("files", "refused", "file_refused"),
)
_Told = ImagePoolState | BlockTierState


def _since(before: _Told, now: _Told, field: str) -> int:
    last, count = int(getattr(before, field)), int(getattr(now, field))
    # An engine that was started again counts from the beginning.
    return count - last if count >= last else count


class GatewayMetrics:
    """All metrics of one gateway process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = self._counter("stillframe_requests")
        # To look a labelled counter up costs more than to count; there are few.
        self._by_outcome: dict[tuple[str, bool], Counter] = {}
        self._by_cause: dict[str, Counter] = {}
        self._prompt_tokens = self._counter("stillframe_prompt_tokens")
        self._read, self._write, self._uncached = (
            self._prompt_tokens.labels(disposition) for disposition in ("read", "write", "uncached")
        )
        self._derived_write = self._counter("stillframe_derived_write_tokens")
        self.visual_tokens = self._counter("stillframe_visual_tokens")
        self.completion_tokens = self._counter("stillframe_completion_tokens")
        self.unreported = self._counter("stillframe_unreported_requests")
        self._dropped_records = self._counter("stillframe_dropped_records")
        self._dropped = 0
        self._expected_read = self._counter("stillframe_expected_read_tokens")
        self._lost, self._turns = self._counter("stillframe_lost_tokens"), self._counter("stillframe_turns")
        self._policy_evictions = self._counter("stillframe_policy_evictions")
        self._summaries, self._healed = self._counter("stillframe_summaries"), self._counter("stillframe_healed")
        self._background_failures = self._counter("stillframe_background_failures")
        self._unseen_images = self._counter("stillframe_unseen_image_requests")
        self._kv_resident = self._gauge("stillframe_kv_resident_tokens", "livemax")
        self._kv_blocks = self._gauge("stillframe_kv_resident_blocks", "livemax")
        self._kv_evicted = self._counter("stillframe_kv_evicted_tokens")
        self._kv_evicted_blocks = self._counter("stillframe_kv_evicted_blocks")
        self._kv_gaps = self._counter("stillframe_kv_event_gaps")
        # Shown as 0 from the beginning: a rise from nothing is none to Prometheus.
        for modality in MODALITIES:
            for users in USERS:
                self._kv_evicted.labels(modality, users)
        self._kv = MirrorCounts({}, {}, {}, 0)
        self.image_lookups = self._counter("stillframe_image_lookups")
        self.image_fetches = self._counter("stillframe_image_fetches")
        self.image_bytes = self._counter("stillframe_sent_image_bytes")
        self.image_misses = self._counter("stillframe_image_misses")
        self.encoder_images = self._counter("stillframe_encoder_images")
        self._pool_images = self._counter("stillframe_image_pool_images")
        self._pool_tokens = self._counter("stillframe_image_pool_tokens")
        self._pool_bytes = self._gauge("stillframe_image_pool_bytes", "livemax")
        self._pool_entries = self._gauge("stillframe_image_pool_entries", "livemax")
        self._pool_events = self._counter("stillframe_image_pool_events")
        self._file_faults = self._counter("stillframe_kv_file_faults")
        self._files_stopped = self._gauge("stillframe_kv_files_stopped", "livemax")
        for store in ("image_pool", "block_tiers"):
            # As for evictions: a rise from nothing is none to Prometheus.
            self._file_faults.labels(store)
        self._pool = ImagePoolState()
        self._tier_bytes = self._gauge("stillframe_block_tier_bytes", "livemax")
        self._tier_blocks = self._gauge("stillframe_block_tier_memory_blocks", "livemax")
        self._tier_events = self._counter("stillframe_block_tier_blocks")
        self._tiers = BlockTierState()
        self.first_byte_seconds = self._histogram("stillframe_first_byte_seconds")
        self.total_seconds = self._histogram("stillframe_total_seconds")
        self.loop_lag = self._histogram("stillframe_event_loop_lag_seconds")
        self.running_now = 0
        self._running = self._gauge("stillframe_running_requests", "livesum")
        self._ready = self._gauge("stillframe_engine_ready", "livemin")
        self._checks = self._gauge("stillframe_engine_check", "livemax")
        self._tasks = self._gauge("stillframe_asyncio_tasks", "livesum")
        self._image_stats = ImageStats()

    def _counter(self, name: str) -> Counter:
        entry = CATALOGUE[name]
        return Counter(name, entry.meaning, tuple(entry.labels), registry=self.registry)

    def _histogram(self, name: str) -> Histogram:
        entry = CATALOGUE[name]
        return Histogram(name, entry.meaning, tuple(entry.labels), registry=self.registry, buckets=entry.buckets)

    def _gauge(self, name: str, across_workers: Literal["livesum", "livemin", "livemax"]) -> Gauge:
        entry = CATALOGUE[name]
        labels = tuple(entry.labels)
        return Gauge(name, entry.meaning, labels, registry=self.registry, multiprocess_mode=across_workers)

    def count_record(self, record: TurnRecord) -> None:
        """Count a turn: its outcome, its times and, where it was completed, its tokens and what it lost. Everything
        that a record says of a turn is counted here and nowhere else."""
        first_token, total = record.first_token_seconds, record.total_seconds
        self.count_ended(record.outcome, record, stream=record.stream, first_token=first_token, total=total)
        self.count_attributed(record)

    def count_ended(
        self,
        outcome: Outcome,
        usage: Usage | TurnRecord | None,
        *,
        stream: bool,
        first_token: float | None,
        total: float | None,
    ) -> None:
        """Count what is known of a turn at its very end; `first_token` and `total` in seconds. Without `usage` its
        tokens are counted later."""
        self.count_request(outcome, stream=stream)
        if total is not None:
            self.total_seconds.observe(total)
        if first_token is not None:
            self.first_byte_seconds.observe(first_token)
        if outcome == "completed" and usage is not None:
            self.count_usage(usage)

    def count_attributed(self, record: TurnRecord) -> None:
        """Count what the policy evicted, and what a completed turn lost and why."""
        if record.image_eviction:
            self._policy_evictions.inc()
        if record.unseen_images:
            self._unseen_images.inc()
        if record.outcome != "completed":
            return
        cause = record.cause or "none"
        counter = self._by_cause.get(cause)
        if counter is None:
            counter = self._by_cause[cause] = self._turns.labels(cause)
        counter.inc()
        if record.expected_read:
            self._expected_read.inc(record.expected_read)
        if record.lost_tokens and record.cause is not None and record.actor is not None:
            self._lost.labels(record.cause, record.actor).inc(record.lost_tokens)

    def count_reuse(self, reuse: ImageReuse) -> None:
        """Count what a request got of its images' KV."""
        for result, images in (("hit", reuse.hits), ("miss", reuse.misses)):
            self._pool_images.labels(result).inc(images)
        for disposition, tokens in (
            ("loaded", reuse.loaded_tokens),
            ("computed", reuse.computed_tokens),
            ("reread", reuse.reread_tokens),
        ):
            self._pool_tokens.labels(disposition).inc(tokens)

    def show_pool(self, pool: ImagePoolState) -> None:
        """Show what the pool of images' KV holds now, and count what happened since it was last shown."""
        self._pool_bytes.labels("memory").set(pool.memory_bytes)
        self._pool_bytes.labels("files").set(pool.file_bytes)
        self._pool_entries.labels("memory").set(pool.memory_entries)
        self._pool_entries.labels("files").set(pool.file_entries)
        before, self._pool = self._pool, pool
        for tier, event, field in _POOL_EVENTS:
            self._pool_events.labels(tier, event).inc(_since(before, pool, field))
        self._count_faults("image_pool", before, pool)

    def show_tiers(self, tiers: BlockTierState) -> None:
        """Show what the tiers below the prefix cache hold now, and count what happened since they were last shown."""
        in_memory = {"text": tiers.text_blocks, "image": tiers.image_blocks, "mixed": tiers.mixed_blocks}
        for modality, blocks in in_memory.items():
            self._tier_blocks.labels(modality).set(blocks)
        self._tier_bytes.labels("memory").set(sum(in_memory.values()) * tiers.block_bytes)
        self._tier_bytes.labels("files").set(tiers.file_bytes)
        before, self._tiers = self._tiers, tiers
        for tier, event, field in _TIER_EVENTS:
            self._tier_events.labels(tier, event).inc(_since(before, tiers, field))
        self._count_faults("block_tiers", before, tiers)

    def _count_faults(self, store: str, before: _Told, now: _Told) -> None:
        self._file_faults.labels(store).inc(_since(before, now, "file_faults"))
        # Where there is no folder, nothing is written either.
        self._files_stopped.labels(store).set(int(now.file_faults > 0 and not now.writing))

    def count_healed(self, words: Iterable[str]) -> None:
        """Count differences that were undone, each by its word (`context/plan.py::Healed`)."""
        for word in words:
            self._healed.labels(word if word in HEALED else "other").inc()

    def count_summary(self, is_made: bool) -> None:
        """Count a summary that the engine was asked for."""
        self._summaries.labels("made" if is_made else "failed").inc()

    def count_background_failure(self, task: str) -> None:
        """Count that work beside the requests broke."""
        self._background_failures.labels(task).inc()

    def count_kv(self, counts: MirrorCounts) -> None:
        """Say what the engine's prefix cache holds now, and count what has left it since the last call."""
        before, self._kv = self._kv, counts
        for modality in MODALITIES:
            self._kv_resident.labels(modality).set(counts.resident_tokens.get(modality, 0))
        for kind in BLOCKS:
            self._kv_blocks.labels(kind).set(counts.resident_blocks.get(kind, 0))
            evicted = counts.evicted_blocks.get(kind, 0) - before.evicted_blocks.get(kind, 0)
            self._kv_evicted_blocks.labels(kind).inc(max(0, evicted))
        for (modality, users), tokens in counts.evicted_tokens.items():
            self._kv_evicted.labels(modality, users).inc(
                max(0, tokens - before.evicted_tokens.get((modality, users), 0))
            )
        # Of a mirror that was begun again: it counts anew.
        self._kv_gaps.inc(max(0, counts.gaps - before.gaps))

    def count_checks(self, checks: Mapping[str, str]) -> None:
        """Say what was found out about the engine, by `CHECKS` and `ANSWERS`."""
        for check in CHECKS:
            for answer in ANSWERS:
                self._checks.labels(check, answer).set(int(checks.get(check, "unknown") == answer))

    def count_dropped_records(self, dropped: int) -> None:
        """Count the records that were lost since the last call; `dropped` is all of them."""
        self._dropped_records.inc(dropped - self._dropped)
        self._dropped = dropped

    def count_images(self, stats: ImageStats) -> None:
        """Count what the image service did since the last call."""
        before, self._image_stats = self._image_stats, stats
        for result, counted in (
            ("text", stats.wire_hits - before.wire_hits),
            ("bytes", stats.byte_hits - before.byte_hits),
            ("snapshot", stats.snapshot_hits - before.snapshot_hits),
            ("decoded", stats.decodes - before.decodes),
        ):
            self.image_lookups.labels(result).inc(counted)
        self.image_fetches.inc(stats.fetches - before.fetches)

    def count_request(self, outcome: Outcome, *, stream: bool) -> None:
        """Count a chat request that ended."""
        counter = self._by_outcome.get((outcome, stream))
        if counter is None:
            counter = self._by_outcome[outcome, stream] = self._requests.labels(outcome, str(stream).lower())
        counter.inc()

    def count_usage(self, usage: Usage | TurnRecord) -> None:
        """Count a completed turn's tokens; what was not reported is not counted as 0."""
        if usage.completion_tokens:
            self.completion_tokens.inc(usage.completion_tokens)
        if usage.visual_tokens:
            self.visual_tokens.inc(usage.visual_tokens)
        if usage.read_tokens is None or usage.write_tokens is None or usage.uncached_tokens is None:
            self.unreported.inc()
            return
        self._read.inc(usage.read_tokens)
        self._write.inc(usage.write_tokens)
        self._uncached.inc(usage.uncached_tokens)
        if usage.loaded_tokens:
            self._prompt_tokens.labels("loaded").inc(usage.loaded_tokens)
        if usage.write_derived:
            self._derived_write.inc(usage.write_tokens)

    def exposition(self, *, engine_ready: bool) -> bytes:
        """All metrics in Prometheus' text format: of every worker process, and of an embedded engine."""
        self._running.set(self.running_now)
        self._ready.set(int(engine_ready))
        self._tasks.set(len(asyncio.all_tasks()))
        if os.environ.get(WORKERS_FOLDER):
            registry = CollectorRegistry()
            MultiProcessCollector(registry)
            return generate_latest(registry)
        # vLLM registers its own metrics with the process's default registry.
        return generate_latest(self.registry) + generate_latest(REGISTRY)
