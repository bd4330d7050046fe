"""Records for tests."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from metrics.records.record import TurnRecord
from metrics.records.schema import HOUR

# 2026-09-21T14:13:20Z
BEGIN = 1_790_000_000_000_000_000
IMAGES = [f"{number:064x}" for number in range(1, 9)]


def record(id: int = BEGIN, **changes: Any) -> TurnRecord:
    """A completed turn."""
    made = TurnRecord(
        id=id,
        request_id=f"request-{id}",
        tenant="alice",
        conversation="c1",
        number=1,
        model="m",
        policy="stable",
        policy_version="1",
        stream=True,
        outcome="completed",
        prompt_tokens=100,
        completion_tokens=7,
        read_tokens=64,
        write_tokens=32,
        uncached_tokens=4,
        first_token_seconds=0.25,
        total_seconds=0.5,
    )
    return replace(made, **changes)


def whole(id: int = BEGIN) -> TurnRecord:
    """A turn of which everything is known, no two figures alike."""
    return record(
        id,
        number=21,
        stream=False,
        text_only=False,
        images=5,
        unique_images=2,
        new_images=1,
        encoder_runs=3,
        encoder_hits=6,
        visual_tokens=40,
        write_derived=True,
        loaded_tokens=8,
        expected_read=90,
        lost_tokens=26,
        break_message=-1,
        break_part=9,
        break_token=65,
        cause="engine_eviction",
        actor="engine",
        evicted_image=IMAGES[3],
        image_eviction=True,
        summary=True,
        epoch=11,
        cost=0.125,
        image_ids=(IMAGES[1], IMAGES[0]),
        image_counts=(4, 1),
        evicted_conversation="c0",
        evicted_tokens=13,
        unseen_images=True,
        reuse="0.05; profile",
        reuse_by="policy",
    )


def many(count: int, hours: int, seed: int = 0) -> list[TurnRecord]:
    """Turns of some conversations, spread over so many hours, in the order in which they came."""
    rng = random.Random(seed)  # noqa: S311
    made: list[TurnRecord] = []
    for at in range(count):
        prompt = rng.randrange(1, 40_000)
        reported = rng.random() < 0.9
        read = rng.choice([0, prompt, rng.randrange(prompt + 1)]) if reported else None
        images = tuple(rng.sample(IMAGES, rng.randrange(4)))
        cause, actor = rng.choice([(None, None), ("cold", "client"), ("template", "template"), ("salt", "gateway")])
        made.append(
            record(
                BEGIN + hours * HOUR * at // count + at,
                tenant=rng.choice(["alice", "bob"]),
                conversation=f"c{rng.randrange(12)}",
                number=rng.randrange(1, 120),
                model=rng.choice(["large", "small"]),
                policy=rng.choice(["stable", "batched"]),
                outcome=rng.choice(["completed", "completed", "aborted", "failed"]),
                text_only=not images,
                images=len(images),
                unique_images=len(images),
                visual_tokens=rng.choice([None, 0, 900, 5000]),
                prompt_tokens=prompt,
                read_tokens=read,
                write_tokens=None if read is None else prompt - read,
                uncached_tokens=None if read is None else 0,
                write_derived=rng.random() < 0.3,
                cause=cause,
                actor=actor,
                lost_tokens=rng.choice([None, 0, 16, 160]),
                image_eviction=rng.random() < 0.2,
                summary=rng.random() < 0.1,
                first_token_seconds=rng.choice([None, 0.5]),
                cost=rng.choice([None, 0.25]),
                image_ids=images,
            )
        )
    return made
