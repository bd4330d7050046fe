"""The same questions and donors on the embedded engine, which has its images' KV from its pool.

It runs in single precision as the plain model does, one request at a time, encoder warm: a donor shows every picture
before a question does. Under one donor the pool has each image from the context that the plain model takes it from; the
prefix cache is emptied before each request but that of `prefix`, which reads what the donors left.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from context.errors import EngineProtocolError
from context.reuse import Reuse
from engine.base import ChatRequest, EventBatch, ImageReuse
from engine.demo_model.evaluate import wire_messages
from engine.demo_model.questions import is_right
from engine.events import followed
from engine.vllm.embedded import VllmEngine
from engine.vllm.options import VllmSettings
from metrics.eval import base
from metrics.eval.base import Cell, EngineOutcome, Say
from metrics.eval.cases import Case

if TYPE_CHECKING:
    from metrics.eval.cases import Prompt

METHODS = (base.FULL, base.PREFIX, base.HEAD, base.PER_LAYER)
_NAME, _MOST_REPLY_TOKENS = "demo", 12
# The longest of the demo model's questions are far shorter.
_MOST_TOKENS = 4096
_PATIENCE_SECONDS = 30.0


@asynccontextmanager
async def engine_for(folder: Path, profile: Path | None) -> AsyncGenerator[OnEngine]:
    """An engine of a model, until the context is left.

    Raises:
        ConfigError: the model or the profile is none that it takes.
        EngineUnavailable: it does not start.
    """
    options: dict[str, Any] = {
        "dtype": "float32",
        "enforce-eager": True,
        "max-model-len": _MOST_TOKENS,
        "limit-mm-per-prompt": {"image": 16, "video": 0},
        "image-kv": {"memory_gib": 1, "profile": "" if profile is None else str(profile)},
    }
    engine = VllmEngine(VllmSettings(str(folder), _NAME, options, kv_cache_gib=1))
    await engine.start()
    try:
        made = OnEngine(engine)
        async with followed(engine, made.follow):
            yield made
    finally:
        # That its core ends is an error to vLLM's own log.
        with quiet("vllm"):
            await engine.stop()


@contextmanager
def quiet(name: str) -> Generator[None]:
    """Within it a logger says nothing but what is critical; then it is as it was, whatever happened."""
    log = logging.getLogger(name)
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


class OnEngine:
    """Asks a running engine."""

    def __init__(self, engine: VllmEngine) -> None:
        self._engine = engine
        self._numbers = itertools.count()
        self._reused: dict[str, ImageReuse] = {}
        self._came = asyncio.Event()

    async def follow(self, batches: AsyncIterator[EventBatch]) -> None:
        """Keep what the engine tells of the pool."""
        async for batch in batches:
            self._reused |= {event.request_id: event for event in batch.events if isinstance(event, ImageReuse)}
            self._came.set()

    async def evaluate(self, cases: Sequence[Case], cells: Sequence[Cell], say: Say) -> dict[Cell, list[EngineOutcome]]:
        """What each cell comes to, of the methods that an engine has; for `full` under the first donor.

        Raises:
            EngineUnavailable: the engine is gone.
        """
        cells = [cell for cell in cells if cell.method in METHODS]
        found: dict[Cell, list[EngineOutcome]] = {cell: [] for cell in cells}
        donors = list(dict.fromkeys(cell.donor for cell in cells if cell.donor is not None))
        for number, case in enumerate(cases):
            say("engine", f"engine: question {number + 1} of {len(cases)}")
            first_token = ""
            for at, donor in enumerate(donors or [base.DONORS[0]]):
                await self._show(case.donors[donor])
                if not at:
                    whole, first_token = await self._ask(case, Cell(base.FULL), None)
                    found[Cell(base.FULL)].append(whole)
                    await self._show(case.donors[donor])
                # What a prefix cache allows is asked while it is there.
                of_donor = sorted(
                    (cell for cell in cells if cell.donor == donor), key=lambda one: one.method != base.PREFIX
                )
                for cell in of_donor:
                    found[cell].append((await self._ask(case, cell, first_token))[0])
        return found

    async def _show(self, donors: Sequence[Prompt]) -> None:
        """Have the pool know each picture from its donor's context, and nothing else."""
        await self._engine.reset_caches()
        # The first context that shows an image keeps it. Of several the last one shows the fewest of the question's.
        for prompt in reversed(donors):
            await self._chat(_messages(prompt), None, tokens=1)

    async def _ask(self, case: Case, cell: Cell, first_token: str | None) -> tuple[EngineOutcome, str]:
        if cell.method != base.PREFIX:
            await self._engine.reset_prefix_cache()
        wanted = None if cell.ratio is None else Reuse(cell.ratio, cell.method == base.PER_LAYER)
        said = await self._chat(_messages(case.prompt), wanted)
        got = await self._got(said.request_id) if wanted is not None and wanted.approximate else None
        loaded = 0 if got is None else got.loaded_tokens
        images = sum(end - first for first, end in case.prompt.images)
        read = sum(max(0, min(end, said.read_tokens) - first) for first, end in case.prompt.images)
        outcome = EngineOutcome(
            case.number,
            case.hop,
            is_right(said.text, case.expected),
            first_token is None or said.first == first_token,
            1 - (loaded + read) / images,
            1 - (said.read_tokens + loaded) / said.prompt_tokens,
            said.seconds,
        )
        return outcome, said.first

    async def _got(self, request_id: str) -> ImageReuse:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while request_id not in self._reused:
                self._came.clear()
                await self._came.wait()
        return self._reused.pop(request_id)

    async def _chat(
        self, messages: list[dict[str, Any]], reuse: Reuse | None, tokens: int = _MOST_REPLY_TOKENS
    ) -> _Said:
        name = f"eval-{next(self._numbers)}"
        body = {
            "model": _NAME,
            "messages": messages,
            "max_tokens": tokens,
            "temperature": 0,
            "logprobs": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        said = _Said(name)
        began = time.perf_counter()
        async with self._engine.chat(ChatRequest(name, body, "eval", reuse=reuse)) as reply:
            if reply.status != 200:
                raise EngineProtocolError(f"The engine answered a question of the evaluation with {reply.status}.")
            rest = b""
            async for chunk in reply.chunks:
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    said.take(line, time.perf_counter() - began)
        return said


def _messages(prompt: Prompt) -> list[dict[str, Any]]:
    """What a prompt is made of, up to the last picture that counts where it shows others behind it."""
    assert prompt.chat is not None, "what is asked is a whole chat"
    messages, left = wire_messages(prompt.chat), len(prompt.images)
    if left == len(prompt.chat.scenes):
        return messages
    for at, message in enumerate(messages):
        parts: Any = message["content"]
        shown = [place for place, part in enumerate(parts) if isinstance(part, dict) and part["type"] == "image_url"]
        if len(shown) >= left:
            return [*messages[:at], {**message, "content": parts[: shown[left - 1] + 1]}]
        left -= len(shown)
    return messages


class _Said:
    """A streamed reply. `seconds` are those to its first token, which is `first`."""

    def __init__(self, request_id: str) -> None:
        self.request_id, self.text, self.first = request_id, "", ""
        self.seconds: float = 0.0
        self.prompt_tokens = self.read_tokens = 0

    def take(self, line: bytes, seconds: float) -> None:
        """A line of the stream, and when it came."""
        data = line.removeprefix(b"data:").strip()
        if not line.startswith(b"data:") or data == b"[DONE]":
            return
        event: Any = from_json(data)
        for choice in event["choices"]:
            self.text += choice["delta"].get("content") or ""
            told: Any = choice.get("logprobs")
            if told and told["content"] and not self.seconds:
                self.seconds, self.first = seconds, str(told["content"][0]["token"])
        usage: Any = event.get("usage")
        if usage:
            details: Any = usage.get("prompt_tokens_details")
            self.prompt_tokens = int(usage["prompt_tokens"])
            self.read_tokens = int((details and details["cached_tokens"]) or 0)
