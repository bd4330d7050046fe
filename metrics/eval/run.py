"""A whole evaluation, from options to rows."""

# torch leaves much of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tokenizers import Tokenizer

from context.errors import ConfigError
from engine.demo_model.evaluate import weights_digest
from engine.demo_model.training.batches import Encoder
from engine.reference.checkpoint import load_model
from engine.reference.profile import ReuseProfile
from engine.reference.qwen2_5_vl import Model
from engine.reference.reuse import rope_table
from metrics.eval import base
from metrics.eval.answers import Answers
from metrics.eval.base import Cell, EngineOutcome, EngineRow, Options, Row, Say
from metrics.eval.cases import Case, draw_cases
from metrics.eval.engine_rows import engine_rows
from metrics.eval.findings import Findings, findings
from metrics.eval.parallel import each
from metrics.eval.rows import Table
from metrics.eval.timing import first_token_seconds
from metrics.eval.variants import Setting

# Prompts of the demo model's questions are far shorter.
MOST_POSITIONS = 8192


@dataclass(frozen=True, slots=True)
class Subject:
    """The model that is evaluated, with its tokenizer and the name of its weights."""

    model: Model
    tokenizer: Tokenizer
    encoder: Encoder
    weights_sha256: str


@dataclass(frozen=True, slots=True)
class Result:
    """Rows, and what they say of the methods; `engine_rows` where the embedded engine was asked, too."""

    rows: list[Row]
    findings: Findings
    engine_rows: list[EngineRow] = field(default_factory=list[EngineRow])


def load_subject(folder: Path) -> Subject:
    """The demo model, or another one that was trained as it is.

    Raises:
        ConfigError: the folder holds no such model.
    """
    model = load_model(folder)
    file = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(file))
        encoder = Encoder(tokenizer)
    # The library raises plain exceptions.
    except Exception as error:
        reason = "is not the demo model's; its questions are asked in the demo model's own chat format"
        raise ConfigError(str(folder), file.name, reason) from error
    return Subject(model, tokenizer, encoder, weights_digest(folder))


def cells_of(options: Options) -> list[Cell]:
    """Every cell once: `full`, `prefix` and `head` for all donors, the other methods for the main ones."""
    cells = [Cell(base.FULL)]
    for method in base.METHODS[1:]:
        if method not in options.methods:
            continue
        everywhere = method in (base.PREFIX, base.HEAD)
        donors = [donor for donor in options.donors if everywhere or donor in options.main]
        ratios: Sequence[float | None] = (None,) if method in base.WITHOUT_RATIO else options.ratios
        cells += [Cell(method, ratio, donor) for donor in donors for ratio in ratios]
    return cells


AskEngine = Callable[[Sequence[Case], Sequence[Cell]], Mapping[Cell, Sequence[EngineOutcome]]]


def evaluate(
    subject: Subject,
    options: Options,
    profile: ReuseProfile | None,
    say: Say,
    ask_engine: AskEngine | None = None,
) -> Result:
    """Ask every question under every cell. The same options give the same figures, but for the times.

    Args:
        subject: the model.
        options: what to ask.
        profile: ratios of the model's layers, where they are asked for.
        say: is told the stage it is at, and how far it is.
        ask_engine: asks the same of the embedded engine; None where it is not asked.
    """
    setting = Setting(subject.model, rope_table(subject.model.shape, MOST_POSITIONS), profile, options.seeds[0])
    answers = Answers(setting, subject.tokenizer, subject.encoder.end)
    cells = cells_of(options)
    cases = list(draw_cases(subject.encoder, options.questions, options.seeds))
    ways = f"{len(cells)} way{'s' * (len(cells) > 1)} each"
    made = each(
        cases,
        lambda case: answers.of(case, cells),
        lambda done: say("questions", f"question {done} of {len(cases)}, {ways}"),
    )
    # A method that is not possible within its budget is left out; it depends on the images' sizes.
    possible = [cell for cell in cells if all(cell in one for one in made)]
    found = Table({cell: [one[cell] for one in made] for cell in possible})
    times: dict[Cell, float] = {}
    timed = cases[:: max(1, len(cases) // options.timed)][: options.timed] if options.timed else []
    if timed:
        with torch.inference_mode():
            times = first_token_seconds(setting, timed, possible, subject.encoder.end, say)
    of_engine = [] if ask_engine is None else engine_rows(ask_engine(cases, cells), found.outcomes)
    return Result(found.rows(times, len(timed)), findings(found), of_engine)
