"""What a worker does for one request in a step: which rows of images it loads before, which it keeps behind.

Source: vLLM 0.32, vllm/v1/core/sched/output.py::SchedulerOutput.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.vllm.image_kv.jumps import Jump, Stretch
from engine.vllm.image_kv.messages import Capture, Load, Span
from engine.vllm.image_kv.prompt_images import PromptImage
from engine.vllm.image_kv.tracked import Tracked


def loads_of(tracked: Tracked, stretches: Iterable[Stretch], blocks: Sequence[int], block_tokens: int) -> list[Load]:
    """What is loaded for a step that computes these stretches; what it makes approximate and how much it is go down in
    `tracked`.

    Args:
        tracked: the request, with the jumps that the step makes.
        stretches: tokens that it computes.
        blocks: of the request.
        block_tokens: of a block.
    """
    loads: list[Load] = []
    for jump in tracked.pending:
        image = tracked.image_at(jump.image)
        span = Span.of(list(blocks), block_tokens, jump.start, jump.end)
        loads.append(Load(tracked.holds[image.name], jump.start - image.first, span, image.position))
        tracked.exact_until = min(tracked.exact_until, jump.start)
        tracked.load(image.first, jump.end - jump.start)
    for stretch in stretches:
        tracked.compute(stretch)
        loads += _loads_by_layer(tracked, stretch, blocks, block_tokens)
    return loads


def captures_of(
    tracked: Tracked, stretches: Iterable[Stretch], blocks: Sequence[int], block_tokens: int
) -> list[Capture]:
    """The rows of images that a step computes exactly, once it is known what is loaded for it."""
    captures: list[Capture] = []
    for stretch in stretches:
        for image in tracked.images:
            first, end = max(stretch.start, image.first), min(stretch.end, image.end)
            if first >= end or image.end > tracked.exact_until or _is_jumped(image, tracked.jumps):
                continue
            span, row = Span.of(list(blocks), block_tokens, first, end), first - image.first
            name, position = image.name, image.position
            captures.append(Capture(tracked.request.request_id, image.first, name, image.tokens, position, row, span))
    return captures


def _loads_by_layer(tracked: Tracked, stretch: Stretch, blocks: Sequence[int], block_tokens: int) -> list[Load]:
    """What some layers load of the rows that a step computes. With the step, so that a block is whole when others may
    read it."""
    for jump in tracked.jumps:
        first, end = max(stretch.start, jump.image), min(stretch.end, jump.start)
        if first < end and jump.rows and jump.image + jump.rows[-1] < end:
            image, row = tracked.image_at(jump.image), first - jump.image
            span = Span.of(list(blocks), block_tokens, first, end)
            tracked.exact_until = min(tracked.exact_until, jump.image + jump.rows[-1])
            tracked.load(image.first, 0, sum(end - max(first, min(end, jump.image + rows)) for rows in jump.rows))
            # A stretch ends where an image's computed rows do, so there is no other image in it.
            return [Load(tracked.holds[image.name], row, span, image.position, jump.rows)]
    return []


def _is_jumped(image: PromptImage, jumps: Sequence[Jump]) -> bool:
    return any(jump.image == image.first for jump in jumps)
