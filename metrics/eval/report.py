"""An evaluation as tables for the terminal and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.table import Table

from engine.reference.profile import ReuseProfile
from metrics.eval import base
from metrics.eval.base import EngineRow, Interval, Row
from metrics.eval.findings import Comparison, Loss
from metrics.eval.run import Result

_FEW = (
    "speedup: against full, with the count of timed questions; "
    f"with ~, from fewer than {base.FEWEST_TIMED}, it is indicative and no result."
)
_NOTE = (
    "image, prompt: share of the images' and of the prompt's tokens that is computed, a mean over the layers. first: "
    "time to the first token of the plain PyTorch model, batch 1, encoder warm, a mean over the timed questions, each "
    f"the best of a few rounds. {_FEW} kl, mse: the first token against full recompute. match: tokens of the reply "
    "that are the same. single, multi: right answers in percent, with the middle 95 % over draws of questions."
)
_ENGINE_NOTE = (
    "In single precision, one request at a time, encoder warm. image, prompt: as the engine counts them; prefix in "
    "whole blocks. first, speedup: medians over the questions, each asked once, the whole way through the engine. "
    f"{_FEW} as plain: share of questions that are right or wrong as with the plain model."
)


def table(rows: Sequence[Row]) -> Table:
    """Quality and cost, a line for each way."""
    figures = ("r", "image", "prompt", "first", "speedup", "kl", "mse", "top-1", "match", "single", "multi")
    shown = _ways("Reuse of image KV", _NOTE, figures, rows)
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        last = following is None or (following.method, following.donor) != (row.method, row.donor)
        shown.add_row(
            row.method,
            row.donor or "",
            "" if row.ratio is None else f"{row.ratio:g}",
            f"{row.computed_image_share:.3f}",
            f"{row.computed_token_share:.3f}",
            "" if row.ttft_seconds is None else f"{row.ttft_seconds * 1000:.0f} ms",
            _speedup(row),
            _small(row.kl),
            _small(row.logit_mse),
            f"{row.top1_agreement:.3f}",
            f"{row.greedy_match_tokens:.2f}/{row.reply_tokens:.2f}",
            _percent(row.accuracy_single_hop),
            _percent(row.accuracy_multi_hop),
            end_section=last,
        )
    return shown


def engine_table(rows: Sequence[EngineRow]) -> Table:
    """The embedded engine's answers, work and times, a line for each way."""
    figures = ("r", "image", "prompt", "first", "speedup", "top-1", "single", "multi", "as plain")
    shown = _ways("The same on the embedded engine", _ENGINE_NOTE, figures, rows)
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        last = following is None or (following.method, following.donor) != (row.method, row.donor)
        shown.add_row(
            row.method,
            row.donor or "",
            "" if row.ratio is None else f"{row.ratio:g}",
            f"{row.computed_image_share:.3f}",
            f"{row.computed_token_share:.3f}",
            f"{row.ttft_seconds * 1000:.0f} ms",
            _speedup(row),
            f"{row.top1_agreement:.3f}",
            _percent(row.accuracy_single_hop),
            _percent(row.accuracy_multi_hop),
            "" if row.as_plain is None else f"{row.as_plain:.3f}",
            end_section=last,
        )
    return shown


def told(losses: Sequence[Loss], comparisons: Sequence[Comparison]) -> list[str]:
    """What the rows say, a sentence a line."""
    return [*map(_loss, losses), *map(_comparison, comparisons)]


