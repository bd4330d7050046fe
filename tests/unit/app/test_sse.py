"""The event relay: whatever the engine's chunks are, the client gets the same events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from typing import Any, Self

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic_core import from_json, to_json

from app.sse import DONE, EventRelay
from context.errors import EngineProtocolError

USAGE = {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}


def _event(**body: Any) -> bytes:
    return b"data: " + to_json(body) + b"\n\n"


CONTENT = _event(choices=[{"delta": {"content": "a\r\nb é"}}])
STREAM = CONTENT + CONTENT + _event(choices=[], usage=USAGE) + DONE


async def _chunks(chunks: Sequence[bytes], error: Exception | None = None) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk
    if error is not None:
        raise error


async def _relayed(
    chunks: Sequence[bytes], *, include_usage: bool = False, error: Exception | None = None, last_event: bytes = b""
) -> tuple[bytes, EventRelay]:
    relay = EventRelay(include_usage=include_usage, last_event=last_event)
    return b"".join([chunk async for chunk in relay.relay(_chunks(chunks, error))]), relay


def _cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    ends = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(ends)]


_PLACES = st.lists(st.integers(0, 10_000), max_size=30)
_ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
_BODIES = st.fixed_dictionaries(
    {"choices": st.sampled_from([[], [{"delta": {"content": 'say "usage" or "error"'}}], [{"delta": {}}]])},
    optional={"usage": st.sampled_from([USAGE, None]), "id": st.text(max_size=5), "error": st.none()},
)
_EVENTS = st.one_of(
    _BODIES.map(lambda body: [b"data: " + to_json(body)]),
    _BODIES.map(lambda body: [b"event: message", b"data:" + to_json(body), b"id: 7"]),
    _BODIES.map(lambda body: [b"data: " + line for line in to_json(body, indent=1).split(b"\n")]),
    st.just([b": ping"]),
)


# How long an example takes is the machine's business.
_UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@_UNTIMED
@given(events=st.lists(_EVENTS, max_size=6), end=_ENDS, places=_PLACES, include_usage=st.booleans())
async def test_chunking_changes_nothing(
    events: list[list[bytes]], end: bytes, places: list[int], include_usage: bool
) -> None:
    lines = [line for event in [*events, [b"data: [DONE]"]] for line in (*event, b"")]
    data = end.join(lines) + end
    whole, one = await _relayed([data], include_usage=include_usage)
    pieces, many = await _relayed(_cut(data, places), include_usage=include_usage)
    assert pieces == whole
    assert (one.usage, one.done, one.failed) == (many.usage, many.done, many.failed)
    assert one.done
    assert b"\r" not in whole
    usages = [from_json(body)["usage"] for event in events if (body := _data(event)) and b'"usage":' in body]
    assert one.usage == next((usage for usage in reversed(usages) if usage), None)
    if include_usage:
        assert whole == b"\n".join(b":" if line == b": ping" else line for line in lines) + b"\n"
    else:
        assert b'"usage":' not in whole
        kept = [event for event in events if not _is_usage_alone(event)]
        assert len(whole.removesuffix(DONE).split(b"\n\n")) - 1 == len(kept)


def _data(event: list[bytes]) -> bytes | None:
    data = b"\n".join(line[5:].removeprefix(b" ") for line in event if line.startswith(b"data:"))
    return data if data.startswith(b"{") else None


def _is_usage_alone(event: list[bytes]) -> bool:
    data = _data(event)
    if data is None:
        return False
    body = from_json(data)
    return not body["choices"] and body.get("usage") is not None


@_UNTIMED
@given(places=_PLACES)
async def test_a_plain_stream_is_not_touched(places: list[int]) -> None:
    data = CONTENT + CONTENT + DONE
    out, relay = await _relayed(_cut(data, places))
    assert out == data
    assert (relay.done, relay.failed, relay.usage) == (True, False, None)


async def test_usage_chunk_is_read_and_left_out() -> None:
    out, relay = await _relayed([STREAM])
    assert out == CONTENT + CONTENT + DONE
    assert relay.usage == USAGE
    asked, relay = await _relayed([STREAM], include_usage=True)
    assert asked == STREAM
    assert relay.usage == USAGE


async def test_usage_in_the_last_content_chunk() -> None:
    last = _event(choices=[{"delta": {}, "finish_reason": "stop"}], usage=USAGE)
    out, relay = await _relayed([CONTENT, last, DONE])
    assert out == CONTENT + _event(choices=[{"delta": {}, "finish_reason": "stop"}]) + DONE
    assert relay.usage == USAGE


async def test_null_usage_is_left_out_of_its_chunk() -> None:
    out, _ = await _relayed([_event(choices=[], usage=None, filter="x"), DONE])
    assert out == _event(choices=[], filter="x") + DONE


async def test_latest_usage_counts() -> None:
    running = _event(choices=[{}], usage={"prompt_tokens": 1})
    _, relay = await _relayed([running + _event(choices=[], usage=USAGE) + DONE])
    assert relay.usage == USAGE


async def test_events_go_on_as_soon_as_they_are_whole() -> None:
    relay = EventRelay(include_usage=False)
    out = relay.relay(_chunks([CONTENT + CONTENT[:5], CONTENT[5:], DONE]))
    assert [chunk async for chunk in out] == [CONTENT, CONTENT, DONE]


@pytest.mark.parametrize("rest", [b"", b"data: {", CONTENT[:-1], CONTENT[:-2]])
async def test_breaking_off_ends_well_formed(rest: bytes) -> None:
    out, relay = await _relayed([CONTENT, rest] if rest else [CONTENT], error=EngineProtocolError("It broke off."))
    assert out.startswith(CONTENT + b'data: {"error":')
    assert out.endswith(b"\n\n" + DONE)
    assert out.count(b"\n\n") == 3
    assert (relay.failed, relay.done) == (True, False)


async def test_what_was_whole_when_the_stream_ended_is_given() -> None:
    out, relay = await _relayed([CONTENT, DONE.rstrip()])
    assert out == CONTENT + DONE
    assert relay.done


async def test_a_stream_without_end_mark_failed() -> None:
    out, relay = await _relayed([CONTENT])
    assert out.startswith(CONTENT + b'data: {"error":')
    assert out.endswith(DONE)
    assert relay.failed


async def test_an_error_event_is_cleaned_and_ends_the_stream() -> None:
    out, relay = await _relayed([CONTENT, b'event: error\ndata: {"error": {"message": "/srv/a/b.py"}}\n\n'])
    assert out.startswith(CONTENT + b'event: error\ndata: {"error":{"message":"The engine failed')
    assert out.endswith(b"\n\n" + DONE)
    assert relay.failed


async def test_an_error_after_the_end_mark_is_not_the_clients() -> None:
    out, relay = await _relayed([CONTENT + DONE], error=EngineProtocolError("late"))
    assert out == CONTENT + DONE
    assert (relay.done, relay.failed) == (True, False)


@_UNTIMED
@given(
    events=st.lists(st.sampled_from([CONTENT, b"data: no json\n\n", b": x\n\n", b"event: error\n\n"]), max_size=4),
    places=_PLACES,
)
async def test_an_error_is_said_once_whatever_the_chunks_are(events: list[bytes], places: list[int]) -> None:
    wrong = b'data: {"choices": 5}\n\n'
    data = b"".join([*events, wrong, CONTENT, STREAM])
    out, relay = await _relayed(_cut(data, places))
    whole, _ = await _relayed([data])
    assert out == whole
    assert out.count(b'"error":') == 1
    # Nothing of the engine's goes on behind it, but what it counted is known.
    assert out[out.index(b'"error":') :].count(b"\n\n") == 2
    assert (relay.done, relay.failed, relay.usage) == (True, True, USAGE)


async def test_breaking_off_behind_an_error_says_nothing_more() -> None:
    out, _ = await _relayed([b"data: {}\n\n"], error=EngineProtocolError("It broke off."))
    assert out.count(b'"error":') == 1
    assert out.endswith(b"}\n\n" + DONE)


async def test_an_event_without_end_is_bounded() -> None:
    relay = EventRelay(include_usage=False, max_event_bytes=1000)
    taken = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield b"x" * 100

    out = b"".join([chunk async for chunk in relay.relay(endless())])
    assert b"too long" in out
    assert out.endswith(DONE)
    assert taken <= 11


class _Counted(bytearray):
    """A buffer that counts the bytes that are moved and looked at in it."""

    def __init__(self) -> None:
        super().__init__()
        self.touched = 0

    def __iadd__(self, more: Any) -> Self:
        self.touched += len(more)
        return super().__iadd__(more)

    def __add__(self, more: Any) -> bytearray:
        self.touched += len(self)
        return super().__add__(more)

    def __bytes__(self) -> bytes:
        self.touched += len(self)
        return bytes(memoryview(self))

    def __contains__(self, part: Any) -> bool:
        self.touched += len(self)
        return super().__contains__(part)

    def find(self, part: Any, start: Any = 0, end: Any = None, /) -> int:
        self.touched += len(range(len(self))[start:end])
        return super().find(part, start, end)

    def rfind(self, part: Any, start: Any = 0, end: Any = None, /) -> int:
        self.touched += len(range(len(self))[start:end])
        return super().rfind(part, start, end)


async def test_a_long_event_in_small_chunks_costs_no_more_than_its_length() -> None:
    """In chunks of 16 bytes: to copy or search all that waits for each chunk would touch a byte thousands of times."""
    event = _event(choices=[{"delta": {"content": "x" * 200_000}}])
    data = event + DONE
    relay = EventRelay(include_usage=False)
    waiting = relay._cut._rest = _Counted()  # pyright: ignore[reportPrivateUsage]
    chunks = [data[at : at + 16] for at in range(0, len(data), 16)]
    assert b"".join([chunk async for chunk in relay.relay(_chunks(chunks))]) == data
    assert relay._cut._rest is waiting, "it was copied"  # pyright: ignore[reportPrivateUsage]
    # Each byte is put in, looked at and taken out.
    assert len(event) <= waiting.touched < 5 * len(data)


@pytest.mark.parametrize("places", [[], [len(STREAM) - len(DONE)], [len(STREAM) - 5], list(range(len(STREAM)))])
async def test_a_last_event_goes_right_before_the_end_mark(places: list[int]) -> None:
    last = _event(choices=[], more=1)
    out, relay = await _relayed(_cut(STREAM, places), include_usage=True, last_event=last)
    assert out == STREAM.removesuffix(DONE) + last + DONE
    assert relay.done


@pytest.mark.parametrize("rest", [[], [_event(error={"message": "no"}), DONE]])
async def test_a_stream_that_failed_has_no_last_event(rest: list[bytes]) -> None:
    out, relay = await _relayed([CONTENT, *rest], last_event=_event(more=1))
    assert relay.failed
    assert b"more" not in out
    assert out.endswith(DONE)
