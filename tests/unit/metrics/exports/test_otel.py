"""Turns as an OpenTelemetry collector gets them."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from metrics.exports.base import NoExporter
from metrics.exports.genai import BUCKETS, provider_name
from metrics.exports.otel import QUEUED_SPANS, open_exporter
from metrics.records.record import TurnRecord
from tests.unit.metrics.exports.collector import Collector, attributes, collector

_RECORD = TurnRecord(
    id=1_700_000_000_000_000_000,
    request_id="r1",
    tenant="alice",
    conversation="c1",
    number=3,
    model="demo",
    policy="stable",
    policy_version="1",
    stream=True,
    outcome="completed",
    images=2,
    unique_images=1,
    visual_tokens=40,
    prompt_tokens=100,
    completion_tokens=7,
    read_tokens=64,
    write_tokens=32,
    uncached_tokens=4,
    expected_read=96,
    lost_tokens=32,
    cause="client_edit",
    actor="client",
    break_message=4,
    first_token_seconds=0.25,
    total_seconds=1.5,
    cost=0.002,
    reuse="0.05; profile",
    reuse_by="policy",
)
_TRACE, _PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


async def _sent(made: Collector, *turns: tuple[TurnRecord, str | None]) -> list[Any]:
    exporter = open_exporter(made.url + "/", provider_name("vllm"))
    for record, traceparent in turns:
        exporter.put(record, traceparent)
    await exporter.close()
    return made.spans


async def test_a_span_has_the_names_of_the_conventions() -> None:
    with collector() as made:
        [span] = await _sent(made, (_RECORD, None))
    assert span.name == "chat demo"
    assert span.kind == span.SPAN_KIND_CLIENT
    assert span.start_time_unix_nano == _RECORD.id
    assert span.end_time_unix_nano == _RECORD.id + 1_500_000_000
    assert span.parent_span_id == b""
    assert made.resource["service.name"] == "stillframe"
    found = attributes(span)
    assert {name: value for name, value in found.items() if name.startswith("gen_ai.")} == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": "demo",
        "gen_ai.request.stream": True,
        "gen_ai.conversation.id": "c1",
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.usage.image.input_tokens": 40,
        "gen_ai.usage.cache_read.input_tokens": 64,
        "gen_ai.usage.cache_creation.input_tokens": 32,
        "gen_ai.usage.cache_write.input_tokens": 32,
        "gen_ai.response.time_to_first_chunk": 0.25,
    }
    expected = {"cause": "client_edit", "actor": "client", "message": 4}
    assert {name: found[f"stillframe.break.{name}"] for name in expected} == expected
    assert found["stillframe.lost_tokens"] == 32
    assert (found["stillframe.reuse"], found["stillframe.reuse.by"]) == ("0.05; profile", "policy")
    assert "error.type" not in found
    assert span.status.code == span.status.STATUS_CODE_UNSET


async def test_the_clients_trace_goes_on() -> None:
    with collector() as made:
        spans = await _sent(made, (_RECORD, f"00-{_TRACE}-{_PARENT}-01"), (_RECORD, f"00-{_TRACE}-{_PARENT}-00"))
    # The second one's client has said that it is not sampled.
    [span] = spans
    assert span.trace_id.hex() == _TRACE
    assert span.parent_span_id.hex() == _PARENT


@pytest.mark.parametrize("traceparent", ["", "x", "00-0-0-01", "\0", f"00-{'0' * 32}-{_PARENT}-01", "ü" * 5000])
async def test_a_traceparent_that_is_none_begins_a_trace(traceparent: str) -> None:
    with collector() as made:
        [span] = await _sent(made, (_RECORD, traceparent))
    assert span.parent_span_id == b""


async def test_unreported_figures_have_no_attribute() -> None:
    unknown = replace(
        _RECORD, read_tokens=None, write_tokens=None, uncached_tokens=None, prompt_tokens=None, completion_tokens=None
    )
    with collector() as made:
        [span] = await _sent(made, (replace(unknown, outcome="failed", conversation="", number=0), None))
        assert "gen_ai.client.token.usage" not in made.metrics
    found = attributes(span)
    named = ("input_tokens", "output_tokens", "cache_read", "cache_write", "cache_creation", "conversation.id")
    assert not [name for name in found if name.endswith(named) and "image" not in name]
    assert found["error.type"] == "failed"
    assert span.status.code == span.status.STATUS_CODE_ERROR


async def test_metrics() -> None:
    whole = replace(_RECORD, stream=False, total_seconds=0.5)
    with collector() as made:
        await _sent(made, (_RECORD, None), (whole, None), (replace(_RECORD, outcome="refused"), None))
    assert made.metrics.keys() == BUCKETS.keys()
    duration = made.metrics["gen_ai.client.operation.duration"]
    assert duration.unit == "s"
    by_error = {attributes(point).get("error.type"): point for point in duration.histogram.data_points}
    assert by_error[None].count == 2
    assert by_error[None].sum == 2.0
    assert tuple(by_error[None].explicit_bounds) == BUCKETS["gen_ai.client.operation.duration"]
    assert by_error["refused"].count == 1
    usage = made.metrics["gen_ai.client.token.usage"]
    by_type = {attributes(point)["gen_ai.token.type"]: point.sum for point in usage.histogram.data_points}
    assert by_type == {"input": 300, "output": 21}
    [first] = made.metrics["gen_ai.server.time_to_first_token"].histogram.data_points
    [chunk] = made.metrics["gen_ai.client.operation.time_to_first_chunk"].histogram.data_points
    assert (first.count, chunk.count) == (2, 1)


async def test_a_collector_that_is_away_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with collector() as made:
        made.status = 400
        await _sent(made, *[(_RECORD, None)] * 600)
    assert made.requests > 0
    [line] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert line.getMessage() == "otel: the collector does not take what is sent; turns are dropped until it does"
    assert not [record for record in caplog.records if made.url in record.getMessage()]


async def test_nobody_there_costs_no_turn(caplog: pytest.LogCaptureFixture) -> None:
    with collector() as made:
        url = made.url
    exporter = open_exporter(url, "vllm")
    for _ in range(QUEUED_SPANS + 10):
        exporter.put(_RECORD)
    await exporter.close()
    exporter.put(_RECORD)
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


async def test_off_by_default() -> None:
    exporter = open_exporter("", "vllm")
    assert isinstance(exporter, NoExporter)
    exporter.put(_RECORD, None)
    await exporter.close()
