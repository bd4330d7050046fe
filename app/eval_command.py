"""`stillframe eval`: what the reuse of image KV costs in answer quality, and what it saves."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from app.commands import check_writable, write_json
from app.eval_options import wanted
from app.progress import progress
from context.errors import ConfigError
from engine.demo_model import bundled_folder
from engine.reference.profile import ReuseProfile, read_profile, write_profile
from metrics.eval import base
from metrics.eval.base import Cell, EngineOutcome, Options, Say

if TYPE_CHECKING:
    from metrics.eval.cases import Case
    from metrics.eval.run import AskEngine, Subject

_WIDTH = 160
_SHOWN_BUDGETS = (0.05, 0.1, 0.2, 0.5)


def evaluate(options: argparse.Namespace) -> int:
    """Evaluate, or with `--calibrate` measure the layers of a model. Exit status 0 when it ran to its end.

    Raises:
        ConfigError: an option, the model or the profile is wrong.
    """
    asked = wanted(options)
    for file in (options.json, options.plot, options.calibrate):
        check_writable(file)
    if options.plot is not None and options.plot.suffix != ".png":
        raise ConfigError("flag --plot", str(options.plot), "must end in .png")
    if find_spec("torch") is None:
        raise ConfigError("flag", "eval", "runs on PyTorch, which comes with the engine: make install")
    from metrics.eval.run import load_subject

    folder = bundled_folder() if options.model in (None, "demo") else Path(options.model).expanduser()
    subject = load_subject(folder)
    console = Console(stderr=True)
    if options.calibrate is not None:
        return _calibrate(options, asked, subject, console)
    profile = _profile(options, asked, subject)
    if options.engine and find_spec("vllm") is None:
        raise ConfigError("flag", "--engine", "needs vLLM: make install")
    return _evaluate(options, asked, subject, profile, console)


def _evaluate(
    options: argparse.Namespace, asked: Options, subject: Subject, profile: ReuseProfile | None, console: Console
) -> int:
    from metrics.eval import run
    from metrics.eval.plot import plot
    from metrics.eval.report import as_json, engine_table, table, told

    with progress(console, "eval: questions are drawn") as say:
        ask_engine = _engine_asker(options, say) if options.engine else None
        result = run.evaluate(subject, asked, profile, say, ask_engine)
    if options.json is not None:
        about = {"model": options.model or "demo", "weights_sha256": subject.weights_sha256, **asdict(asked)}
        write_json(options.json, as_json(result, about))
    shown = _output(options)
    shown.print(table(result.rows))
    if result.engine_rows:
        shown.print(engine_table(result.engine_rows))
    for line in told(result.findings.losses, result.findings.comparisons):
        shown.print(line, highlight=False, markup=False)
    if options.plot is not None:
        plot(result.rows, options.plot, result.engine_rows)
    return 0


def _engine_asker(options: argparse.Namespace, say: Say) -> AskEngine:
    from metrics.eval.on_engine import engine_for

    folder = bundled_folder() if options.model in (None, "demo") else Path(options.model).expanduser()

    async def asked(cases: Sequence[Case], cells: Sequence[Cell]) -> dict[Cell, list[EngineOutcome]]:
        by_layer = any(cell.method == base.PER_LAYER for cell in cells)
        say("engine", "engine: starting")
        async with engine_for(folder, _profile_file(options) if by_layer else None) as engine:
            return await engine.evaluate(cases, cells, say)

    return lambda cases, cells: asyncio.run(asked(cases, cells))


def _calibrate(options: argparse.Namespace, asked: Options, subject: Subject, console: Console) -> int:
    from metrics.eval.calibrate import calibrate
    from metrics.eval.report import profile_table

    donors = [donor for donor in asked.donors if donor != "same"]
    if not donors:
        raise ConfigError("flag", "--donors", "names none from which KV differs; name another one than 'same'")
    with progress(console, "calibration: questions are drawn") as say:
        profile = calibrate(subject, asked.questions, asked.seeds[0], donors, say)
    write_profile(options.calibrate, profile)
    if options.json is not None:
        write_json(options.json, asdict(profile))
    _output(options).print(profile_table(profile, _SHOWN_BUDGETS))
    return 0


def _output(options: argparse.Namespace) -> Console:
    to_stderr = str(options.json) == "-"
    is_terminal = (sys.stderr if to_stderr else sys.stdout).isatty()
    return Console(stderr=to_stderr, width=None if is_terminal else _WIDTH)


def _profile(options: argparse.Namespace, asked: Options, subject: Subject) -> ReuseProfile | None:
    if base.PER_LAYER not in asked.methods:
        return None
    file = _profile_file(options)
    if file is None:
        reason = "per_layer needs one for this model: measure it with --calibrate FILE, or leave the method out"
        raise ConfigError("flag", "--profile", reason)
    profile = read_profile(file)
    profile.check(subject.weights_sha256, subject.model.shape.layers, file)
    return profile


def _profile_file(options: argparse.Namespace) -> Path | None:
    bundled = bundled_folder().parent / "reuse_profile.json"
    return options.profile or (bundled if options.model in (None, "demo") else None)
