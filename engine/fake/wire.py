"""A fake chat's replies in vLLM's bytes: key for key what its pydantic models write.

Source: vLLM 0.32, entrypoints/openai/chat_completion/serving.py::OpenAIServingChat.chat_completion_stream_generator and
chat_completion_full_generator, _make_prompt_tokens_details; entrypoints/openai/chat_completion/protocol.py.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, cast

from pydantic_core import to_json

from engine.fake.answers import Answer
from engine.fake.core import FakeChat, Usage, usage
from engine.fake.scheduler import Token

DONE = b"data: [DONE]\n\n"
FINGERPRINT = "stillframe-fake"


def sse(body: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + to_json(body) + b"\n\n"


class ChatWire:
    """Writes one chat's reply, streamed or whole."""

    def __init__(self, chat: FakeChat, body: Mapping[str, Any], model: str, *, reports_cache: bool) -> None:
        self._chat, self._model, self._reports_cache = chat, model, reports_cache
        self._id = f"chatcmpl-{chat.request_id}"
        self._created = int(time.time())
        self._logprobs = bool(body.get("logprobs"))
        self._top_logprobs = body.get("top_logprobs") or 0
        self._named_tool = isinstance(body.get("tool_choice"), dict)
        options: Mapping[str, Any] = body.get("stream_options") or {}
        self._include_usage = bool(options.get("include_usage"))
        self._continuous_usage = self._include_usage and bool(options.get("continuous_usage_stats"))

    def opening(self) -> list[bytes]:
        """The chunk with the role, for each choice."""
        chunks: list[bytes] = []
        for index in range(len(self._chat.answers)):
            delta = {"role": "assistant", "content": ""}
            choice: dict[str, Any] = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
            chunks.append(self._chunk([choice], {"prompt_token_ids": None, "prompt_text": None}, generated=0))
        return chunks

    def token(self, token: Token) -> bytes:
        """The chunk of one generated token; its last one carries the finish reason."""
        answer = self._chat.answers[token.sequence.index]
        choice: dict[str, Any] = {
            "index": token.sequence.index,
            "delta": self._delta(answer, token),
            "logprobs": self._logprob_content(answer, token.number, token.number + 1),
            "finish_reason": self._finish_reason(answer) if token.last else None,
        }
        if token.last:
            choice["stop_reason"] = answer.stop_reason
        choice["token_ids"] = None
        marked = {"system_fingerprint": FINGERPRINT} if token.last and not self._include_usage else {}
        return self._chunk([choice], marked, generated=token.sequence.generated)

    def closing(self) -> list[bytes]:
        """What follows the last token: the usage, when it was asked for, and the end mark."""
        if not self._include_usage:
            return [DONE]
        # Streamed, the figures are those of the first choice that gave a token.
        shown = _without_none(self.usage(usage(self._chat, self._chat.sequences[0])))
        return [self._chunk([], {"usage": shown, "system_fingerprint": FINGERPRINT}), DONE]

    def whole(self) -> bytes:
        """The reply that is not streamed."""
        choices = [self._choice(index, answer) for index, answer in enumerate(self._chat.answers)]
        # Not streamed, the figures are those of the choice that ended last.
        last = max(self._chat.sequences, key=lambda sequence: (sequence.generated, sequence.index))
        return to_json(
            {
                "id": self._id,
                "object": "chat.completion",
                "created": self._created,
                "model": self._model,
                "choices": choices,
                "service_tier": None,
                "system_fingerprint": FINGERPRINT,
                "usage": self.usage(usage(self._chat, last)),
                "prompt_logprobs": None,
                "prompt_token_ids": None,
                "prompt_text": None,
                "kv_transfer_params": None,
                "ec_transfer_params": None,
                "metrics": None,
            }
        )

    def usage(self, figures: Usage) -> dict[str, Any]:
        """`usage` as `--enable-prompt-tokens-details` gives it: a prompt that read nothing says 0, not null."""
        details: dict[str, Any] = {
            "cached_tokens": figures.read_tokens,
            "created_cache_tokens": figures.write_tokens,
            "multimodal_tokens": {"image": figures.image_tokens} if figures.image_tokens else None,
        }
        return {
            "prompt_tokens": figures.prompt_tokens,
            "total_tokens": figures.prompt_tokens + figures.completion_tokens,
            "completion_tokens": figures.completion_tokens,
            "prompt_tokens_details": details if self._reports_cache else None,
            "completion_tokens_details": None,
        }

    def _chunk(self, choices: list[dict[str, Any]], extra: Mapping[str, Any], generated: int | None = None) -> bytes:
        body: dict[str, Any] = {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }
        if self._continuous_usage and generated is not None:
            prompt = len(self._chat.prompt.tokens)
            body["usage"] = {
                "prompt_tokens": prompt,
                "total_tokens": prompt + generated,
                "completion_tokens": generated,
                "completion_tokens_details": None,
            }
        return sse(body | dict(extra))

    def _delta(self, answer: Answer, token: Token) -> dict[str, Any]:
        if answer.call is None:
            return {"content": answer.texts[token.number]}
        # A tool call comes whole with its first token: how it is cut is the parser's choice in vLLM, too.
        return {"tool_calls": [self._call(answer) | {"index": 0}]} if token.number == 0 else {}

    def _choice(self, index: int, answer: Answer) -> dict[str, Any]:
        text = None if answer.call else "".join(answer.texts)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": text,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
        }
        if answer.call:
            message["tool_calls"] = [self._call(answer)]
        return {
            "index": index,
            "message": message | {"reasoning": None},
            "logprobs": self._logprob_content(answer, 0, len(answer.tokens)),
            "finish_reason": self._finish_reason(answer),
            "stop_reason": answer.stop_reason,
            "token_ids": None,
            "routed_experts": None,
        }

    def _call(self, answer: Answer) -> dict[str, Any]:
        assert answer.call is not None
        function = {"name": answer.call.name, "arguments": answer.call.arguments}
        return {"id": f"chatcmpl-tool-{self._chat.request_id}", "type": "function", "function": function}

    def _finish_reason(self, answer: Answer) -> str:
        called = answer.call is not None and answer.reason == "stop" and not self._named_tool
        return "tool_calls" if called else answer.reason

    def _logprob_content(self, answer: Answer, start: int, end: int) -> dict[str, Any] | None:
        if not self._logprobs:
            return None
        return {"content": [self._logprob(answer.texts[at], at) for at in range(start, end)]}

    def _logprob(self, text: str, at: int) -> dict[str, Any]:
        # Invented but stable: the model has no probabilities.
        others = [_shown(text if rank == 0 else f"{text}~{rank}", -0.125 - rank) for rank in range(self._top_logprobs)]
        return _shown(text, -0.125 - (at % 4) / 16) | {"top_logprobs": others}


def _shown(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def _without_none(body: dict[str, Any]) -> dict[str, Any]:
    """The final usage chunk leaves out what is null, at every depth (exclude_none)."""
    kept = {key: value for key, value in body.items() if value is not None}
    return {
        key: _without_none(cast("dict[str, Any]", value)) if isinstance(value, dict) else value
        for key, value in kept.items()
    }
