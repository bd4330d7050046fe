"""One question under all variants: how far the first logits move, and what is answered.

The reply that full recompute gives is laid behind the prompt, so that one pass gives the logits of all its tokens. A
variant whose most likely tokens are that reply writes it; one that departs from it writes on its own from the prompt's
end.
"""

# torch leaves much of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import torch
from tokenizers import Tokenizer
from torch import Tensor

from engine.demo_model.questions import is_right
from engine.reference.qwen2_5_vl import Model
from engine.reference.reuse import KeysValues, Prefill, continue_greedily, exact, reuse
from metrics.eval import base
from metrics.eval.base import Cell, Outcome
from metrics.eval.cases import Case, Prompt
from metrics.eval.held import Context, prefill_context
from metrics.eval.variants import Maker, Setting, Variant

MOST_REPLY_TOKENS = 12


@dataclass(frozen=True, slots=True)
class Full:
    """Full recompute of a question: the prompt with its reply but for the last token, and the reply's logits."""

    prompt: Prompt
    x: Tensor
    features: Sequence[Tensor]
    reply: tuple[int, ...]
    logits: Tensor
    cache: KeysValues


class Answers:
    """Answers questions under variants. `end` is the token that ends a reply."""

    def __init__(self, setting: Setting, tokenizer: Tokenizer, end: int) -> None:
        self._setting, self._tokenizer, self._end = setting, tokenizer, end

    def of(self, case: Case, cells: Iterable[Cell]) -> dict[Cell, Outcome]:
        """What each cell comes to; a cell that is not possible within its budget is missing."""
        full = full_recompute(self._setting.model, case, self._end)
        cells = list(cells)
        contexts = contexts_of(self._setting.model, case, full, {str(cell.donor) for cell in cells if cell.donor})
        maker = Maker(self._setting, case, contexts, len(full.reply) - 1)
        made = [variant for cell in cells if cell.method != base.FULL and (variant := maker.make(cell))]
        outcomes = {Cell(base.FULL): self._full(case, full)}
        # Without a row of the images, or with all of them, many methods are one.
        alike: dict[tuple[object, ...], list[Variant]] = {}
        for variant in made:
            alike.setdefault(variant.identity, []).append(variant)
        for batch in _batches([variants[0] for variants in alike.values()]):
            result = run(self._setting.model, full, batch)
            for first, outcome in zip(batch, self._judge(case, full, batch, result), strict=True):
                outcomes |= {variant.cell: outcome for variant in alike[first.identity]}
        return {cell: outcomes[cell] for cell in cells if cell in outcomes}

    def _full(self, case: Case, full: Full) -> Outcome:
        right, tokens = self._is_right(case, full.reply), len(full.reply)
        images = sum(end - first for first, end in case.prompt.images)
        return Outcome(case.number, case.hop, 0.0, 0.0, 0.0, True, tokens, tokens, right, 1.0, 1.0, images)

    def _judge(self, case: Case, full: Full, batch: Sequence[Variant], result: Prefill) -> list[Outcome]:
        exact_log, log = full.logits.log_softmax(-1), result.logits.log_softmax(-1)
        kl = (exact_log.exp() * (exact_log - log)).sum(-1).clamp_min(0)
        mse = (result.logits[:, 0] - full.logits[0]).square().mean(-1)
        written: list[Sequence[int]] = [row.tolist() for row in result.logits.argmax(-1)]
        matches = [_matching(reply, full.reply) for reply in written]
        departed = [at for at, match in enumerate(matches) if match < len(full.reply)]
        for at, reply in zip(departed, self._write(case, result, departed), strict=True):
            written[at] = reply
        plain = self._full(case, full)
        return [
            replace(
                plain,
                logit_mse=float(mse[at]),
                kl=float(kl[at, 0]),
                reply_kl=float(kl[at].mean()),
                top1=matches[at] > 0,
                match_tokens=matches[at],
                right=self._is_right(case, written[at]),
                image_share=variant.image_share,
                token_share=variant.token_share,
            )
            for at, variant in enumerate(batch)
        ]

    def _write(self, case: Case, result: Prefill, variants: Sequence[int]) -> list[list[int]]:
        if not variants:
            return []
        cache = result.cache.of(torch.tensor(variants)).upto(len(case.prompt.ids))
        first = result.logits[list(variants), 0].argmax(-1)
        position = int(case.prompt.positions[0, -1]) + 1
        return continue_greedily(self._setting.model, cache, first, position, self._end, MOST_REPLY_TOKENS)

    def _is_right(self, case: Case, reply: Sequence[int]) -> bool:
        return is_right(self._tokenizer.decode(list(reply), skip_special_tokens=True), case.expected)


def full_recompute(model: Model, case: Case, end: int) -> Full:
    """What full recompute answers, greedily. The right answer is laid behind the prompt first: mostly it is given."""
    features = case.features(model)
    x = case.prompt.embedded(model, features)
    asked = _with_reply(model, case.prompt, x, features, case.reply)
    written = [int(token) for token in asked.logits.argmax(-1)]
    if _matching(written, case.reply) == len(case.reply):
        return asked
    cache, position = asked.cache.upto(len(case.prompt.ids)), int(case.prompt.positions[0, -1]) + 1
    reply = continue_greedily(model, cache, asked.logits[:1].argmax(-1), position, end, MOST_REPLY_TOKENS)[0]
    return _with_reply(model, case.prompt, x, features, reply)


def contexts_of(model: Model, case: Case, full: Full, donors: Iterable[str]) -> dict[str, list[Context]]:
    """The donors' contexts, prefilled."""
    made = {donor: list[Context]() for donor in donors}
    for donor, contexts in made.items():
        if donor == "same":
            contexts.append(Context(case.prompt, full.cache.upto(len(case.prompt.ids))))
        else:
            contexts += [prefill_context(model, prompt, full.features) for prompt in case.donors[donor]]
    return made


def run(model: Model, full: Full, batch: Sequence[Variant]) -> Prefill:
    """Prefill of variants that can go together; logits of the reply's tokens."""
    held = KeysValues(
        torch.cat([variant.held.keys for variant in batch], 1), torch.cat([variant.held.values for variant in batch], 1)
    )
    rows = [torch.cat(layer) for layer in zip(*(variant.rows for variant in batch), strict=True)]
    return reuse(model, full.x, full.prompt.positions, held, rows, batch[0].choose, len(full.reply))


def _with_reply(model: Model, prompt: Prompt, x: Tensor, features: Sequence[Tensor], reply: Sequence[int]) -> Full:
    tail = torch.tensor(reply[:-1], dtype=torch.long)
    places = prompt.positions[:, -1:] + 1 + torch.arange(len(tail))
    whole = Prompt(
        torch.cat((prompt.ids, tail)), torch.cat((prompt.positions, places), 1), prompt.images, prompt.pictures
    )
    x = torch.cat((x, model.embed(tail)))
    result = exact(model, x, whole.positions, len(reply))
    return Full(whole, x, features, tuple(reply), result.logits[0], result.cache)


def _matching(written: Sequence[int], reply: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(written, reply, strict=False)))


def _batches(variants: Sequence[Variant]) -> list[list[Variant]]:
    groups: dict[tuple[object, ...], list[Variant]] = {}
    for variant in variants:
        groups.setdefault(variant.batch, []).append(variant)
    return list(groups.values())
