"""Questions with their prompts, and the contexts that the KV of their images comes from.

Every question is about two to four pictures, so that each donor is another context for all of them but `same`:

    same          the prompt itself
    text_moved    the same pictures in order; what stood before them stands after them, and the other way round
    other_images  for each picture the same chat with other pictures before it: it is still the first, second, ... one
    describe      each picture alone, after a request to describe it: each is the first one
    reordered     the same chat, its pictures moved on by one place: each is another one than before
"""

# torch leaves much of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.demo_model.chats import Chat, Turn, rng_for
from engine.demo_model.evaluate import Group, questions
from engine.demo_model.questions import KINDS, MULTI_HOP, SINGLE_HOP
from engine.demo_model.scenes import Scene, SceneLimits, Split, draw_scene
from engine.demo_model.training.batches import Encoder, join_patches
from engine.reference.qwen2_5_vl import Model
from metrics.eval.base import Hop

_GROUPS = (Group("reuse, single-hop", SINGLE_HOP, (2, 4)), Group("reuse, multi-hop", MULTI_HOP, (2, 4)))
# Keeps what is drawn for it apart from the questions.
_OTHERS = 5
# So that moving the text moves it also where a chat has none but its question.
_OTHER_TEXT = (
    "We looked at many of these before, and this is the last batch of the day.",
    "Take your time.",
    "The next pictures are from the same folder as those of last week; there is nothing else to know about them.",
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt up to where the reply begins.

    `ids` [tokens]; `positions` [3, tokens]; `images` are the spans of its pictures and `pictures` their numbers. `chat`
    is what it was made of, whole; None for a part of a prompt.
    """

    ids: Tensor
    positions: Tensor
    images: tuple[tuple[int, int], ...]
    pictures: tuple[int, ...]
    chat: Chat | None = None

    def embedded(self, model: Model, features: Sequence[Tensor]) -> Tensor:
        """[tokens, hidden]. `features` are those of all pictures of the case, by number."""
        x = model.embed(self.ids)
        for (first, end), picture in zip(self.images, self.pictures, strict=True):
            x[first:end] = features[picture]
        return x


@dataclass(frozen=True, slots=True)
class Case:
    """One question. `reply` are the tokens of the right answer with its end; `donors` the contexts by donor.

    `scenes` are the question's pictures, and behind them others that only donors show.
    """

    number: int
    hop: Hop
    kind: str
    expected: str
    prompt: Prompt
    reply: tuple[int, ...]
    scenes: tuple[Scene, ...]
    donors: Mapping[str, tuple[Prompt, ...]]

    def features(self, model: Model) -> list[Tensor]:
        """What the vision tower makes of each picture: [tokens, hidden] each."""
        made = model.vision(*join_patches(self.scenes))
        return list(made.split([scene.tokens for scene in self.scenes]))


def draw_cases(encoder: Encoder, count: int, seeds: Sequence[int], split: Split = "test") -> Iterator[Case]:
    """`count` questions of each hop for each seed, single and multi-hop in turn. The same seeds give the same ones."""
    number = 0
    for seed in seeds:
        draws = [questions(group, count, seed, split) for group in _GROUPS]
        for pair in zip(*draws, strict=True):
            for kind, chat in pair:
                rng = rng_for(split, seed, _OTHERS, number)
                others = tuple(draw_scene(rng, split, SceneLimits()) for _ in chat.scenes[1:])
                yield _case(encoder, number, kind, chat, others)
                number += 1


def _case(encoder: Encoder, number: int, kind: str, chat: Chat, others: tuple[Scene, ...]) -> Case:
    encoded = encoder.encode(chat)
    _, first, end = encoded.spans[-1]
    every = tuple(range(len(chat.scenes)))
    prompt = _prompt(encoder, chat, every, first)
    moved = (*every[1:], every[0])
    donors = {
        "same": (prompt,),
        "text_moved": (_prompt(encoder, _text_moved(chat, number), every),),
        "other_images": tuple(_behind_others(encoder, chat, others, at) for at in every),
        "describe": tuple(_prompt(encoder, _described(chat.scenes[at]), (at,)) for at in every),
        "reordered": (_prompt(encoder, _showing(chat, [chat.scenes[at] for at in moved]), moved),),
    }
    hop: Hop = "multi_hop" if KINDS[kind].multi_hop else "single_hop"
    reply = tuple(encoded.ids[first:end])
    return Case(number, hop, kind, chat.turns[-1].reply, prompt, reply, (*chat.scenes, *others), donors)


def _prompt(encoder: Encoder, chat: Chat, pictures: tuple[int, ...], tokens: int | None = None) -> Prompt:
    encoded = encoder.encode(chat)
    return Prompt(
        torch.tensor(encoded.ids[:tokens]),
        torch.from_numpy(encoded.positions[:, :tokens]),
        tuple(encoded.images),
        pictures,
        chat,
    )


def _described(scene: Scene) -> Chat:
    return Chat("", (Turn("Describe the picture.", (scene,), False, "Take your time.", None, "Okay."),))


def _text_moved(chat: Chat, number: int) -> Chat:
    with_images = [at for at, turn in enumerate(chat.turns) if turn.images]
    start = chat.turns[: with_images[0]]
    before = [chat.system, *(turn.after for turn in start), chat.turns[with_images[0]].before]
    # The last question is what the new context asks; the donor's did not.
    after = [text for turn in chat.turns[with_images[0] : -1] for text in (turn.after, turn.reply)]
    first = " ".join([_OTHER_TEXT[number % len(_OTHER_TEXT)], *after])
    second = " ".join([text for text in before if text] or ["Okay."])
    turn = Turn(first, chat.scenes, chat.turns[with_images[0]].labelled, second, None, "Okay.")
    return Chat("", (turn,))


def _behind_others(encoder: Encoder, chat: Chat, others: Sequence[Scene], at: int) -> Prompt:
    count = len(chat.scenes)
    whole = _prompt(
        encoder, _showing(chat, [*others[:at], *chat.scenes[at:]]), (*range(count, count + at), *range(at, count))
    )
    # The pictures after it have a context of their own.
    return replace(whole, images=whole.images[: at + 1], pictures=whole.pictures[: at + 1])


def _showing(chat: Chat, scenes: Sequence[Scene]) -> Chat:
    """The same chat about other pictures."""
    shown = iter(scenes)
    turns = [replace(turn, images=tuple(next(shown) for _ in turn.images)) for turn in chat.turns]
    return Chat(chat.system, tuple(turns))
