"""What each method takes and computes for a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from context.errors import ConfigError
from engine.reference import selection
from engine.reference.profile import ReuseProfile
from engine.reference.qwen2_5_vl import Model, Shape
from engine.reference.reuse import Choose, KeysValues
from engine.reference.selection import AttentionDeviation, KvDeviation, Layout
from engine.vllm.image_kv.rotation import RopeTable
from metrics.eval import base
from metrics.eval.base import Cell
from metrics.eval.cases import Case
from metrics.eval.held import Context, common_prefix, place, with_prefix

_CHOICES = {base.KV_DEVIATION: KvDeviation, base.ATTENTION_DEVIATION: AttentionDeviation}


@dataclass(frozen=True, slots=True)
class Variant:
    """One cell for one prompt: what it takes, which rows it computes, and the share of the images' rows that is."""

    cell: Cell
    held: KeysValues
    rows: tuple[Tensor, ...]
    choose: Choose | None
    image_share: float
    token_share: float

    @property
    def batch(self) -> tuple[object, ...]:
        """Equal for those that can go together."""
        return (self.choose, *(layer.shape[1] for layer in self.rows))

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal for those of one case that come to the same."""
        return (id(self.held), self.choose, *(layer.numpy().tobytes() for layer in self.rows))


@dataclass(frozen=True, slots=True)
class Setting:
    """What variants are made with: the model, its rotary table, the ratios of layers, and the seed of `random`."""

    model: Model
    table: RopeTable
    profile: ReuseProfile | None
    seed: int


class Maker:
    """Makes the variants of one case. `reply` tokens follow the prompt, whose logits are looked at."""

    def __init__(self, setting: Setting, case: Case, contexts: Mapping[str, Sequence[Context]], reply: int) -> None:
        self._setting, self._case, self._contexts = setting, case, contexts
        self.layout = Layout(len(case.prompt.ids) + reply, case.prompt.images, reply)
        self._held: dict[tuple[str, bool], KeysValues] = {}

    def make(self, cell: Cell) -> Variant | None:
        """The variant of a cell; None where the method is not possible within the budget."""
        if cell.method == base.PREFIX:
            return self._prefix(cell)
        assert cell.ratio is not None
        ratio, layout, layers = cell.ratio, self.layout, self._shape.layers
        name = cell.method.removesuffix(base.WITHIN)
        if name in _CHOICES:
            return self._chosen(cell, name, ratio)
        if cell.method == base.PER_LAYER:
            rows = selection.by_layer(layout, ratio, self._ratios(ratio))
        elif cell.method == base.SUFFIX:
            rows = selection.suffix(layout, ratio, layers)
        elif cell.method == base.RANDOM:
            rows = selection.scattered(layout, ratio, layers, self._setting.seed * 1_000_003 + self._case.number)
        else:
            rows = selection.head(layout, ratio, layers)
        images = sum(int(layout.is_image[layer[0]].sum()) for layer in rows) / (layers * layout.image_tokens)
        return self._variant(cell, rows, None, images)

    @property
    def _shape(self) -> Shape:
        return self._setting.model.shape

    def _ratios(self, budget: float) -> tuple[float, ...]:
        if self._setting.profile is None:
            raise ConfigError("flag", "--profile", f"the method {base.PER_LAYER} needs one")
        return self._setting.profile.ratios(budget)

    def _chosen(self, cell: Cell, name: str, ratio: float) -> Variant | None:
        rows: int | None = sum(self.layout.computed(ratio))
        if cell.method.endswith(base.WITHIN):
            rows = selection.rows_within(self._shape, self.layout, ratio)
        if rows is None:
            return None
        every = selection.every_row(self.layout, self._shape.layers)
        share = selection.share(self._shape, self.layout, rows)
        return self._variant(cell, every, _CHOICES[name](self.layout, rows), share)

    def _variant(self, cell: Cell, rows: Sequence[Tensor], choose: Choose | None, image_share: float) -> Variant:
        held = self._place(str(cell.donor), rotated=cell.method != base.NO_ROTATION)
        images, tokens = self.layout.image_tokens, len(self._case.prompt.ids)
        token_share = (tokens - images * (1 - image_share)) / tokens
        return Variant(cell, held, tuple(rows), choose, image_share, token_share)

    def _place(self, donor: str, *, rotated: bool) -> KeysValues:
        if (donor, rotated) not in self._held:
            table = self._setting.table if rotated else None
            self._held[donor, rotated] = place(self._case.prompt, self.layout.tokens, self._contexts[donor], table)
        return self._held[donor, rotated]

    def _prefix(self, cell: Cell) -> Variant:
        prompt, contexts = self._case.prompt, self._contexts[str(cell.donor)]
        found = [common_prefix(prompt, context.prompt) for context in contexts]
        best = max(range(len(found)), key=found.__getitem__)
        # The last token's logits are what is asked for.
        prefix = min(found[best], len(prompt.ids) - 1)
        held = with_prefix(prefix, self.layout.tokens, contexts[best].cache)
        rows = selection.rows_from(self.layout, prefix, self._shape.layers)
        images = int(self.layout.is_image[prefix:].sum()) / self.layout.image_tokens
        return Variant(cell, held, tuple(rows), None, images, 1 - prefix / len(prompt.ids))
