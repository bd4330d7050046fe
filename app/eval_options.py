"""The options of `stillframe eval`, and what they ask for."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from pathlib import Path

from context.errors import ConfigError
from metrics.eval.base import DONORS, MEANINGS, METHODS, RATIOS, Options

QUESTIONS = 16
_WIDEST_HELP = 100
# Where every method is tried: text alone moved, which costs little, and pictures in other places, which costs much.
_MAIN = ("text_moved", "reordered")


def add_eval_options(command: argparse.ArgumentParser) -> None:
    """Add them to the command's parser."""
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    # As wide as what argparse breaks by itself.
    width = min(shutil.get_terminal_size().columns - 2, _WIDEST_HELP)
    command.description = textwrap.fill(command.description or "", width)
    command.epilog = _epilog(width)
    command.add_argument("--model", help="demo, or a folder of a model trained as it was (default: demo)")
    command.add_argument(
        "--questions", type=int, default=QUESTIONS, metavar="N", help=f"of each hop and seed (default: {QUESTIONS})"
    )
    command.add_argument("--seeds", type=int, nargs="+", default=[1], metavar="N", help="of the questions (default: 1)")
    command.add_argument(
        "--methods",
        nargs="+",
        choices=METHODS,
        default=list(METHODS),
        metavar="METHOD",
        help=f"of {', '.join(METHODS)} (default: all)",
    )
    command.add_argument(
        "--donors",
        nargs="+",
        choices=DONORS,
        default=list(DONORS),
        metavar="DONOR",
        help=f"of {', '.join(DONORS)} (default: all)",
    )
    command.add_argument(
        "--ratios", type=float, nargs="+", default=list(RATIOS), metavar="R", help="shares of an image to compute"
    )
    command.add_argument("--every", action="store_true", help="try every method on every donor")
    command.add_argument("--timed", type=int, default=3, metavar="N", help="questions that are timed (default: 3)")
    command.add_argument(
        "--profile", type=Path, metavar="FILE", help="ratios of the layers (default: the demo model's)"
    )
    command.add_argument("--calibrate", type=Path, metavar="FILE", help="measure the layers, write a profile and end")
    command.add_argument(
        "--engine", action="store_true", help="ask the embedded engine, too: full, prefix, head and per_layer"
    )
    command.add_argument("--json", type=Path, metavar="FILE", help="write the rows as JSON; - for standard output")
    command.add_argument("--plot", type=Path, metavar="FILE.png", help="draw answers and divergence over the work")


def _epilog(width: int) -> str:
    """What each method does, and where the rest stands."""
    wide = max(map(len, METHODS)) + 4
    width = max(width, 2 * wide)
    lines = ["methods, which take images' KV from a donor, another context that shows the same pictures:"]
    for method in METHODS:
        name = f"  {method}".ljust(wide)
        lines.append(textwrap.fill(MEANINGS[method], width, initial_indent=name, subsequent_indent=" " * wide))
    return "\n".join([*lines, "", "Donors and figures: docs/eval.md. Example: stillframe eval --plot eval.png"])


def wanted(options: argparse.Namespace) -> Options:
    """What the options ask for.

    Raises:
        ConfigError: one of them is out of its range.
    """
    if options.questions < 1:
        raise ConfigError("flag", "--questions", "takes a whole number from 1 up")
    if options.timed < 0:
        raise ConfigError("flag", "--timed", "takes a whole number from 0 up")
    if min(options.seeds) < 0 or len(set(options.seeds)) < len(options.seeds):
        raise ConfigError("flag", "--seeds", "takes whole numbers from 0 up, each once")
    if not all(0 <= ratio <= 1 for ratio in options.ratios):
        raise ConfigError("flag", "--ratios", "takes shares from 0 to 1, such as 0.05")
    return Options(
        questions=options.questions,
        seeds=tuple(options.seeds),
        methods=tuple(dict.fromkeys(options.methods)),
        donors=tuple(dict.fromkeys(options.donors)),
        main=tuple(options.donors) if options.every else _MAIN,
        ratios=tuple(sorted(set(options.ratios))),
        timed=options.timed,
    )
