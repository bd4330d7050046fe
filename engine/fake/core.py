"""The fake engine without HTTP: chats in, tokens and cache events out, step by step and synchronously.

A simulation uses it as it is (`FakeCore.complete`); the ASGI app drives it from an event loop.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, cast

from engine.base import EncoderEvent, EngineEvent
from engine.fake.answers import Answer, limits, plan_answer
from engine.fake.checks import check_body, check_images, check_prompt, check_text_length
from engine.fake.config import FakeConfig
from engine.fake.errors import Refused, invalid
from engine.fake.processor import ProcessorCache
from engine.fake.scheduler import Scheduler, Step, Token
from engine.fake.sequence import FakeSequence, PlacedImage, Prompt
from engine.fake.template import ChatMLTemplate, CheckpointTemplate, Template, parse_messages, parse_tools
from engine.fake.tokenizer import BuiltinTokenizer, CheckpointTokenizer, Tokenizer


@dataclass(slots=True, eq=False)
class FakeChat:
    """An accepted chat: its prompt, and a sequence with its planned answer for each choice."""

    request_id: str
    prompt: Prompt
    sequences: list[FakeSequence]
    answers: list[Answer]
    open_sequences: int = field(default=0)


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one chat. `read_tokens` came from the prefix cache, `write_tokens` were added to it."""

    prompt_tokens: int
    completion_tokens: int
    read_tokens: int
    write_tokens: int
    image_tokens: int