def profile_table(profile: ReuseProfile, budgets: Sequence[float]) -> Table:
    """Sensitivities of the layers, and what each computes under some budgets."""
    shown = Table(
        title="Layers: how far the answer moves (nats), and the share computed under a budget",
        title_justify="left",
        box=box.SIMPLE,
    )
    shown.add_column("layer", justify="right")
    for ratio in profile.grid[:-1]:
        shown.add_column(f"S({ratio:g})", justify="right", no_wrap=True)
    for budget in budgets:
        shown.add_column(f"r={budget:g}", justify="right", no_wrap=True)
    shares = [profile.ratios(budget) for budget in budgets]
    for number, layer in enumerate(profile.sensitivity):
        shown.add_row(
            str(number + 1), *(f"{one:.4f}" for one in layer[:-1]), *(f"{share[number]:.2f}" for share in shares)
        )
    return shown


def as_json(result: Result, about: Mapping[str, Any]) -> dict[str, Any]:
    """Rows with figures as numbers and their intervals beside them as [low, high], under `..._95`."""
    return {
        **about,
        "rows": [_row(row) for row in result.rows],
        **({"engine_rows": [_row(row) for row in result.engine_rows]} if result.engine_rows else {}),
        "losses": [{**_flat(asdict(loss)), "met": loss.is_met} for loss in result.findings.losses],
        "comparisons": [_flat(asdict(one)) for one in result.findings.comparisons],
    }


def _row(row: Row | EngineRow) -> dict[str, Any]:
    return {**_flat(asdict(row)), "speedup_indicative": _is_indicative(row)}


def _is_indicative(row: Row | EngineRow) -> bool:
    return row.speedup is not None and row.timed_questions < base.FEWEST_TIMED


def _flat(fields: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in fields.items():
        made[name] = _rounded(value)
        if isinstance(value, dict):
            made[name] = _rounded(value["mean"])
            made[f"{name}_95"] = [_rounded(value["low"]), _rounded(value["high"])]
    return made


def _rounded(value: Any) -> Any:
    # Six digits that count: small figures are of interest, too.
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _speedup(row: Row | EngineRow) -> str:
    if row.speedup is None:
        return ""
    return f"{'~' * _is_indicative(row)}{row.speedup:.2f} ({row.timed_questions} timed)"


def _small(value: float) -> str:
    return "0" if value < 1e-9 else f"{value:.4f}" if value >= 0.001 else f"{value:.0e}"


def _percent(share: Interval | None) -> str:
    return "" if share is None else f"{share.mean * 100:.1f} [{share.low * 100:.0f}-{share.high * 100:.0f}]"


def _points(loss: Interval | None) -> str:
    if loss is None:
        return "not asked"
    return f"{loss.mean * 100:+.1f} points [{loss.low * 100:+.1f}, {loss.high * 100:+.1f}]"


def _loss(loss: Loss) -> str:
    least = "none that was tried" if loss.least_ratio is None else f"r = {loss.least_ratio:g}"
    return (
        f"head, donor {loss.donor}, {loss.hop.replace('_', '-')}: loses {_points(loss.at_small)} at r = 0.05 "
        f"({'within' if loss.is_met else 'more than'} {loss.allowed * 100:.0f}); smallest that stays within: {least}."
    )


def _comparison(one: Comparison) -> str:
    kl = "" if one.reply_kl is None else f"; reply's kl {one.reply_kl.mean:+.4f}"
    return (
        f"{one.method} against {one.against}, donor {one.donor}, r = {one.ratio:g}: loses single-hop "
        f"{_points(one.loss_single_hop)}, multi-hop {_points(one.loss_multi_hop)} more{kl}."
    )


def _ways(title: str, note: str, figures: Sequence[str], rows: Sequence[Row | EngineRow]) -> Table:
    """A table for a line a way, with a note below it and what each way of these does."""
    methods = dict.fromkeys(row.method for row in rows)
    note = "\n".join([note, *(f"{method}: {base.MEANINGS[method]}." for method in methods)])
    shown = Table(
        title=title,
        title_justify="left",
        caption=note,
        caption_justify="left",
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
    )
    shown.add_column("method", no_wrap=True)
    shown.add_column("donor", no_wrap=True)
    for name in figures:
        shown.add_column(name, justify="right", no_wrap=True)
    return shown
