"""The training loop: stages in turn, checkpoints, progress with the time left, and figures by kind of question."""

# torch leaves much of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from engine.demo_model.chats import draw_chat, rng_for
from engine.demo_model.scenes import draw_scene
from engine.demo_model.training.batches import (
    Batch,
    Encoded,
    Encoder,
    cell_targets,
    image_groups,
    join_patches,
)
from engine.demo_model.training.losses import (
    MOST_PATCHES,
    Heads,
    cell_loss,
    embed_images,
    forward,
    look_loss,
    right_answers,
)
from engine.demo_model.training.optimizer import MuonAdam
from engine.demo_model.training.stages import STAGES, Stage
from engine.demo_model.training.start import align_words, initialize
from engine.reference.qwen2_5_vl import Model, Shape, Trace

_POOL = 96
# The layers whose output says which image a token belongs to, and whose first head looks at what is asked for.
_NUMBER_LAYER, _LOOK_LAYER = 1, 3
_LOOK_WEIGHT, _CELL_WEIGHT, _TOWER_SCALE = 0.3, 0.2, 0.4
_REPORT_SECONDS = 20.0
_SAVE_SECONDS = 120.0
_WARM_STEPS = 100
_LONGEST_STEP_SECONDS = 10.0


@dataclass(slots=True)
class Progress:
    """How far the training is, and what it was like."""

    stage: int = 0
    stage_seconds: float = 0.0
    total_seconds: float = 0.0
    step: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)


