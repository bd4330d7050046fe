"""Every metric of the gateway, once: what it counts, in what unit, and what to do about it.

`metrics/prometheus.py` makes the metrics from these entries and `docs/metrics.md` is written from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from context.plan import Actor, Cause
from metrics.kv_mirror.base import Modality, TokenModality, Users
from metrics.reporting import Told


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

CAUSES: tuple[str, ...] = get_args(Cause)
ACTORS: tuple[str, ...] = get_args(Actor)
MODALITIES: tuple[TokenModality, ...] = get_args(TokenModality)
BLOCKS: tuple[Modality, ...] = get_args(Modality)
USERS: tuple[Users, ...] = get_args(Users)
# What is found out about an engine, and what can be the answer (`app/gateway.py::Gateway.engine_checks`).
CHECKS = ("template_appends", "prefix_caching", "reports_read")
ANSWERS: tuple[str, ...] = get_args(Told)
# What `context/plan.py::Healed` may say; a word that is not here counts as `other`.
HEALED = (
    *("encoding", "content_form", "image_detail", "arguments", "call_keys", "null_keys", "cache_control", "key_order"),
    *("spelling", "tools", "frozen", "tail", "slot_match", "control_tokens"),
)
_CAUSES, _ACTORS, _MODALITIES = ", ".join(CAUSES), ", ".join(ACTORS), ", ".join(MODALITIES)

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
        "Prompt tokens of completed requests: read from the prefix cache, loaded from the pool of images' KV (there "
        "only once something was), written to the prefix cache, or neither.",
        "`write` and `uncached` are what is paid for. Rising without longer prompts: run the experiment, look for "
        "clients that change their history.",
        {"disposition": "read, loaded, write, uncached"},
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
        "stillframe_dropped_records",
        "counter",
        "Turn records that are lost: the file could not be written for so long that memory was full.",
        "Above 0: see the log for what is wrong with `data_dir/ledger.db`; the reports lack these turns.",
    ),
    Entry(
        "stillframe_expected_read_tokens",
        "counter",
        "Prompt tokens of completed requests that the turn before had left to be read: what was read, loaded in its "
        "place, and lost.",
        "Far above what was read: `stillframe_lost_tokens_total` says why, and by whom.",
    ),
    Entry(
        "stillframe_lost_tokens",
        "counter",
        "Prompt tokens of completed requests that were expected to be read and were not, by why and by whom.",
        "`client`: the application changes its history; docs/cases.md says what can be done for each. `engine`: a "
        "larger KV cache, or fewer conversations at a time. `policy`: what its YAML asks for. `template`: the model's "
        "chat template does not only append. `gateway`: the salt or the upstream changed; `salt` by `client` or "
        "`policy`: another model, or another ratio of images' KV, in the middle of a conversation.",
        {"cause": _CAUSES, "actor": _ACTORS},
    ),
    Entry(
        "stillframe_turns",
        "counter",
        "Completed requests by why less was read than was sent before; `none` where nothing was lost.",
        "`cold` should be about the number of new conversations; more of it: conversations are not found again.",
        {"cause": f"none, {_CAUSES}"},
    ),
    Entry(
        "stillframe_policy_evictions",
        "counter",
        "Requests for which the policy took images out of the history.",
        "Nothing by itself. Rising faster than conversations grow: give the policy larger batches "
        "(configs/policies/README.md).",
    ),
    Entry(
        "stillframe_summaries",
        "counter",
        "Summaries that a policy asked the engine for.",
        "`failed`: the engine refuses them or takes longer than `context.summary_timeout_seconds`; the log says which.",
        {"result": "made, failed"},
    ),
    Entry(
        "stillframe_background_failures",
        "counter",
        "How often work beside the requests broke and was begun again.",
        "Any is a fault: the log names the place, and `/health/ready` what is failing now. While `follow` fails, turns "
        "are counted without what the engine's events say.",
        {"task": "follow, estimates, watch"},
    ),
    Entry(
        "stillframe_healed",
        "counter",
        "Differences without a meaning that were undone by sending what was sent before, each by what differed.",
        "Nothing: this is what the gateway is for. A client of one's own may as well stop making them.",
        {"what": f"{', '.join(HEALED)}, other"},
    ),
    Entry(
        "stillframe_kv_resident_tokens",
        "gauge",
        "Tokens in the engine's prefix cache, by what they are, from its KV events.",
        "Flat at its highest with evictions beside it: the KV cache is full.",
        {"modality": _MODALITIES},
    ),
    Entry(
        "stillframe_kv_resident_blocks",
        "gauge",
        "Blocks in the engine's prefix cache, by what their tokens are, from its KV events. Equal blocks count once.",
        "As for its tokens. Many `mixed`: images are smaller than a few blocks.",
        {"modality": ", ".join(BLOCKS)},
    ),
    Entry(
        "stillframe_kv_evicted_tokens",
        "counter",
        "Tokens that left the engine's prefix cache, by what they were, and by how many conversations used them.",
        'Rising with `stillframe_lost_tokens_total{cause="engine_eviction"}`: what is evicted is needed again; give '
        "the engine more KV memory. Much of `several`: what conversations share is pushed out.",
        {"modality": _MODALITIES, "users": ", ".join(USERS)},
    ),
    Entry(
        "stillframe_kv_evicted_blocks",
        "counter",
        "Blocks that left the engine's prefix cache, by what their tokens were.",
        "Images that are needed again go beside text that is not: try `engine.vllm.eviction: modality`.",
        {"modality": ", ".join(BLOCKS)},
    ),
    Entry(
        "stillframe_unseen_image_requests",
        "counter",
        "Completed requests with images for which the engine counted fewer prompt tokens than the images take: it "
        "cannot have shown them all to the model.",
        "Above 0: see whether the engine reads the images' format (`images.as_png` rewrites one) and their place "
        "(`layout.tool_images`).",
    ),
    Entry(
        "stillframe_kv_event_gaps",
        "counter",
        "Gaps in the engine's KV events. After one, what is resident is not known until it is synchronized again.",
        "Rising: the gateway is short of CPU time, or the engine's event buffer is too small.",
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
        {"event": "run, hit, load, evict"},
    ),
    Entry(
        "stillframe_image_pool_images",
        "counter",
        "Images whose KV requests with approximate reuse asked the pool for, by whether it was there.",
        "Many misses of images that came before: the pool is too small (`engine.vllm.image_kv`).",
        {"result": "hit, miss"},
    ),
    Entry(
        "stillframe_image_pool_tokens",
        "counter",
        "Tokens of requests with approximate reuse, however these ended: of images loaded from the pool; computed of "
        "the same images; read again from the prefix cache in approximate blocks, text among them.",
        "Loaded beside computed is what reuse saves; `reread` is part of what usage counts as read.",
        {"disposition": "loaded, computed, reread"},
    ),
    Entry(
        "stillframe_image_pool_bytes",
        "gauge",
        "What the pool of images' KV holds, in bytes.",
        "`memory` at its bound beside misses: raise `memory_gib` of `engine.vllm.image_kv`.",
        {"tier": "memory, files"},
    ),
    Entry(
        "stillframe_image_pool_entries",
        "gauge",
        "Images whose KV the pool holds.",
        "Compare with the images in use.",
        {"tier": "memory, files"},
    ),
    Entry(
        "stillframe_image_pool_events",
        "counter",
        "Images' KV that left the pool for others, and that it refused: in memory because all that was there was in "
        "use or is less than the image needs, of the files because they were damaged or not ours.",
        "`evicted` beside misses: the pool is too small. `refused` of memory: the same, for the requests at one time "
        "or for an image of that size; of files: a failing disk, or a folder that others write to.",
        {"tier": "memory, files", "event": "evicted, refused"},
    ),
    Entry(
        "stillframe_kv_file_faults",
        "counter",
        "Times that the disk refused to read, write or remove a file of the engine's KV.",
        "See the engine's log for the kind of fault; free the disk, or set another folder.",
        {"store": "image_pool, block_tiers"},
    ),
    Entry(
        "stillframe_kv_files_stopped",
        "gauge",
        "1 after the disk refused to take the engine's KV: no file is written any more until the engine starts again. "
        "What is there is still read.",
        "Free the disk, then restart the gateway; until then a restart finds nothing newer.",
        {"store": "image_pool, block_tiers"},
    ),
    Entry(
        "stillframe_block_tier_bytes",
        "gauge",
        "Blocks below the engine's prefix cache, in bytes: in memory, and in files.",
        "`memory` at its bound beside a rise of `evicted`: raise `memory_gib` of `engine.vllm.block_tiers`.",
        {"tier": "memory, files"},
    ),
    Entry(
        "stillframe_block_tier_memory_blocks",
        "gauge",
        "Blocks in the memory tier, by what they hold.",
        "What fills the tier.",
        {"modality": ", ".join(BLOCKS)},
    ),
    Entry(
        "stillframe_block_tier_blocks",
        "counter",
        "Blocks that came to a tier, that requests read back from it, that left it for others, that were not taken "
        "(all was in use, or the disk was too slow), and whose file was damaged or not ours.",
        "`loaded` beside `evicted` says whether the tier is large enough; `dropped` of files: a slow disk; `refused`: "
        "a failing one.",
        {"tier": "memory, files", "event": "stored, loaded, evicted, dropped, refused"},
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
        "stillframe_engine_check",
        "gauge",
        "1 for what was found out about the engine, else 0: whether its chat template only appends, whether it keeps a "
        "prefix cache, and whether it reports what it reads from it (`unknown` until it was asked or has answered).",
        "`no`: the log says at the start what to do. `template_appends`: an option of the template that keeps history "
        "as it was. `prefix_caching`: start the engine with it. `reports_read`: start vLLM with "
        "`--enable-prompt-tokens-details`; `sometimes`: one of several upstreams was started without.",
        {"check": ", ".join(CHECKS), "answer": ", ".join(ANSWERS)},
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