class FakeCore:
    """Tokenizer, template, the three caches and the scheduler of one fake engine.

    Raises:
        ConfigError: the configuration cannot work.
    """

    def __init__(self, config: FakeConfig | None = None) -> None:
        self.config = config or FakeConfig()
        self.config.check()
        folder = self.config.checkpoint
        self.tokenizer: Tokenizer = CheckpointTokenizer(folder) if folder else BuiltinTokenizer()
        self.template: Template = CheckpointTemplate(folder) if folder else ChatMLTemplate()
        self.processor = ProcessorCache(self.config.processor_cache_bytes, self.config.visual)
        # /tokenize never looks into the serving cache (renderers/base.py::_process_multimodal, skip_mm_cache).
        self._tokenize_processor = ProcessorCache(self.config.processor_cache_bytes, self.config.visual)
        self.scheduler = Scheduler(self.config)
        self.counters: Counter[str] = Counter()
        self._chats: dict[str, list[FakeChat]] = {}
        self._turn = 0

    @property
    def has_work(self) -> bool:
        """Whether a sequence waits or runs."""
        return bool(self.scheduler.waiting or self.scheduler.running)

    @property
    def running(self) -> int:
        """Sequences that wait or run."""
        return len(self.scheduler.waiting) + len(self.scheduler.running)

    def render(self, body: Mapping[str, Any], *, for_tokenize: bool = False) -> Prompt:
        """Messages to token ids. Images go through the processor cache.

        Raises:
            Refused: the body is not a chat, an image is missing, or the prompt is too long.
        """
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise invalid("Field required: messages", "body.messages")
        parsed, parts = parse_messages(cast("list[Any]", messages), wraps_parts=self.template.wraps_parts)
        check_images(self.config, parts)
        options = {"add_generation_prompt": body.get("add_generation_prompt", True)}
        options |= body.get("chat_template_kwargs") or {}
        text = self.template.render(parsed, parse_tools(body.get("tools")), options)
        ids = self.tokenizer.encode(text)
        if not for_tokenize:
            check_text_length(self.config, len(ids))
        cache = self._tokenize_processor if for_tokenize else self.processor
        known = cache.process(parts)
        tokens, placed = self._expanded(ids, [(image.identity, image.tokens) for image in known])
        return Prompt(tokens, placed, body.get("cache_salt"))

    def accept(self, body: Mapping[str, Any], request_id: str, answer: str | None = None) -> FakeChat:
        """Check a chat completion body and plan its answers; nothing runs until `start`.

        Args:
            body: the chat.
            request_id: its name in events.
            answer: what to say; as the configuration has it where there is none.

        Raises:
            Refused: vLLM would answer with an error.
        """
        config = self.config if answer is None else replace(self.config, script=(answer,))
        check_body(self.config, body)
        prompt = self.render(body)
        check_prompt(self.config, prompt)
        bounds = limits(body, self.config.max_model_tokens - len(prompt.tokens))
        # Not the images' names: sent by uuid or by content, the same chat gets the same answer.
        digest = blake2b(array("Q", prompt.tokens), digest_size=16).digest()
        choices = range(body.get("n") or 1)
        answers = [
            plan_answer(config, self.tokenizer, body, bounds, digest + index.to_bytes(2, "big"), self._turn)
            for index in choices
        ]
        self._turn += 1
        sequences = [
            FakeSequence(
                request_id,
                prompt,
                answers[index].tokens,
                answers[index].reason,
                self.config.block_tokens,
                index,
                str(body.get("session_id") or ""),
            )
            for index in choices
        ]
        return FakeChat(request_id, prompt, sequences, answers, len(sequences))

    def start(self, chat: FakeChat) -> None:
        """Queue an accepted chat."""
        self._chats.setdefault(chat.request_id, []).append(chat)
        for sequence in chat.sequences:
            self.scheduler.add(sequence)

    def abort(self, chat: FakeChat) -> None:
        """End a chat at once. A chat that has ended, or was never started, is left alone."""
        if chat not in self._chats.get(chat.request_id, ()):
            return
        for sequence in chat.sequences:
            self.scheduler.abort(sequence)
        self._ended(chat)

    def schedule(self) -> Step:
        """First half of a step. See `Scheduler.schedule`."""
        return self.scheduler.schedule()

    def seconds(self, step: Step) -> float:
        """How long the step takes at the configured speed."""
        config = self.config
        prefill = step.prefill_tokens * config.prefill_seconds_per_token
        encode = step.embeddings * config.encoder_seconds_per_embedding
        return prefill + encode + (config.decode_seconds_per_token if step.decodes else 0.0)

    def finish(self, step: Step) -> list[Token]:
        """Second half of a step. See `Scheduler.finish`."""
        tokens = self.scheduler.finish(step)
        for token in tokens:
            sequence = token.sequence
            if token.number == 0:
                self.counters["prompt_tokens"] += sequence.prompt_tokens
            self.counters["generation_tokens"] += 1
            if token.last:
                chat = next(chat for chat in self._chats[sequence.request_id] if sequence in chat.sequences)
                chat.open_sequences -= 1
                if not chat.open_sequences:
                    self._ended(chat)
        return tokens

    def complete(self, body: Mapping[str, Any], request_id: str = "simulated", *, answer: str | None = None) -> Usage:
        """Run one chat to its end, with whatever else is queued. For simulations. `answer`: see `accept`.

        Raises:
            Refused: vLLM would answer with an error.
        """
        chat = self.accept(body, request_id, answer)
        self.start(chat)
        while chat.open_sequences:
            self.finish(self.schedule())
        return usage(chat, chat.sequences[-1])

    def reset_prefix_cache(self) -> bool:
        """Empty the prefix cache; False while a sequence uses it."""
        return self.scheduler.reset_prefix_cache()

    def reset_processor_cache(self) -> None:
        """Forget all processed images."""
        self.processor.clear()
        self._tokenize_processor.clear()

    def reset_encoder_cache(self) -> None:
        """Drop all vision features."""
        self.scheduler.encoder.reset()

    def take_events(self) -> tuple[list[EngineEvent], list[EncoderEvent]]:
        """KV and encoder events since the last call."""
        return self.scheduler.take_events()

    def _ended(self, chat: FakeChat) -> None:
        chats = self._chats[chat.request_id]
        chats.remove(chat)
        if not chats:
            del self._chats[chat.request_id]
        if chat.prompt.images:
            self.scheduler.encoder.done(chat.request_id)

    def _expanded(self, ids: list[int], images: list[tuple[str, int]]) -> tuple[list[int], tuple[PlacedImage, ...]]:
        """Replace the first placeholder tokens by as many as each image takes."""
        if not images:
            return ids, ()
        pad, tokens, placed, start = self.tokenizer.image_token, list[int](), list[PlacedImage](), 0
        for identity, count in images:
            try:
                at = ids.index(pad, start)
            except ValueError:
                message = f"Failed to apply prompt replacement for mm_items['image'][{len(placed)}]"
                raise Refused(message) from None
            tokens += ids[start:at]
            placed.append(PlacedImage(identity, len(tokens), count))
            tokens += [pad] * count
            start = at + 1
        return tokens + ids[start:], tuple(placed)


def usage(chat: FakeChat, reported: FakeSequence) -> Usage:
    """What a chat cost. `reported` is the choice whose cache figures count: with several choices they differ, because
    the first stores what the others read; vLLM reports those of the choice that its answer came from.
    """
    return Usage(
        prompt_tokens=len(chat.prompt.tokens),
        completion_tokens=sum(sequence.generated for sequence in chat.sequences),
        read_tokens=reported.read_tokens,
        write_tokens=reported.write_tokens,
        image_tokens=chat.prompt.image_tokens,
    )
