"""The gateway's own Prometheus metrics. Each stands here once; docs/metrics.md explains them, and a test compares."""

from __future__ import annotations

import asyncio
import os
from typing import Literal

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from metrics.usage import Usage

Outcome = Literal["completed", "aborted", "failed", "refused"]

# Set before prometheus_client is imported, it makes the worker processes share their figures through files.
WORKERS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_LAG_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 5)


class GatewayMetrics:
    """All metrics of one gateway process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "stillframe_requests", "Chat requests by outcome.", ["outcome", "stream"], registry=registry
        )
        self.prompt_tokens = Counter(
            "stillframe_prompt_tokens", "Prompt tokens by disposition.", ["disposition"], registry=registry
        )
        self.visual_tokens = Counter("stillframe_visual_tokens", "Prompt tokens of images.", registry=registry)
        self.completion_tokens = Counter("stillframe_completion_tokens", "Generated tokens.", registry=registry)
        self.unreported = Counter(
            "stillframe_unreported_requests", "Completed requests without reported cache figures.", registry=registry
        )
        self.images = Counter("stillframe_images", "Image parts by what was known.", ["known"], registry=registry)
        self.image_bytes = Counter(
            "stillframe_sent_image_bytes", "Image payload sent to the engine.", registry=registry
        )
        self.image_misses = Counter(
            "stillframe_image_misses", "Images sent again because the engine did not hold them.", registry=registry
        )
        self.encoder_images = Counter(
            "stillframe_encoder_images", "Images by what the encoder cache did.", ["event"], registry=registry
        )
        self.first_byte_seconds = Histogram(
            "stillframe_first_byte_seconds", "Request to first byte of the answer.", registry=registry, buckets=_SECONDS
        )
        self.total_seconds = Histogram(
            "stillframe_total_seconds", "Request to end of the answer.", registry=registry, buckets=_SECONDS
        )
        self.running_now = 0
        self._running = Gauge(
            "stillframe_running_requests", "Chat requests in progress.", registry=registry, multiprocess_mode="livesum"
        )
        self._ready = Gauge(
            "stillframe_engine_ready", "1 when the engine is ready.", registry=registry, multiprocess_mode="livemin"
        )
        self.loop_lag = Histogram(
            "stillframe_event_loop_lag_seconds",
            "How late the event loop wakes.",
            registry=registry,
            buckets=_LAG_SECONDS,
        )
        self._tasks = Gauge(
            "stillframe_asyncio_tasks", "Tasks on the event loop.", registry=registry, multiprocess_mode="livesum"
        )

    def count_usage(self, usage: Usage) -> None:
        """Count a completed turn's tokens; what was not reported is not counted as 0."""
        if usage.completion_tokens:
            self.completion_tokens.inc(usage.completion_tokens)
        if usage.visual_tokens:
            self.visual_tokens.inc(usage.visual_tokens)
        if usage.read_tokens is None or usage.write_tokens is None or usage.uncached_tokens is None:
            self.unreported.inc()
            return
        self.prompt_tokens.labels("read").inc(usage.read_tokens)
        self.prompt_tokens.labels("write").inc(usage.write_tokens)
        self.prompt_tokens.labels("uncached").inc(usage.uncached_tokens)

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
