"""The engine's reply on its way to the client: whole, as a stream of events, or as an error. It is kept as the turn's
reply before the client has the end of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from pydantic_core import from_json

from app import asgi
from app.explain import explained_answer, explained_event
from app.public import public_error, public_error_bytes
from app.reply import ReplyCollector, is_answer, reply_of
from app.sse import EventRelay
from app.turn import ServedTurn
from context.errors import EngineProtocolError
from engine.base import EngineReply
from metrics.usage import read_usage, usage_of

_ERROR_BYTES = 1024 * 1024


async def relay(turn: ServedTurn, reply: EngineReply) -> None:
    """The engine's reply to the client, and its usage to the record. What is no answer is an error of the engine's,
    whatever its status."""
    metrics = turn.gateway.metrics
    if reply.sent_image_bytes:
        metrics.image_bytes.inc(reply.sent_image_bytes)
        metrics.image_misses.inc(reply.image_misses)
    if reply.status != 200:
        await _relay_error(turn, reply)
        return
    if reply.headers.get("content-type", "").startswith("text/event-stream"):
        await _relay_events(turn, reply)
    else:
        await _relay_whole(turn, reply)


async def _relay_whole(turn: ServedTurn, reply: EngineReply) -> None:
    assert turn.begun is not None
    conversations, message = turn.gateway.conversations, None
    try:
        body = await reply.read(turn.gateway.settings.server.max_answer_bytes)
        answer = _answer_of(body)
        turn.usage, message = read_usage(usage_of(answer)), reply_of(answer)
        turn.note_byte()
    finally:
        # Before the client sees the reply: it may ask on at once. A turn that failed or was left was sent all the same.
        turn.begun, turn.draft = await conversations.accept(turn.begun, message, turn.draft), None
        turn.answered = message is not None
    # What has a reply is an answer.
    if message is None and not is_answer(answer):
        await _respond_error(turn, *public_error(answer, 500))
        return
    if turn.explain:
        body = explained_answer(answer, turn.explanation())
    await turn.start(200, b"application/json", len(body))
    turn.outcome = "completed"
    await turn.send({"type": "http.response.body", "body": body})


async def _relay_error(turn: ServedTurn, reply: EngineReply) -> None:
    # A key that the client did not choose is not the client's to mend.
    status = 500 if turn.gateway.has_own_key and reply.status in (401, 403) else reply.status
    status, body = public_error_bytes(await reply.read(_ERROR_BYTES), status, turn.secrets)
    after = reply.headers.get("retry-after", "")
    again = [(b"retry-after", after.encode())] if after.isascii() and after.isdigit() else []
    await _respond_error(turn, status, body, again)


async def _respond_error(turn: ServedTurn, status: int, body: Mapping[str, Any], headers: asgi.Headers = ()) -> None:
    turn.outcome = "refused" if status < 500 else "failed"
    turn.started = True
    await asgi.respond_json(turn.send, status, body, [*turn.headers(), *headers])


async def _relay_events(turn: ServedTurn, reply: EngineReply) -> None:
    assert turn.begun is not None
    conversations = turn.gateway.conversations
    turn.begun = begun = await conversations.accept(turn.begun, draft=turn.draft)
    # A turn that streams lives long.
    turn.draft = None
    collector = ReplyCollector()
    told = explained_event(turn.request_id, turn.model, turn.explanation()) if turn.explain else b""
    events = EventRelay(include_usage=turn.include_usage, collect=collector.add, last_event=told)
    await turn.start(200, b"text/event-stream; charset=utf-8")
    async for chunk in events.relay(reply.chunks):
        turn.note_byte()
        if events.done or events.failed:
            # Before the last byte is sent: with it the client has all it wants, and may be gone.
            turn.usage, turn.outcome = read_usage(events.usage), "failed" if events.failed else "completed"
            message = None if events.failed else collector.message()
            if message is not None:
                await conversations.answer(begun, message)
                turn.answered = True
        await turn.send({"type": "http.response.body", "body": chunk, "more_body": True})
    await turn.send({"type": "http.response.body", "body": b""})


def _answer_of(body: bytes) -> Mapping[str, Any]:
    try:
        data: Any = from_json(body)
    except ValueError as error:
        raise EngineProtocolError("The engine's answer is not JSON.") from error
    if not isinstance(data, dict):
        raise EngineProtocolError("The engine's answer is not a JSON object.")
    return cast("dict[str, Any]", data)
