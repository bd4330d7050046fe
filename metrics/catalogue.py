"""Every metric of the gateway, once: what it counts, in what unit, and what to do about it.

`metrics/prometheus.py` makes the metrics from these entries and `docs/metrics.md` is written from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Entry:
    """One metric. `labels` says which values each label can have; there are no others.

    `name` is the family's: a counter appears with `_total` behind it, a histogram with `_bucket`, `_sum`, `_count`.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    meaning: str
    remedy: str
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    buckets: tuple[float, ...] = ()

    @property
    def exposed(self) -> str:
        """The name as Prometheus shows it."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_LAG_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 5)

_ENTRIES = (
    Entry(
        "stillframe_requests",
        "counter",
        "Chat requests that ended.",
        "`failed` rising: see readiness and the engine's log. `refused` rising: a client sends what cannot be served.",
        {"outcome": "completed, aborted, failed, refused", "stream": "true, false"},
    ),
    Entry(
        "stillframe_prompt_tokens",
        "counter",
        "Prompt tokens of completed requests: read from the prefix cache, written to it, or neither.",
        "`write` and `uncached` are what is paid for. Rising without longer prompts: run the experiment, look for "
        "clients that change their history.",
        {"disposition": "read, write, uncached"},
    ),
    Entry(
        "stillframe_derived_write_tokens",
        "counter",
        "The part of the prompt tokens counted as `write` of which the engine said only that they were not read: it "
        "gave no usable figure of what it wrote, so none of them counts as `uncached`.",
        "Above 0: read `write` as written or uncached; only an engine that reports `created_cache_tokens` tells them "
        "apart.",
    ),
    Entry(
        "stillframe_visual_tokens",
        "counter",
        "Prompt tokens that are images, of completed requests.",
        "Send smaller images where their detail is not needed.",
    ),
    Entry(
        "stillframe_completion_tokens", "counter", "Generated tokens of completed requests.", "Nothing; for proportion."
    ),
    Entry(
        "stillframe_unreported_requests",
        "counter",
        "Completed requests whose cache figures the engine did not report. Their prompt tokens have no disposition and "
        "are not in `stillframe_prompt_tokens_total`.",
        "Start the engine with `--enable-prompt-tokens-details`, or accept that it does not tell.",
    ),
    Entry(
        "stillframe_image_lookups",
        "counter",
        "Image parts by how their identity was found: same text or bytes as before, a stored snapshot, or decoding.",
        "Much `decoded` for few images: clients re-encode on every request; more memory in `images.memo_entries`.",
        {"result": "text, bytes, snapshot, decoded"},
    ),
    Entry(
        "stillframe_image_fetches", "counter", "Image URLs fetched.", "Compare with lookups: history is not fetched."
    ),
    Entry(
        "stillframe_sent_image_bytes",
        "counter",
        "Image payload sent to the engine, as data URLs, in bytes.",
        "High beside few new images: the engine does not know uuids, or its processor cache is too small.",
    ),
    Entry(
        "stillframe_image_misses",
        "counter",
        "Images that were sent again because the engine no longer held them.",
        "Rising: give the engine a larger processor cache (`engine.vllm.mm-processor-cache-gb`).",
    ),
    Entry(
        "stillframe_encoder_images",
        "counter",
        "Images by what the engine's encoder cache did. An image whose tokens are all read reaches it not at all.",
        "`evict` beside `run`: the encoder cache is too small for the images in use.",
        {"event": "run, hit, evict"},
    ),
    Entry(
        "stillframe_first_byte_seconds",
        "histogram",
        "From a request's first byte to the first byte of its answer, in seconds.",
        "Compare with `vllm:time_to_first_token_seconds`: the rest is the gateway and the network.",
        buckets=_SECONDS,
    ),
    Entry(
        "stillframe_total_seconds",
        "histogram",
        "From a request's first byte to the last byte of its answer, in seconds.",
        "Nothing by itself; for objectives.",
        buckets=_SECONDS,
    ),
    Entry(
        "stillframe_running_requests",
        "gauge",
        "Chat requests in progress.",
        "At `server.max_concurrent_requests` new ones are refused with 429.",
    ),
    Entry(
        "stillframe_engine_ready",
        "gauge",
        "1 when the engine is ready, else 0.",
        "0: see /health/ready for the reason.",
    ),
    Entry(
        "stillframe_event_loop_lag_seconds",
        "histogram",
        "How late the event loop wakes, in seconds, sampled every 50 ms.",
        "Above 0.05 for long: fewer `images.decode_threads`, or an upstream with more workers.",
        buckets=_LAG_SECONDS,
    ),
    Entry(
        "stillframe_asyncio_tasks",
        "gauge",
        "Tasks on the event loop.",
        "Rising without requests: report it as a fault.",
    ),
)
CATALOGUE: Mapping[str, Entry] = {entry.name: entry for entry in _ENTRIES}
