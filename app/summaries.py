"""Summaries that a policy asks for, made by the engine before the turn that needs them goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import from_json

from app import asgi
from app.outgoing import engine_messages
from app.reply import reply_of
from context.errors import StillframeError
from context.frozen import frozen
from context.images.service import ImageService
from context.plan import SentMessage, SummaryRequest
from context.tenancy import Tenant
from engine.base import ChatRequest, Engine

_log = logging.getLogger(__name__)
_ANSWER_BYTES = 1024 * 1024
# Of the client's own parameters those that have a part in the prompt, which the summary is to share.
_PROMPT_KEYS = ("model", "chat_template", "chat_template_kwargs", "documents", "add_special_tokens", "reasoning_effort")


@frozen
class Summarizer:
    """Has the engine make the summaries of one request.

    Attributes:
        engine, images: who answers, and where the images of the messages are.
        tenant, body, authorization: of the request; the body as the client sent it.
        request_id: of the request; the summary's own is made from it.
        receive: a client that leaves ends the work.
        timeout_seconds: then the turn goes on without.
        max_image_bytes: as `ChatRequest.max_image_bytes`.
        count: told of each summary whether it was made.
    """

    engine: Engine
    images: ImageService
    tenant: Tenant
    body: Mapping[str, Any]
    authorization: str | None
    request_id: str
    receive: asgi.Receive
    timeout_seconds: float
    max_image_bytes: int
    count: Callable[[bool], None] = lambda _: None

    async def __call__(self, request: SummaryRequest, conversation: str) -> str | None:
        """The text; None where it could not be made.

        Raises:
            ClientLeft: the client did.
        """
        chat = ChatRequest(
            request_id=f"{self.request_id}-summary",
            body=self._body(request),
            cache_salt=self.tenant.cache_salt,
            affinity=conversation,
            authorization=self.authorization,
            max_image_bytes=self.max_image_bytes,
        )
        text = None
        try:
            async with asgi.cancelled_when_client_leaves(self.receive), asyncio.timeout(self.timeout_seconds):
                text = await self._ask(chat)
        except (StillframeError, TimeoutError) as error:
            # The text of an error may hold what was sent.
            _log.warning("a summary was not made, the turn goes on without it: %s", type(error).__name__)
        self.count(text is not None)
        return text

    def _body(self, request: SummaryRequest) -> dict[str, Any]:
        """The request's own prompt up to the end of the segment, read from the engine's cache, and the instruction."""
        sent = [SentMessage(wire, None) for wire in request.messages]
        body = {key: self.body[key] for key in _PROMPT_KEYS if key in self.body}
        body["messages"] = engine_messages(self.images, self.tenant, sent)
        if request.tools is not None:
            body |= {"tools": request.tools, "tool_choice": "none"}
        # OpenAI's newer models know but one name of it.
        limit = "max_completion_tokens" if "max_completion_tokens" in self.body else "max_tokens"
        return body | {limit: request.max_tokens, "temperature": 0, "stream": False}

    async def _ask(self, chat: ChatRequest) -> str | None:
        async with self.engine.chat(chat) as reply:
            body = await reply.read(_ANSWER_BYTES)
            status = reply.status
        text = _text(body) if status == 200 else None
        if text is None:
            _log.warning("a summary was not made, the turn goes on without it: status %d", status)
        return text


def _text(body: bytes) -> str | None:
    """The text of an answer; None where it has none."""
    try:
        message = reply_of(from_json(body))
    except ValueError:
        return None
    text: Any = message.get("content") if message is not None else None
    return text if isinstance(text, str) and text.strip() else None
