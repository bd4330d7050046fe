"""How many questions a model answers right, by group and by kind: `python -m engine.demo_model.evaluate`.

Each question ends a chat of its own, with up to three questions and their right answers before it, on pictures whose
layouts were not trained on. An answer is right when it is the expected words and nothing else; case and a full stop do
not matter.
"""

# transformers leaves much of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from PIL import Image

from context.errors import EngineError, EngineUnavailable
from engine.demo_model.chats import Chat, ChatLimits, draw_chat, rng_for
from engine.demo_model.questions import KINDS, MULTI_HOP, SINGLE_HOP, is_right
from engine.demo_model.scenes import Split, render

YARDSTICK = 0.95
Answer = Callable[[list[dict[str, Any]]], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Group:
    """A group of questions: each is drawn from `kinds` evenly, over `images` pictures."""

    name: str
    kinds: tuple[str, ...]
    images: tuple[int, int]


GROUPS = (
    Group("single-hop, 1-2 images", SINGLE_HOP, (1, 2)),
    Group("single-hop, 3-4 images", SINGLE_HOP, (3, 4)),
    *(Group(f"multi-hop, {kind}", (kind,), (2, 4)) for kind in MULTI_HOP),
)


@dataclass(frozen=True, slots=True)
class Asked:
    """One question of a group with what was answered."""

    group: str
    kind: str
    expected: str
    answered: str

    @property
    def right(self) -> bool:
        """Whether the answer is the expected one."""
        return is_right(self.answered, self.expected)


@dataclass(frozen=True, slots=True)
class Score:
    """Share of right answers. `chance` is the share that blind guessing gets at best, as far as can be told."""

    questions: int
    accuracy: float
    chance: float


def questions(group: Group, count: int, seed: int, split: Split = "test") -> Iterator[tuple[str, Chat]]:
    """`count` chats of a group, each with the kind of its last question. The same seed gives the same ones.

    They do not depend on other groups, and the first ones not on how many are asked for.
    """
    rng = rng_for(split, seed, crc32(group.name.encode()))
    every = dict.fromkeys(KINDS, 1.0)
    limits = ChatLimits(every, min_images=group.images[0], max_images=group.images[1], questions=(1, 4))
    for number in range(count):
        kind = group.kinds[number % len(group.kinds)]
        yield kind, draw_chat(rng, split, limits, last=kind)


def wire_messages(chat: Chat) -> list[dict[str, Any]]:
    """A chat without its last reply as OpenAI messages, pictures as PNG data URLs."""
    scenes = chat.scenes
    messages = chat.messages(last_reply=False)
    for message in messages:
        if isinstance(message["content"], list):
            message["content"] = [_wire_part(part, scenes) for part in message["content"]]
    return messages


def _wire_part(part: dict[str, Any], scenes: Sequence[Any]) -> dict[str, Any]:
    if part["type"] != "image":
        return part
    return {"type": "image_url", "image_url": {"url": data_url(render(scenes[part["image"]]))}}


def data_url(picture: np.ndarray[Any, np.dtype[np.uint8]]) -> str:
    """A picture as a PNG data URL."""
    held = io.BytesIO()
    Image.fromarray(picture).save(held, "PNG")
    return f"data:image/png;base64,{base64.b64encode(held.getvalue()).decode()}"


async def ask_all(
    answer: Answer,
    groups: Sequence[Group],
    count: int,
    seed: int,
    *,
    at_once: int = 8,
    say: Callable[[str], None] = lambda _: None,
) -> list[Asked]:
    """Ask `count` questions of each group, `at_once` at a time."""
    asked: list[Asked] = []

    async def one(group: Group, kind: str, chat: Chat, room: asyncio.Semaphore) -> Asked:
        async with room:
            return Asked(group.name, kind, chat.turns[-1].reply, await answer(wire_messages(chat)))

    for group in groups:
        room = asyncio.Semaphore(at_once)
        done = await asyncio.gather(*(one(group, kind, chat, room) for kind, chat in questions(group, count, seed)))
        asked += done
        say(f"{group.name}: {score(done).accuracy:.3f} of {count}")
    return asked


def score(asked: Sequence[Asked]) -> Score:
    """The share that is right.

    Raises:
        ValueError: nothing was asked.
    """
    if not asked:
        raise ValueError("nothing was asked")
    expected = Counter(one.expected for one in asked)
    right = sum(one.right for one in asked)
    guess = sum(KINDS[one.kind].chance for one in asked) / len(asked)
    return Score(len(asked), right / len(asked), max(guess, expected.most_common(1)[0][1] / len(asked)))


def summary(asked: Sequence[Asked]) -> dict[str, Any]:
    """Scores by group and by kind, and the kinds that serve as yardsticks."""
    groups = {name: _plain(score([one for one in asked if one.group == name])) for name in _names(asked, "group")}
    kinds = {name: _plain(score([one for one in asked if one.kind == name])) for name in _names(asked, "kind")}
    yardsticks = [name for name, figures in kinds.items() if figures["accuracy"] >= YARDSTICK]
    return {"groups": groups, "kinds": kinds, "yardsticks": yardsticks}


def _names(asked: Sequence[Asked], field: str) -> list[str]:
    return list(dict.fromkeys(getattr(one, field) for one in asked))


def _plain(figures: Score) -> dict[str, float]:
    return {"questions": figures.questions, "accuracy": round(figures.accuracy, 4), "chance": round(figures.chance, 3)}


def weights_digest(folder: Path) -> str:
    """SHA-256 of a checkpoint's weights in hex: figures are of these and of no others."""
    return sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def answer_over_http(base_url: str, model: str) -> Answer:
    """Ask an OpenAI-compatible server, greedily. Asking raises EngineUnavailable where it does not answer."""
    import aiohttp

    async def answer(messages: list[dict[str, Any]]) -> str:
        body = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 12}
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.post(f"{base_url}/chat/completions", json=body) as reply,
            ):
                status, got = reply.status, json.loads(await reply.read())
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise EngineUnavailable(f"There is no chat server at {base_url}.") from error
        if status != 200:
            raise EngineUnavailable(f"The server refused a question with status {status}.")
        return str(got["choices"][0]["message"]["content"])

    return answer