class Training:
    """All state of a training in a folder. `run` goes on where the last one stopped."""

    def __init__(
        self,
        folder: Path,
        tokenizer: Tokenizer,
        say: Callable[[str], None],
        *,
        stages: Sequence[Stage] = STAGES,
        shape: Shape | None = None,
    ) -> None:
        torch.manual_seed(0)
        self.folder, self.say, self.stages = folder, say, stages
        self.encoder = Encoder(tokenizer)
        shape = shape or Shape(vocabulary=-(-tokenizer.get_vocab_size() // 64) * 64)
        self.model, self.heads = Model(shape), Heads(shape.hidden)
        initialize(self.model)
        self.progress = Progress()
        self.optimizer = self._optimizer()
        self._resume()

    def run(self, until_seconds: float = math.inf, until_step: float = math.inf) -> None:
        """Train to the end of the last stage, or until so many seconds or steps were trained in all."""
        progress = self.progress

        def goes_on() -> bool:
            return progress.total_seconds < until_seconds and progress.step < until_step

        while progress.stage < len(self.stages) and goes_on():
            stage = self.stages[progress.stage]
            self.say(f"Stage {progress.stage + 1} of {len(self.stages)}: {stage.name}.")
            self._stage(stage, goes_on)
            if self.progress.stage_seconds >= stage.seconds:
                self.progress.stage, self.progress.stage_seconds = self.progress.stage + 1, 0.0
                if not stage.chats and progress.stage < len(self.stages) and self.stages[progress.stage].chats:
                    align_words(self.model, self.heads, self.encoder)
                self.optimizer = self._optimizer()
            self.save()

    def _stage(self, stage: Stage, goes_on: Callable[[], bool]) -> None:
        progress = self.progress
        batches = self._batches(stage) if stage.chats else None
        sums: Counter[str] = Counter()
        reported = saved = before = time.monotonic()
        while progress.stage_seconds < stage.seconds and goes_on():
            rate = self._rate(stage)
            if batches is None:
                figures = self._vision_step(stage, rate)
            else:
                figures = self._text_step(next(batches), rate, tower=stage.tower)
            progress.step += 1
            now = time.monotonic()
            # A machine that slept, or a process that was stopped, did not train.
            spent = min(now - before, _LONGEST_STEP_SECONDS)
            progress.stage_seconds += spent
            progress.total_seconds += spent
            before = now
            sums.update(figures)
            sums["steps"] += 1
            if now - reported > _REPORT_SECONDS:
                self._report(stage, sums, rate)
                sums.clear()
                reported = now
            if now - saved > _SAVE_SECONDS:
                self.save()
                saved = before = time.monotonic()

    def _rate(self, stage: Stage) -> float:
        first, last = stage.rate
        share = min(1.0, self.progress.stage_seconds / stage.seconds)
        return (first + (last - first) * share) * min(1.0, (self.progress.step + 1) / _WARM_STEPS)

    def _vision_step(self, stage: Stage, rate: float) -> dict[str, float]:
        rng = rng_for("train", self.progress.step)
        scenes = [draw_scene(rng, "train", stage.scenes) for _ in range(64)]
        group = image_groups(scenes, MOST_PATCHES)[
            int(rng.integers(0, 1_000)) % len(image_groups(scenes, MOST_PATCHES))
        ]
        scenes = [scenes[number] for number in group]
        with torch.autocast("cpu", torch.bfloat16):
            features = self.model.vision(*join_patches(scenes))
        loss, figures = cell_loss(
            self.heads, features.float(), torch.from_numpy(np.concatenate([cell_targets(s) for s in scenes]))
        )
        loss.backward()
        self.optimizer.step(rate)
        return figures

    def _text_step(self, batch: Batch, rate: float, *, tower: bool) -> dict[str, float]:
        with torch.autocast("cpu", torch.bfloat16):
            with torch.set_grad_enabled(tower):
                features = embed_images(self.model, batch)
            trace = Trace(_NUMBER_LAYER, _LOOK_LAYER)
            logits = self.model.logits(forward(self.model, batch, features, trace))
            assert trace.output is not None
            # One head for both: what a question asks for and what an image token is get the same direction.
            number = self.heads.number(trace.output.flatten(0, 1)[torch.cat((batch.image_at, batch.asked_at))])
        loss = F.cross_entropy(logits.float(), batch.answers)
        of_tokens, of_questions = number.float().split((len(batch.image_at), len(batch.asked_at)))
        asked = F.cross_entropy(of_questions, batch.asked_number, reduction="sum") / max(1, len(batch.asked_at))
        numbers = F.cross_entropy(of_tokens, batch.image_number)
        look = look_loss(trace, batch)
        total = loss + 0.2 * (numbers + asked) + _LOOK_WEIGHT * look
        seen: dict[str, float] = {}
        if tower:
            targets = torch.from_numpy(np.concatenate([cell_targets(scene) for scene in batch.scenes]))
            cells, seen = cell_loss(self.heads, features.float(), targets)
            total = total + _CELL_WEIGHT * cells
        total.backward()
        self.optimizer.step(rate)
        right = right_answers(logits, batch)
        figures = {
            "loss": float(loss.detach()),
            "number": float(numbers.detach()),
            "asked": float(asked.detach()),
            "look": float(look.detach()),
            "tokens": float(batch.ids.numel()),
        }
        figures |= {name: seen[name] for name in ("thing", "false") if tower}
        for kind, good in zip(batch.kinds, right, strict=True):
            figures[f"{kind}_n"] = figures.get(f"{kind}_n", 0) + 1
            figures[f"{kind}_right"] = figures.get(f"{kind}_right", 0) + good
        return figures

    def _batches(self, stage: Stage) -> Iterator[Batch]:
        number = self.progress.step
        while True:
            number += 1
            rng = rng_for("train", 1_000_000 + number * 7 + self.progress.stage)
            chats = sorted(self._pool(rng, stage), key=lambda chat: len(chat.ids))
            batches = pack(chats, stage.tokens)
            for index in rng.permutation(len(batches)):
                yield self.encoder.batch(batches[index])

    def _pool(self, rng: np.random.Generator, stage: Stage) -> list[Encoded]:
        shares = np.array([share for share, _ in stage.chats])
        which = rng.choice(len(shares), _POOL, p=shares / shares.sum())
        return [self.encoder.encode(draw_chat(rng, "train", stage.chats[index][1])) for index in which]

    def _report(self, stage: Stage, sums: Counter[str], rate: float) -> None:
        progress = self.progress
        steps = sums.pop("steps")
        entry: dict[str, Any] = {"seconds": round(progress.total_seconds), "step": progress.step, "rate": rate}
        for name, value in sums.items():
            if name.endswith("_right"):
                kind = name.removesuffix("_right")
                entry[kind or "reply"] = round(value / sums[f"{kind}_n"], 3)
            elif not name.endswith("_n"):
                entry[name] = round(value / steps, 4)
        progress.history.append(entry)
        left = sum(s.seconds for s in self.stages[progress.stage :]) - progress.stage_seconds
        words = " ".join(f"{name}={value:g}" for name, value in entry.items() if name not in ("seconds", "rate"))
        self.say(f"{progress.total_seconds / 60:6.1f} min, {left / 60:.0f} left: {words}")

    def _optimizer(self) -> MuonAdam:
        stage = self.stages[min(self.progress.stage, len(self.stages) - 1)]
        vision = not stage.chats
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(name.startswith("vision") == vision or (stage.tower and not vision))
        named = [*self.model.named_parameters(), *((f"embed.{n}", p) for n, p in self.heads.named_parameters())]
        # A tower that the decoder already reads moves slowly.
        return MuonAdam(named, scale=lambda name: _TOWER_SCALE if stage.tower and name.startswith("vision") else 1.0)

    def save(self) -> None:
        """Write a checkpoint; the one before is replaced at once or not at all."""
        state = {
            "model": self.model.state_dict(),
            "heads": self.heads.state_dict(),
            "optimizer": self.optimizer.state(),
            "progress": asdict(self.progress),
        }
        building = self.folder / "checkpoint.new"
        torch.save(state, building)
        os.replace(building, self.folder / "checkpoint.pt")
        (self.folder / "history.json").write_text(json.dumps(self.progress.history))

    def _resume(self) -> None:
        path = self.folder / "checkpoint.pt"
        if not path.is_file():
            return
        state = torch.load(path, weights_only=True)
        self.progress = Progress(**state["progress"])
        self.model.load_state_dict(state["model"])
        self.heads.load_state_dict(state["heads"])
        self.optimizer = self._optimizer()
        if self.progress.stage_seconds:
            self.optimizer.load(state["optimizer"])
        self.say(f"Going on after {self.progress.total_seconds / 60:.0f} minutes of training.")


def pack(chats: list[Encoded], tokens: int) -> list[list[Encoded]]:
    """Split chats that are sorted by length into batches of at most `tokens`, padding included."""
    batches: list[list[Encoded]] = [[]]
    for chat in chats:
        if batches[-1] and (len(batches[-1]) + 1) * len(chat.ids) > tokens:
            batches.append([])
        batches[-1].append(chat)
    return batches
