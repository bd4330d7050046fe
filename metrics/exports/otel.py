"""Turn records to an OpenTelemetry collector: a span for each turn, and the metrics of the GenAI conventions.

A thread makes spans of records, for that takes the SDK half a millisecond, and threads of the SDK send them in batches
over OTLP/HTTP. Both wait in queues of bounded length; where the collector is slow or away turns are dropped, which is
said once until it answers again. `OTEL_...` variables of the environment hold for what is not set here: headers for the
collector's key, the service's name, sampling.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from context.errors import ConfigError
from metrics.exports.base import NoExporter, TurnExporter
from metrics.exports.genai import (
    BUCKETS,
    CHAT,
    DURATION,
    ERROR,
    FIRST_CHUNK,
    FIRST_TOKEN,
    TOKEN_TYPE,
    TOKEN_USAGE,
    Value,
    common_attributes,
    error_type,
    span_attributes,
)
from metrics.records.record import TurnRecord

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

_log = logging.getLogger(__name__)
QUEUED_TURNS, QUEUED_SPANS, _BATCH_SPANS, _BATCH_SECONDS = 4096, 2048, 512, 2.0
_METRICS_SECONDS = 15.0
# For one batch, all attempts together.
_EXPORT_SECONDS = 3.0
# What goes wrong there is said here, once, without the exception's text, which may hold the collector's key.
_SILENCED = (
    "opentelemetry.exporter.otlp.proto.http",
    "opentelemetry.exporter.otlp.common",
    "opentelemetry.sdk._shared_internal",
    "opentelemetry.sdk.metrics._internal.export",
)


def open_exporter(endpoint: str, provider: str) -> TurnExporter:
    """An exporter to a collector; to nowhere without one.

    Args:
        endpoint: the collector's base URL, such as http://127.0.0.1:4318; empty for none.
        provider: what answers the chats, as `gen_ai.provider.name` (`genai.py::provider_name`).

    Raises:
        ConfigError: the OpenTelemetry SDK is not installed.
    """
    if not endpoint:
        return NoExporter()
    try:
        return OtelExporter(endpoint.rstrip("/"), provider)
    except ImportError as error:
        reason = "needs the OpenTelemetry SDK: pip install 'stillframe[otel]', or leave it empty"
        raise ConfigError("settings", "otel.endpoint", reason) from error


class _Watch:
    """Says once when the collector does not take what is sent, and when it does again. Called from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_down = False
        self.is_closing = False

    @property
    def gives_up(self) -> bool:
        """Whether nothing more is worth a try."""
        return self.is_closing and self._is_down

    def note(self, *, is_taken: bool) -> None:
        with self._lock:
            changed, self._is_down = self._is_down == is_taken, not is_taken
        if changed and is_taken:
            _log.info("otel: the collector answers again")
        elif changed:
            _log.warning("otel: the collector does not take what is sent; turns are dropped until it does")


