"""Chats as tensors: token ids, M-RoPE positions, patches, and what the loss needs."""

# torch leaves much of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from engine.demo_model.chats import Chat
from engine.demo_model.questions import WHOLE, Question
from engine.demo_model.scenes import BACKGROUNDS, CLASSES, OBJECT_COLOURS, PATCH, Scene, render

_MEAN = np.array([0.48145466, 0.4578275, 0.40821073], np.float32) * 255
_STD = np.array([0.26862954, 0.26130258, 0.27577711], np.float32) * 255
_COLOURS, _GROUNDS = list(OBJECT_COLOURS), list(BACKGROUNDS)
_QUARTERS = ["top left", "top right", "bottom left", "bottom right"]
IGNORE = -100
# How many there are is not said by any one of them: to look at things alone tells one from four by nothing.
_UNSEEN = "count"


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of chats, padded at their ends.

    Attributes:
        ids: (batch, tokens). positions: (3, batch, tokens).
        scenes: every picture, in the order of its tokens in the flattened batch.
        image_at: (image tokens,) indices into the flattened batch.
        image_number: (image tokens,) which picture of its chat a token belongs to.
        asked_at: (questions,) flat indices of the positions that begin an answer about one picture.
        asked_number: (questions,) which one it is about.
        answer_at: (answer tokens,) flat indices of the positions that predict an answer's tokens.
        answers: (answer tokens,) the tokens to predict.
        answer_of: (answer tokens,) index into `kinds`.
        kinds: the kind of each question in the batch; empty for replies that answer none.
        looks_from: (looks, 2) row and token of the positions that predict an answer's tokens, but for its end.
        looks_at: (looks, tokens) whether a token of that row shows what is asked for.
    """

    ids: Tensor
    positions: Tensor
    scenes: tuple[Scene, ...]
    image_at: Tensor
    image_number: Tensor
    asked_at: Tensor
    asked_number: Tensor
    answer_at: Tensor
    answers: Tensor
    answer_of: Tensor
    kinds: tuple[str, ...]
    looks_from: Tensor
    looks_at: Tensor


@dataclass(frozen=True, slots=True)
class Encoded:
    """One chat as tokens. `spans` are (question, first, end) of each reply's tokens with its end marker."""

    ids: list[int]
    positions: NDArray[np.int64]
    images: list[tuple[int, int]]
    spans: list[tuple[Question | None, int, int]]
    scenes: tuple[Scene, ...]