def answer_with_transformers(folder: str) -> Answer:
    """Ask the checkpoint in a folder through transformers, greedily, one question at a time."""
    from engine import torchvision_ops

    torchvision_ops.declare_missing()
    import torch
    from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration

    processor: Any = AutoProcessor.from_pretrained(folder)
    model: Any = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder, dtype=torch.bfloat16)

    async def answer(messages: list[dict[str, Any]]) -> str:
        pictures: list[Image.Image] = []
        for message in messages:
            for part in message["content"] if isinstance(message["content"], list) else ():
                if part["type"] == "image_url":
                    data = base64.b64decode(part["image_url"]["url"].partition(",")[2])
                    pictures.append(Image.open(io.BytesIO(data)))
        text = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        inputs = processor(text=[text], images=pictures or None, return_tensors="pt")
        with torch.inference_mode():
            made = model.generate(**inputs, do_sample=False, max_new_tokens=12)
        return str(processor.decode(made[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))

    return answer


def main(arguments: list[str] | None = None) -> None:
    """Command line of the module."""
    parser = argparse.ArgumentParser(prog="python -m engine.demo_model.evaluate", description=__doc__)
    parser.add_argument("--url", help="base URL of a server that has the model, such as http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="demo", help="the model's name there; default: demo")
    parser.add_argument(
        "--folder", help="a checkpoint's folder, asked through transformers; with --url, both are compared"
    )
    parser.add_argument("--questions", type=_positive, default=500, help="questions of each group; default: 500")
    parser.add_argument(
        "--compare", type=_positive, default=46, help="questions of each group asked of both; default: 46, 506 in all"
    )
    parser.add_argument("--seed", type=_positive, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the scores there")
    options = parser.parse_args(arguments)
    if not options.url and not options.folder:
        parser.error("give --url, --folder or both")
    try:
        if options.json:
            options.json.touch()
        asked = asyncio.run(_evaluate(options))
        if options.json:
            options.json.write_text(json.dumps(asked, indent=2) + "\n")
    except OSError as error:
        sys.exit(f"{options.json} cannot be written ({error.strerror})")
    except EngineError as error:
        sys.exit(error.message)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("takes a whole number from 1 up")
    return int(text)


async def _evaluate(options: argparse.Namespace) -> dict[str, Any]:
    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    async def run(answer: Answer, count: int, at_once: int) -> list[Asked]:
        return await ask_all(answer, GROUPS, count, options.seed, at_once=at_once, say=say)

    count = options.questions
    served = await run(answer_over_http(options.url, options.model), count, 8) if options.url else []
    compared = min(count, options.compare) if served else count
    local = await run(answer_with_transformers(options.folder), compared, 1) if options.folder else []
    found = summary(served or local)
    if served and local:
        # The first questions of a group are the same, however many there are.
        first = [one for at, one in enumerate(served) if at % count < compared]
        pairs = list(zip(first, local, strict=True))
        found["agreement"] = round(sum(a.answered == b.answered for a, b in pairs) / len(pairs), 4)
        found["compared"] = len(pairs)
        say(f"The server and transformers agree on {found['agreement']:.4f} of {len(pairs)} answers.")
    if options.folder:
        found["weights_sha256"] = weights_digest(Path(options.folder))
    for name, figures in found["kinds"].items():
        say(f"{name:18} {figures['accuracy']:.3f} of {figures['questions']}, by chance {figures['chance']:.2f}")
    say(f"Yardsticks: {', '.join(found['yardsticks']) or 'none'}")
    return found


if __name__ == "__main__":
    main()
