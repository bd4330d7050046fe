"""Which tokens run in a step: continuous batching with chunked prefill over the prefix and encoder caches.

A step has two halves, `schedule` and `finish`: between them the model would run, and a sequence may be aborted.

Source: vLLM 0.32, v1/core/sched/scheduler.py::Scheduler.schedule, _try_schedule_encoder_inputs, _preempt_request,
_update_after_schedule, update_from_output, _free_encoder_inputs; v1/core/kv_cache_manager.py::KVCacheManager.
get_computed_blocks and allocate_slots; v1/core/sched/utils.py::check_stop.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from engine.base import EncoderEvent, EngineEvent
from engine.fake.blocks import Block, BlockPool
from engine.fake.config import FakeConfig
from engine.fake.encoder import EncoderCache
from engine.fake.sequence import FakeSequence, FinishReason


@dataclass(slots=True)
class Step:
    """What one step computes: new tokens by sequence, and how many embeddings the encoder makes."""

    tokens: list[tuple[FakeSequence, int]] = field(default_factory=list[tuple[FakeSequence, int]])
    token_budget: int = 0
    encoder_budget: int = 0
    embeddings: int = 0
    prefill_tokens: int = 0
    decodes: int = 0


@dataclass(frozen=True, slots=True)
class Token:
    """A generated token: the `number`th of its sequence, from 0. `last` when the sequence ended with it."""

    sequence: FakeSequence
    number: int
    last: bool


@dataclass(slots=True)
class _Chunk:
    """Tokens that a sequence wants in this step, cut where an image's features cannot be had."""

    tokens: int
    compute: list[int] = field(default_factory=list[int])
    repeated: list[int] = field(default_factory=list[int])
    embeddings: int = 0


