"""Traffic of its own on vLLM's KV cache manager: what it writes to each block is known, so is what must be found."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

from random import Random
from typing import Any

from tests.bench.block_loads import BLOCK, IMAGE_TOKEN, Turn
from tests.bench.block_replay import manager_of, request_of

BLOCKS = 97
_MOST_TOKENS = 24 * BLOCK


class Traffic:
    """Conversations with images that grow, are cut, sent twice at one time, broken off, and pushed out half way.

    Args:
        seed: of all that is drawn.
        pool: the class of the pool.
        names_blocks: whether blocks are evicted by their ids, as connectors do.
    """

    def __init__(self, seed: int, pool: type[Any], *, names_blocks: bool = True) -> None:
        self.manager = manager_of(pool, BLOCKS, events=True)
        self.names_blocks = names_blocks
        self.pool = self.manager.block_pool
        self.random = Random(seed)  # noqa: S311
        self.running: list[Any] = []
        self.waiting: list[Any] = []
        self.history: list[tuple[list[int], list[tuple[str, int, int]]]] = [([], [])]
        self.requests = self.read_tokens = 0
        # What was computed into each block: the hash of all that it stands for.
        self.content: dict[int, bytes] = {}

    def step(self) -> list[Any]:
        """One operation; the events that it made."""
        chance = self.random.random()
        if chance < 0.3 and len(self.running) < 4:
            self._begin(self._new())
        elif chance < 0.34 and self.waiting:
            # vLLM begins a request again that it had pushed out.
            self._begin(self.waiting.pop(0))
        elif chance < 0.37 and self.running:
            pushed_out = self.running.pop(self.random.randrange(len(self.running)))
            self.manager.free(pushed_out)
            pushed_out.num_computed_tokens = 0
            self.waiting.append(pushed_out)
        elif chance < 0.38 and self.names_blocks:
            self.manager.evict_blocks({self.random.randrange(1, self.pool.num_gpu_blocks) for _ in range(3)})
        elif chance < 0.3805 and not self.running:
            assert self.manager.reset_prefix_cache()
        elif self.running:
            request = self.random.choice(self.running)
            if request.num_output_tokens > self.random.randrange(12) or not self._decode(request):
                self._end(request)
        return self.manager.take_events()

    def end(self) -> None:
        """All requests end."""
        for request in list(self.running):
            self._end(request)

    def _new(self) -> Any:
        self.requests += 1
        tokens, images = self.random.choice(self.history)
        if self.random.random() < 0.3:
            cut = self.random.randrange(len(tokens) + 1)
            tokens, images = tokens[:cut], [one for one in images if one[1] + one[2] <= cut]
        tokens = [*tokens, *self._words()]
        if self.random.random() < 0.5:
            # Few images, so that they come up again at other places too.
            images = [*images, (f"image-{self.random.randrange(20)}", len(tokens), self.random.randrange(1, 5 * BLOCK))]
            tokens += [IMAGE_TOKEN] * images[-1][2]
        tokens += self._words()
        if len(tokens) > _MOST_TOKENS:
            tokens, images = self._words(), []
        self.history = [*self.history[-5:], (tokens, images)]
        if self.random.random() < 0.1:
            self._begin(request_of(-self.requests, Turn("", True, tuple(tokens), tuple(images), ())))
        return request_of(self.requests, Turn("", True, tuple(tokens), tuple(images), ()))

    def _words(self) -> list[int]:
        return [self.random.randrange(100, 109) for _ in range(self.random.randrange(1, 3 * BLOCK))]

    def _begin(self, request: Any) -> None:
        blocks, read, *_ = self.manager.get_computed_blocks(request)
        for block, digest in zip(blocks.blocks[0], request.block_hashes, strict=False):
            assert self.content[block.block_id] == digest, "a block was read that holds something else"
        # In two chunks, as a long prompt is.
        first = self.random.randrange(1, request.num_tokens - read + 1)
        if self.manager.allocate_slots(request, first, read, blocks) is None:
            return
        self.read_tokens += read
        request.num_computed_tokens = read + first
        self._write(request)
        left = request.num_tokens - request.num_computed_tokens
        if left and self.manager.allocate_slots(request, left) is None:
            self.manager.free(request)
            return
        request.num_computed_tokens += left
        self._write(request)
        self.running.append(request)

    def _decode(self, request: Any) -> bool:
        request.append_output_token_ids(self.random.randrange(100, 109))
        if self.manager.allocate_slots(request, 1) is None:
            return False
        request.num_computed_tokens += 1
        self._write(request)
        return True

    def _write(self, request: Any) -> None:
        blocks = self.manager.get_blocks(request.request_id).blocks[0]
        for block, digest in zip(blocks, request.block_hashes, strict=False):
            self.content[block.block_id] = digest

    def _end(self, request: Any) -> None:
        self.running.remove(request)
        self.manager.free(request)