class OtelExporter:
    """See `TurnExporter`. Its providers are its own: nothing else in the process is traced."""

    def __init__(self, endpoint: str, provider: str) -> None:
        """Raises `ImportError` where the SDK is not installed."""
        from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        for name in _SILENCED:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        self._provider, self._watch = provider, _Watch()
        spans, figures = _exporters(endpoint, self._watch)
        resource = Resource.create({"service.name": "stillframe", "service.version": _version()})
        self._traces = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._traces.add_span_processor(
            BatchSpanProcessor(
                spans,
                max_queue_size=QUEUED_SPANS,
                max_export_batch_size=_BATCH_SPANS,
                schedule_delay_millis=_BATCH_SECONDS * 1000,
            )
        )
        reader = PeriodicExportingMetricReader(figures, _METRICS_SECONDS * 1000, _EXPORT_SECONDS * 1000)
        # Exemplars would take longer than all else.
        self._meters = MeterProvider([reader], resource, AlwaysOffExemplarFilter(), shutdown_on_exit=False)
        self._tracer, meter = self._traces.get_tracer("stillframe"), self._meters.get_meter("stillframe")
        self._histograms = {
            name: meter.create_histogram(
                name,
                "{token}" if name == TOKEN_USAGE else "s",
                explicit_bucket_boundaries_advisory=bounds,
            )
            for name, bounds in BUCKETS.items()
        }
        self._client, self._failed = SpanKind.CLIENT, Status(StatusCode.ERROR)
        self._propagator = TraceContextTextMapPropagator()
        self._turns: queue.SimpleQueue[tuple[TurnRecord, str | None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="otel-turns", daemon=True)
        self._thread.start()

    def put(self, record: TurnRecord, traceparent: str | None = None) -> None:
        """See `TurnExporter.put`."""
        if not self._watch.is_closing and self._turns.qsize() < QUEUED_TURNS:
            self._turns.put((record, traceparent))

    async def close(self) -> None:
        """See `TurnExporter.close`."""
        self._watch.is_closing = True
        await asyncio.to_thread(self._shut_down)

    def _shut_down(self) -> None:
        self._turns.put(None)
        self._thread.join()
        self._traces.shutdown()
        self._meters.shutdown(_EXPORT_SECONDS * 1000)

    def _work(self) -> None:
        while (turn := self._turns.get()) is not None:
            try:
                self._span(*turn)
                self._observe(turn[0])
            except Exception as error:
                # Whatever a library does with one turn, the next ones are exported.
                _log.error("otel: a turn could not be exported: %s", type(error).__name__)

    def _span(self, record: TurnRecord, traceparent: str | None) -> None:
        context = self._propagator.extract({"traceparent": traceparent}) if traceparent else None
        name = f"{CHAT} {record.model}" if record.model else CHAT
        attributes = span_attributes(record, self._provider)
        span = self._tracer.start_span(name, context, self._client, attributes, start_time=record.id)
        if error_type(record) is not None:
            span.set_status(self._failed)
        span.end(record.id + round((record.total_seconds or 0.0) * 1_000_000_000))

    def _observe(self, record: TurnRecord) -> None:
        common = common_attributes(record, self._provider)
        error, first = error_type(record), record.first_token_seconds
        if record.total_seconds is not None:
            self._record(DURATION, record.total_seconds, common if error is None else {**common, ERROR: error})
        for kind, tokens in (("input", record.prompt_tokens), ("output", record.completion_tokens)):
            if tokens is not None:
                self._record(TOKEN_USAGE, tokens, {**common, TOKEN_TYPE: kind})
        if first is not None and error is None:
            self._record(FIRST_TOKEN, first, common)
            if record.stream:
                self._record(FIRST_CHUNK, first, common)

    def _record(self, name: str, value: float, attributes: Mapping[str, Value]) -> None:
        self._histograms[name].record(value, attributes)


def _exporters(endpoint: str, watch: _Watch) -> tuple[Any, Any]:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics.export import MetricExportResult
    from opentelemetry.sdk.trace.export import SpanExportResult

    class Spans(OTLPSpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            if watch.gives_up:
                return SpanExportResult.FAILURE
            result = super().export(spans)
            watch.note(is_taken=result is SpanExportResult.SUCCESS)
            return result

    class Figures(OTLPMetricExporter):
        def export(self, metrics_data: Any, timeout_millis: float | None = 10_000, **kwargs: Any) -> MetricExportResult:
            if watch.gives_up:
                return MetricExportResult.FAILURE
            result = super().export(metrics_data, timeout_millis, **kwargs)  # pyright: ignore[reportUnknownMemberType]
            watch.note(is_taken=result is MetricExportResult.SUCCESS)
            return result

    return (
        Spans(f"{endpoint}/v1/traces", timeout=_EXPORT_SECONDS),
        Figures(f"{endpoint}/v1/metrics", timeout=_EXPORT_SECONDS),
    )


def _version() -> str:
    try:
        return version("stillframe")
    except PackageNotFoundError:
        return "unknown"