class Scheduler:
    """First come, first served. The newest running sequence gives way when blocks run out.

    Counters are vLLM's: `queries` and `hits` of the prefix cache are in tokens, counted when a prompt is admitted.
    """

    def __init__(self, config: FakeConfig) -> None:
        self._config = config
        self._encoder_budget = config.encoder_budget
        self.pool = BlockPool(config.num_blocks, config.block_tokens)
        self.encoder = EncoderCache(config.encoder_cache_size)
        self.waiting: deque[FakeSequence] = deque()
        self.running: list[FakeSequence] = []
        self.queries = 0
        self.hits = 0

    def add(self, sequence: FakeSequence) -> None:
        """Queue a sequence."""
        self.waiting.append(sequence)

    def abort(self, sequence: FakeSequence) -> None:
        """End a sequence at once; what it stored stays in the caches."""
        if sequence.finished:
            return
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        self._end(sequence, "abort")

    def schedule(self) -> Step:
        """Decide on the next step and reserve what it needs."""
        step = Step(token_budget=self._config.max_batched_tokens, encoder_budget=self._encoder_budget)
        preempted = self._continue_running(step)
        while not preempted and self.waiting and step.token_budget and len(self.running) < self._config.max_running:
            if not self._admit(self.waiting[0], step):
                break
            self.running.append(self.waiting.popleft())
        for sequence, tokens in step.tokens:
            if sequence.computed_tokens < sequence.prompt_tokens:
                step.prefill_tokens += tokens
            else:
                step.decodes += 1
            sequence.computed_tokens += tokens
        return step

    def finish(self, step: Step) -> list[Token]:
        """The step has run: give its tokens, and free what is no longer needed."""
        tokens: list[Token] = []
        for sequence, _ in step.tokens:
            if sequence.finished:
                continue
            self._free_features(sequence)
            if sequence.computed_tokens < len(sequence.tokens):
                continue
            sequence.append(sequence.plan[sequence.generated])
            if sequence.generated == 1:
                stored = min(sequence.stored_blocks * self._config.block_tokens, sequence.prompt_tokens)
                sequence.write_tokens = max(0, stored - sequence.read_tokens)
            last = sequence.generated == len(sequence.plan)
            if last:
                self.running.remove(sequence)
                self._end(sequence, sequence.plan_reason)
            tokens.append(Token(sequence, sequence.generated - 1, last))
        return tokens

    def reset_prefix_cache(self) -> bool:
        """See `BlockPool.reset`."""
        return self.pool.reset()

    def take_events(self) -> tuple[list[EngineEvent], list[EncoderEvent]]:
        """KV and encoder events since the last call."""
        return self.pool.take_events(), self.encoder.take_events()

    def _continue_running(self, step: Step) -> bool:
        """Give running sequences their next tokens; whether one had to give way."""
        preempted, at = False, 0
        while at < len(self.running) and step.token_budget:
            sequence = self.running[at]
            at += 1
            wanted = min(len(sequence.tokens) - sequence.computed_tokens, step.token_budget)
            chunk = self._with_features(sequence, sequence.computed_tokens, wanted, step)
            if not chunk.tokens:
                continue
            need = self._blocks_for(sequence.computed_tokens + chunk.tokens) - len(sequence.blocks)
            while need > self.pool.num_free:
                preempted = True
                victim = self.running.pop()
                self._preempt(victim)
                if victim is sequence:
                    return preempted
            self._take(sequence, sequence.computed_tokens, chunk, step)
        return preempted

    def _admit(self, sequence: FakeSequence, step: Step) -> bool:
        """Start a waiting sequence behind what the prefix cache holds of it. False when there is no room yet."""
        # The last token is always computed: its logits give the first token of the answer.
        found = self.pool.find(sequence.hashes, (len(sequence.tokens) - 1) // self._config.block_tokens)
        read = len(found) * self._config.block_tokens
        chunk = self._with_features(sequence, read, min(len(sequence.tokens) - read, step.token_budget), step)
        if not chunk.tokens:
            return False
        if not self._fits(sequence, found):
            self.encoder.free(sequence)
            return False
        self.pool.touch(found)
        sequence.blocks = list(found)
        sequence.stored_blocks = len(found)
        sequence.computed_tokens = read
        if not sequence.preemptions:
            sequence.read_tokens = read
            self.queries += len(sequence.tokens)
            self.hits += read
        self._take(sequence, read, chunk, step)
        return True

    def _fits(self, sequence: FakeSequence, found: list[Block]) -> bool:
        # The whole prompt must fit, not only its first chunk (scheduler_reserve_full_isl).
        need = self._blocks_for(len(sequence.tokens)) - len(found)
        return need + self.pool.missing_free(found) <= self.pool.num_free

    def _take(self, sequence: FakeSequence, start: int, chunk: _Chunk, step: Step) -> None:
        """Reserve blocks and features for a chunk. Full blocks can be found from now on, before they are computed."""
        end = start + chunk.tokens
        sequence.blocks += self.pool.take(max(0, self._blocks_for(end) - len(sequence.blocks)))
        self.pool.store(sequence, min(end, len(sequence.tokens)))
        for image in chunk.compute:
            self.encoder.allocate(sequence, image)
        for image in chunk.repeated:
            self.encoder.check(sequence, image)
        step.tokens.append((sequence, chunk.tokens))
        step.token_budget -= chunk.tokens
        step.encoder_budget -= chunk.embeddings
        step.embeddings += chunk.embeddings

    def _with_features(self, sequence: FakeSequence, start: int, tokens: int, step: Step) -> _Chunk:
        """Look for the features of all images that the next `tokens` tokens touch; images before `start` need none."""
        chunk = _Chunk(tokens)
        scheduled: set[str] = set()
        for number, image in enumerate(sequence.prompt.images):
            if image.end <= start:
                continue
            if image.offset >= start + tokens or not tokens:
                break
            if image.uuid in scheduled:
                chunk.repeated.append(number)
                continue
            if self.encoder.check(sequence, number):
                continue
            if not self.encoder.has_room(sequence, number, step.encoder_budget - chunk.embeddings, chunk.embeddings):
                # Run up to the image now; without room for an image that has begun, nothing runs.
                chunk.tokens = max(0, image.offset - start)
                break
            scheduled.add(image.uuid)
            chunk.embeddings += image.tokens
            chunk.compute.append(number)
        return chunk

    def _preempt(self, sequence: FakeSequence) -> None:
        self._free_caches(sequence)
        sequence.computed_tokens = 0
        sequence.preemptions += 1
        self.waiting.appendleft(sequence)

    def _free_features(self, sequence: FakeSequence) -> None:
        for image in self.encoder.held(sequence):
            if sequence.prompt.images[image].end <= sequence.computed_tokens:
                self.encoder.let_go(sequence, image)

    def _free_caches(self, sequence: FakeSequence) -> None:
        self.encoder.free(sequence)
        blocks, sequence.blocks, sequence.stored_blocks = sequence.blocks, [], 0
        self.pool.release(reversed(blocks))

    def _end(self, sequence: FakeSequence, reason: FinishReason) -> None:
        sequence.finished = reason
        self._free_caches(sequence)
        self.encoder.free(sequence, done=True)

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._config.block_tokens)
