"""`python -m engine.demo_model.training FOLDER`: train the demo model, or go on with it."""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from engine.demo_model.training.run import Training


def main(arguments: list[str] | None = None) -> None:
    """Command line of the module."""
    parser = argparse.ArgumentParser(prog="python -m engine.demo_model.training", description=__doc__)
    parser.add_argument("folder", type=Path, help="where checkpoints and figures go; a training there is continued")
    parser.add_argument(
        "--until", type=float, default=math.inf, metavar="MINUTES", help="stop after so much training in all"
    )
    parser.add_argument(
        "--export", type=Path, metavar="TO", help="do not train: write the checkpoint and its curves there"
    )
    parser.add_argument("--scores", type=Path, metavar="FILE", help="with --export: write the card from these scores")
    options = parser.parse_args(arguments)
    if options.scores is not None and options.export is None:
        parser.error("--scores goes with --export")
    try:
        options.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"{options.folder} is no folder that can be made ({error.strerror})")
    if options.export is not None and not (options.folder / "checkpoint.pt").is_file():
        parser.error(f"there is no training in {options.folder} to export")
    scores = _scores(parser, options.scores) if options.scores is not None else None
    from engine.demo_model.training.run import Training
    from engine.demo_model.training.vocabulary import demo_tokenizer

    tokenizer = demo_tokenizer(options.folder)
    training = Training(options.folder, tokenizer, _say)
    if options.export is not None:
        _export(training, tokenizer, options.export, scores)
        return
    try:
        training.run(options.until * 60)
    except KeyboardInterrupt:
        training.save()
        _say(f"Stopped after {training.progress.total_seconds / 60:.0f} minutes; the same command goes on from here.")
        sys.exit(130)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _scores(parser: argparse.ArgumentParser, file: Path) -> dict[str, Any]:
    """The figures of an evaluation that compared the engine with transformers."""
    scores: dict[str, Any] = {}
    try:
        scores = json.loads(file.read_text())
        whole = {"groups", "kinds", "yardsticks", "agreement", "compared", "weights_sha256"} <= scores.keys()
    except (OSError, ValueError, AttributeError):
        whole = False
    if not whole:
        parser.error(
            f"{file} holds no scores of both; write them with "
            "'python -m engine.demo_model.evaluate --url URL --folder FOLDER --json FILE'"
        )
    return scores


def _export(training: Training, tokenizer: Tokenizer, folder: Path, scores: dict[str, Any] | None) -> None:
    from engine.demo_model.evaluate import weights_digest
    from engine.demo_model.training.card import card, plot
    from engine.demo_model.training.export import export

    weights = export(training.model, tokenizer, folder)
    plot(training.progress.history, folder / "curves.png")
    if scores is not None:
        if scores["weights_sha256"] != weights_digest(folder):
            sys.exit(f"The scores are of other weights than those now in {folder}; evaluate it, then export again.")
        parameters = sum(parameter.numel() for parameter in training.model.parameters())
        minutes = training.progress.total_seconds / 60
        (folder / "README.md").write_text(card(scores, parameters, weights.stat().st_size, minutes))
        (folder / "scores.json").write_text(json.dumps(scores, indent=2) + "\n")


if __name__ == "__main__":
    main()
