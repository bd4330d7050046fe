"""How prompt tokens are estimated: which vocabulary, which rule for images, one estimator for each model."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

from app.model import resolve_model
from app.settings import Settings
from context.errors import ConfigError, place_of
from context.images.memo import Lru
from context.tokens import families, folder, vocabulary
from context.tokens.estimator import Estimator
from context.tokens.texts import TextCounter
from context.tokens.visual import Fixed, VisualRule
from context.tokens.vocabulary import Vocabulary
from context.transcript import ImagePart, parts_of

_log = logging.getLogger(__name__)
# Of an upstream, whose models clients name as they like.
_MODELS = 64
# No model that is much in use makes fewer of a screenshot.
_LEAST_IMAGE_TOKENS = 64
_ROUGH = Vocabulary(lambda text: math.ceil(len(text.encode("utf-8", "surrogatepass")) / 4))


class Estimators:
    """The estimators of one gateway, by model name: made when first asked for; the least recently used go first.

    A tenant's prompts calibrate the figures that all tenants of that model get; no text is kept for it.
    """

    def __init__(self, counts: Vocabulary, rule: VisualRule | None, unknown: VisualRule) -> None:
        """`rule` holds for every model; without one the model's name decides, and `unknown` where it says nothing."""
        self._texts = TextCounter(counts)
        self._rule, self._unknown = rule, unknown
        self._known: Lru[str, Estimator] = Lru(_MODELS)

    def of(self, model: str) -> Estimator:
        """The estimator of a model, by the name that clients use."""
        known = self._known.get(model)
        if known is None:
            known = Estimator(self._texts, self._rule or families.by_name(model) or self._unknown)
            self._known.put(model, known)
        return known

    def uncorrected(self, model: str, wire: Mapping[str, Any]) -> tuple[int, int]:
        """Text and visual tokens of a message, whatever engines have reported; of a model whose rule for images is not
        known, what an image takes at least."""
        text, visual = self.of(model).uncorrected(wire)
        if visual and self._rule is None and families.by_name(model) is None:
            images = sum(isinstance(part, ImagePart) for part in parts_of(wire))
            visual = min(visual, _LEAST_IMAGE_TOKENS * images)
        return text, visual


def rough(settings: Settings) -> Estimators:
    """Estimators without a vocabulary: four bytes a token. For the moment until `load` is done."""
    return Estimators(_ROUGH, _told(settings), Fixed(settings.estimates.image_tokens))


def load(settings: Settings, kind: Literal["vllm", "remote", "fake"]) -> Estimators:
    """Estimators for an engine: its own tokenizer and image settings where it is embedded, else what is shipped.

    Takes up to some seconds; call it off the event loop.
    """
    own, rule = None, _told(settings)
    if kind == "vllm" and (found := _model_folder(settings)) is not None:
        files, options = found
        own = folder.of_folder(files)
        rule = rule or families.of_folder(files, options)
    counts = own or _shipped()
    return Estimators(counts, rule, Fixed(settings.estimates.image_tokens))


def visual_rule(
    settings: Settings, kind: Literal["vllm", "remote", "fake"], models: Sequence[str]
) -> VisualRule | None:
    """How many tokens an image is to an engine that serves these models; None where nothing says it."""
    own = _model_folder(settings) if kind == "vllm" else None
    known = _told(settings) or (own and families.of_folder(*own))
    return known or next((rule for name in models if (rule := families.by_name(name)) is not None), None)


def _told(settings: Settings) -> VisualRule | None:
    family = settings.estimates.visual_family
    if family == "fixed":
        return Fixed(settings.estimates.image_tokens)
    return families.RULES.get(family)


def _shipped() -> Vocabulary:
    try:
        return vocabulary.shipped()
    except Exception as error:
        # A file that is not whole. Estimates alone suffer.
        _log.error("the vocabulary for estimates cannot be read; four bytes count as a token: %s", place_of(error))
        return _ROUGH


def _model_folder(settings: Settings) -> tuple[Path, dict[str, Any]] | None:
    """Where the embedded engine's model lies, and what its image processor is told; None where it is not here yet."""
    try:
        model, options = resolve_model(settings)
    except ConfigError:
        return None
    told: Any = options.get("mm-processor-kwargs", options.get("mm_processor_kwargs"))
    given = cast("dict[str, Any]", told) if isinstance(told, dict) else {}
    if Path(model).is_dir():
        return Path(model), given
    from huggingface_hub import try_to_load_from_cache

    try:
        cached = try_to_load_from_cache(model, "config.json")
    except ValueError:
        return None
    return (Path(cached).parent, given) if isinstance(cached, str) else None
