"""A stream's events come to the message that the client will send back."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_core import to_json

from app.reply import ReplyCollector, reply_of


def collected(*deltas: dict[str, Any], end: str | None = "stop", index: int = 0, max_bytes: int = 10_000) -> Any:
    collector = ReplyCollector(max_bytes)
    events: list[dict[str, Any]] = [
        {"choices": [{"index": index, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    if end:
        events.append({"choices": [{"index": index, "delta": {}, "finish_reason": end}]})
    events.append({"choices": [], "usage": {"prompt_tokens": 3}})
    for event in events:
        collector.add(b"data: " + to_json(event) + b"\n\n")
    collector.add(b": a comment\n\ndata: [DONE]\n\n")
    return collector.message()


def test_text_is_joined() -> None:
    assert collected({"role": "assistant", "content": ""}, {"content": "Hel"}, {"content": "lo"}) == {
        "content": "Hello"
    }


def test_pieces_of_calls_are_joined_by_their_index() -> None:
    def piece(index: int, **function: str) -> dict[str, Any]:
        return {"tool_calls": [{"index": index, "function": function}]}

    first = {"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "read", "arguments": ""}}]}
    second = {"tool_calls": [{"index": 1, "id": "b", "function": {"name": "wait", "arguments": "{}"}}]}
    made = collected(first, piece(0, arguments='{"x'), second, piece(0, arguments='": 1}'), end="tool_calls")
    assert made == {
        "content": None,
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "read", "arguments": '{"x": 1}'}},
            {"id": "b", "type": "function", "function": {"name": "wait", "arguments": "{}"}},
        ],
    }


def test_what_did_not_end_is_no_reply() -> None:
    assert collected({"content": "half"}, end=None) is None


def test_several_choices_are_no_one_reply() -> None:
    assert collected({"content": "other"}, index=1) is None


def test_a_stream_that_is_too_long_is_not_read() -> None:
    assert collected(*({"content": "x" * 50} for _ in range(20)), max_bytes=1000) is None


def test_an_event_that_is_no_json_is_passed_over() -> None:
    collector = ReplyCollector()
    collector.add(
        b'data: {"choices": oh\n\ndata: {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}\n\n'
    )
    assert collector.message() == {"content": "a"}


def test_an_answer_has_one_reply_or_none() -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
    assert reply_of({"choices": [choice]}) == choice["message"]
    assert reply_of({"choices": [choice, choice]}) is None
    assert reply_of({"choices": [{**choice, "finish_reason": None}]}) is None
    assert reply_of({"choices": [1]}) is None
    assert reply_of({"choices": [{**choice, "error": {"message": "no"}}]}) is None
    assert reply_of({"choices": [choice], "error": {"message": "no"}}) is None
    assert reply_of({"choices": [{**choice, "error": None}], "error": None}) == choice["message"]
    assert reply_of([]) is None


@pytest.mark.parametrize(
    "message",
    [
        {"content": 5},
        {"content": {"a": 1}},
        {"content": ["a"]},
        {"content": [{"type": "image_url", "image_url": {"url": "x"}}]},
        {"tool_calls": 5},
        {"tool_calls": [1]},
        {"tool_calls": [{"id": [1]}]},
    ],
    ids=str,
)
def test_what_no_client_could_send_back_is_no_reply(message: dict[str, Any]) -> None:
    assert reply_of({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}) is None


@pytest.mark.parametrize(
    "delta",
    [
        5,
        {"tool_calls": 5},
        {"tool_calls": [5]},
        {"content": 5, "refusal": [1]},
    ],
    ids=str,
)
def test_a_piece_that_is_none_is_passed_over(delta: Any) -> None:
    assert collected({"content": "a"}, delta, {"content": "b"}) == {"content": "ab"}


def test_a_piece_of_a_call_that_is_no_text_is_passed_over() -> None:
    junk: dict[str, Any] = {"tool_calls": [{"index": [1], "id": 5, "function": {"name": 5, "arguments": 5}}]}
    good = {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}]}
    made = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert collected(junk, good) == {"content": None, "tool_calls": [made]}


@pytest.mark.parametrize("choices", [5, {"a": 1}, [1]], ids=str)
def test_choices_that_are_none_are_passed_over(choices: Any) -> None:
    collector = ReplyCollector()
    end = {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]}
    for event in ({"choices": choices}, end):
        collector.add(b"data: " + to_json(event) + b"\n\n")
    assert collector.message() == {"content": "a"}