class Encoder:
    """Turns chats into tokens as the chat template and the engine's processor do."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        ids = tokenizer.get_vocab()
        self.pad, self.end, self.image = (ids[token] for token in ("<|endoftext|>", "<|im_end|>", "<|image_pad|>"))
        self._reply = tokenizer.encode("<|im_start|>assistant\n").ids

    def encode(self, chat: Chat) -> Encoded:
        """Tokens of a chat with its replies."""
        scenes = chat.scenes
        ids: list[int] = self._tokenizer.encode(render_chat(chat)).ids
        spans: list[tuple[Question | None, int, int]] = []
        turn, at = 0, 0
        while at < len(ids):
            if ids[at : at + len(self._reply)] == self._reply:
                first = at + len(self._reply)
                end = ids.index(self.end, first) + 1
                spans.append((chat.turns[turn].question, first, end))
                turn, at = turn + 1, end
            else:
                at += 1
        positions = np.empty((3, len(ids)), np.int64)
        images: list[tuple[int, int]] = []
        position, at = 0, 0
        while at < len(ids):
            if ids[at] == self.image:
                scene = scenes[len(images)]
                rows, columns = scene.height // PATCH, scene.width // PATCH
                end = at + rows * columns
                positions[0, at:end] = position
                positions[1, at:end] = position + np.repeat(np.arange(rows), columns)
                positions[2, at:end] = position + np.tile(np.arange(columns), rows)
                images.append((at, end))
                position, at = position + max(rows, columns), end
            else:
                positions[:, at] = position
                position, at = position + 1, at + 1
        return Encoded(ids, positions, images, spans, scenes)

    def word(self, word: str) -> list[int]:
        """Tokens that are a word, at the start of a line and after a space; none if it is several tokens."""
        forms = [self._tokenizer.encode(form).ids for form in (word, f" {word}")]
        return [ids[0] for ids in forms if len(ids) == 1]

    def batch(self, chats: Sequence[Encoded]) -> Batch:
        """Pad and join."""
        length = max(len(chat.ids) for chat in chats)
        ids = np.full((len(chats), length), self.pad, np.int64)
        positions = np.zeros((3, len(chats), length), np.int64)
        image_at: list[NDArray[np.int64]] = []
        numbers: list[NDArray[np.int64]] = []
        answer_at: list[int] = []
        answer_of: list[int] = []
        answers: list[int] = []
        kinds: list[str] = []
        asked: list[tuple[int, int]] = []
        looks_from: list[tuple[int, int]] = []
        looks_at: list[NDArray[np.bool_]] = []
        for row, chat in enumerate(chats):
            ids[row, : len(chat.ids)] = chat.ids
            positions[:, row, : len(chat.ids)] = chat.positions
            for number, (first, end) in enumerate(chat.images):
                image_at.append(np.arange(first, end) + row * length)
                numbers.append(np.full(end - first, number))
            for question, first, end in chat.spans:
                answer_at += [row * length + at - 1 for at in range(first, end)]
                answers += chat.ids[first:end]
                answer_of += [len(kinds)] * (end - first)
                kinds.append(question.kind if question else "")
                if question and len(question.images) == 1:
                    asked.append((row * length + first - 1, question.images[0]))
                if question and question.looks_at and question.kind != _UNSEEN:
                    seen = _looked_at(chat, question, length)
                    # Each word of an answer has to be seen, the end marker has not.
                    looks_from += [(row, at - 1) for at in range(first, end - 1)]
                    looks_at += [seen] * (end - 1 - first)
        return Batch(
            torch.from_numpy(ids),
            torch.from_numpy(positions),
            tuple(scene for chat in chats for scene in chat.scenes),
            torch.from_numpy(np.concatenate(image_at)),
            torch.from_numpy(np.concatenate(numbers)),
            torch.tensor([at for at, _ in asked], dtype=torch.long),
            torch.tensor([number for _, number in asked], dtype=torch.long),
            torch.tensor(answer_at),
            torch.tensor(answers),
            torch.tensor(answer_of),
            tuple(kinds),
            torch.tensor(looks_from, dtype=torch.long).view(-1, 2),
            torch.from_numpy(np.array(looks_at, np.bool_).reshape(-1, length)),
        )


def _looked_at(chat: Encoded, question: Question, length: int) -> NDArray[np.bool_]:
    made = np.zeros(length, np.bool_)
    for image, thing in question.looks_at:
        first, end = chat.images[image]
        if thing == WHOLE:
            made[first:end] = True
        else:
            found = chat.scenes[image].things[thing]
            made[first + found.y // PATCH * (chat.scenes[image].width // PATCH) + found.x // PATCH] = True
    return made


def render_chat(chat: Chat) -> str:
    """The chat as the template renders it, with as many image tokens as each picture has."""
    scenes = chat.scenes
    text: list[str] = []
    for message in chat.messages():
        content = message["content"]
        parts: list[dict[str, Any]] = [{"type": "text", "text": content}] if isinstance(content, str) else content
        text.append(f"<|im_start|>{message['role']}\n")
        for part in parts:
            if part["type"] == "text":
                text.append(part["text"])
            else:
                scene = scenes[part["image"]]
                amount = scene.width * scene.height // PATCH**2
                text.append(f"<|vision_start|>{'<|image_pad|>' * amount}<|vision_end|>")
        text.append("<|im_end|>\n")
    return "".join(text)


def patches_of(picture: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Normalized patches of a picture in the processor's order of 2x2 groups: (patches, 588), one frame."""
    rows, columns = picture.shape[0] // PATCH, picture.shape[1] // PATCH
    pixels = (picture.astype(np.float32) - _MEAN) / _STD
    grid = pixels.reshape(rows, 2, 14, columns, 2, 14, 3).transpose(0, 3, 1, 4, 6, 2, 5)
    return np.ascontiguousarray(grid.reshape(rows * columns * 4, 588))


def image_groups(scenes: Sequence[Scene], most_patches: int) -> list[list[int]]:
    """Indices of pictures in groups of alike size, each at most `most_patches` when padded to its longest."""
    order = sorted(range(len(scenes)), key=lambda n: scenes[n].width * scenes[n].height)
    groups: list[list[int]] = [[]]
    for number in order:
        size = scenes[number].width * scenes[number].height // 196
        if groups[-1] and (len(groups[-1]) + 1) * size > most_patches:
            groups.append([])
        groups[-1].append(number)
    return groups


def join_patches(scenes: Sequence[Scene]) -> tuple[Tensor, list[tuple[int, int]]]:
    """Patches of some pictures behind each other, and their grids in patches."""
    parts = [patches_of(render(scene)) for scene in scenes]
    return torch.from_numpy(np.concatenate(parts)), [(scene.height // 14, scene.width // 14) for scene in scenes]


def cell_targets(scene: Scene) -> NDArray[np.int64]:
    """What each image token should know: (tokens, 4) thing, colour, quarter (0 is none), and the background."""
    rows, columns = scene.height // PATCH, scene.width // PATCH
    targets = np.zeros((rows, columns, 4), np.int64)
    targets[..., 3] = _GROUNDS.index(scene.background)
    for thing in scene.things:
        cell = targets[thing.y // PATCH, thing.x // PATCH]
        cell[0] = 1 + CLASSES.index(thing.name)
        cell[1] = 1 + _COLOURS.index(thing.colour)
        cell[2] = 1 + _QUARTERS.index(scene.where(thing))
    return targets.reshape(rows * columns, 4)


TARGET_WORDS = (CLASSES, _COLOURS, _QUARTERS, _GROUNDS)
TARGET_SIZES = (1 + len(CLASSES), 1 + len(_COLOURS), 1 + len(_QUARTERS), len(_GROUNDS))
