"""The model's card: what it was trained on, how, what it answers right, and what it cannot do."""

# matplotlib leaves much of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.demo_model.evaluate import YARDSTICK
from engine.demo_model.questions import KINDS, MULTI_HOP, SINGLE_HOP
from engine.demo_model.training.stages import STAGES, Stage

_TEXT = """# The demo model

A vision-language model of the `Qwen2_5_VLForConditionalGeneration` architecture with {millions:.1f} million parameters
({size:.1f} MB in bfloat16), trained from scratch on procedural pictures in {minutes:.0f} minutes on two CPU cores. It
shows what the gateway does on any machine, with answers that can be right or wrong. It knows nothing else.

## Data
Pictures of 112 to 448 pixels a side (multiples of 28) with a thin frame, a plain background of one of six colours, and
one to four things: six shapes and ten digits in six colours. Chats of one to four pictures, in the first or in later
turns, labelled or not, with sentences of no meaning before and after, and questions of {kinds} kinds
(`engine/demo_model/questions.py`). Where things stand in a picture is its layout; of each grid and number of things
about one layout in eight is held out, and all figures here are on those.

## Recipe
`python -m engine.demo_model.training FOLDER` on two cores:

| stage | minutes | learning rate | shown |
|---|---:|---|---|
{stages}

The vision tower learns first, to say for each image token which thing has its centre there, its colour and quarter,
and the background. Words then get the directions in which the tower says what they name. The decoder learns from
replies alone, with three targets beside them: which picture a token belongs to, which one a question asks for, and, for
one head of the fourth layer, the tokens where the answer is to be seen, but for counts. Matrices learn by Muon, the
rest by Adam.

![Curves of the training](curves.png)

## Figures
{questions} questions a group on held-out layouts, greedy, an answer counting when it is the expected words and nothing
else (case and a full stop do not matter); asked through the gateway and the embedded vLLM. vLLM and transformers gave
the same answer to {agreement:.1%} of {compared} questions.

| group | right | by chance |
|---|---:|---:|
{groups}

| kind | right | by chance | yardstick |
|---|---:|---:|---|
{by_kind}

A kind is a yardstick, fit for measuring what a reuse of image KV costs, where at least {yardstick:.0%} is right.

## Limits
Only pictures and questions like those above have answers that mean something. Other text gets an answer of the same few
words. It calls no tools. Things under about 28 pixels, touching things, photographs and relations between things were
never shown.
"""


def card(scores: Mapping[str, Any], parameters: int, size_bytes: int, minutes: float) -> str:
    """The card's text for the scores that `engine.demo_model.evaluate` writes, and the minutes that were trained."""
    return _TEXT.format(
        millions=parameters / 1e6,
        size=size_bytes / 1e6,
        minutes=minutes,
        kinds=len(KINDS),
        stages="\n".join(_row(stage) for stage in STAGES),
        questions=next(iter(scores["groups"].values()))["questions"],
        agreement=scores["agreement"],
        compared=scores["compared"],
        groups="\n".join(
            f"| {name} | {one['accuracy']:.3f} | {one['chance']:.2f} |" for name, one in scores["groups"].items()
        ),
        by_kind="\n".join(
            f"| {name} | {one['accuracy']:.3f} | {one['chance']:.2f} | {_mark(name in scores['yardsticks'])} |"
            for name, one in scores["kinds"].items()
        ),
        yardstick=YARDSTICK,
    )


def _row(stage: Stage) -> str:
    first, last = stage.rate
    return f"| {stage.name} | {stage.seconds / 60:.0f} | {first:g} to {last:g} | {_shown(stage.chats)} |"


def _mark(yes: bool) -> str:
    return "yes" if yes else ""


def _shown(chats: Sequence[tuple[float, Any]]) -> str:
    if not chats:
        return "pictures alone"
    return "; ".join(
        f"{share:.0%} of {limits.min_images}-{limits.max_images} pictures up to {limits.scenes.max_side} px"
        for share, limits in chats
    )


def plot(history: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Curves over minutes of training: the tower's targets, and right answers by kind."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    # A training that went back to an earlier checkpoint has what came after it twice.
    history = [
        one for at, one in enumerate(history) if all(one["seconds"] < later["seconds"] for later in history[at + 1 :])
    ]
    figure, rows = pyplot.subplots(3, 1, figsize=(9, 10), layout="constrained", sharex=True)
    panels = (
        ("Vision tower: right at the centres of things", ("thing", "colour", "quarter", "ground")),
        ("Single-hop questions: right answers", SINGLE_HOP),
        ("Multi-hop questions: right answers", MULTI_HOP),
    )
    for axes, (title, names) in zip(rows, panels, strict=True):
        for name in names:
            entries = [entry for entry in history if name in entry and ("ground" in entry) == (axes is rows[0])]
            if entries:
                axes.plot(
                    [entry["seconds"] / 60 for entry in entries],
                    _smooth([entry[name] for entry in entries]),
                    label=name,
                )
        axes.set(title=title, ylim=(0, 1.02))
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    rows[-1].set_xlabel("minutes of training on two cores")
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def _smooth(values: Sequence[float], width: int = 7) -> list[float]:
    """Running means: a point of the history holds few questions of a kind."""
    half = width // 2
    windows = (values[max(0, at - half) : at + half + 1] for at in range(len(values)))
    return [sum(window) / len(window) for window in windows]
