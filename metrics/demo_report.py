"""The demonstration as it is shown: a block for each turn, and the sum at the end.

Sentences about the caches follow from the measured figures. What the client did is known from the plan; that it was
the cause is said only where the figures agree with it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from metrics.demo import Totals, TurnResult
from metrics.demo_plan import Encoding, Picture, Turn
from metrics.experiment_groups import GROUPS

_INDENT = "  "
_BAR_CELLS = 28
_ANSWER_CHARS = 40
_STYLES = ("green", "yellow", "red")
_ENCODINGS: dict[Encoding, str] = {
    "png": "PNG",
    "webp": "lossless WebP",
    "png_uncompressed": "PNG without compression, with a comment",
    "png_alpha": "PNG with an alpha channel",
}


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Characters of the bars and marks. The parts of a bar differ in shape too, for terminals without colours."""

    read: str = "█"
    write: str = "▓"
    uncached: str = "░"
    right: str = "✓ "
    wrong: str = "✗ "

    @property
    def parts(self) -> tuple[str, str, str]:
        """One character for each part of a prompt: read, write, uncached."""
        return self.read, self.write, self.uncached


ASCII = Glyphs("#", "+", ".", "", "")


def glyphs_for(encoding: str) -> Glyphs:
    """Blocks and marks where an encoding can show them, else ASCII."""
    try:
        "".join((*Glyphs().parts, Glyphs().right, Glyphs().wrong)).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return Glyphs()


class Report:
    """Prints a session on a console as it goes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._glyphs = glyphs_for(console.encoding)

    def begin(self) -> None:
        """Say what the bars mean."""
        marks = self._glyphs.parts
        line = Text("Prompt tokens of each turn: ")
        names = ("read from the prefix cache", "computed and written to it", "computed, not kept")
        for mark, style, name, end in zip(marks, _STYLES, names, (", ", ", ", "."), strict=True):
            line.append(mark * 2, style).append(f" {name}{end}")
        self._print(line)

    def turn(self, turn: Turn, result: TurnResult, turns: int) -> None:
        """Show a turn: what the client did, question, answer, tokens, encoder, and what happened."""
        self._print(Text(f"\nTurn {turn.number} of {turns}: {_doing(turn)}", "bold"))
        self._prose(*(describe(picture) for picture in turn.new))
        if turn.change == "encoding":
            written = (f"picture {picture.number} as {_ENCODINGS[turn.encoding(picture)]}" for picture in turn.pictures)
            self._prose(f"It now sends {'; '.join(written)}.")
        if turn.dropped is not None:
            self._prose(f"Picture {turn.dropped.number} is gone; picture {turn.pictures[0].number} is now image 1.")
        self._print(Text(f"{_INDENT}Q  {turn.question.text}"))
        self._print(self._answer(result))
        self._print(self._tokens(result))
        if (encoder := _encoder(result)) is not None:
            self._prose(encoder)
        self._prose(explain(result))

    def end(self, sums: Totals, next_steps: Sequence[tuple[str, str]]) -> None:
        """Show the sums, and what to try next."""
        self._print(Text(f"\n{sums.turns} turns", "bold"))
        self._prose(*summary(sums))
        self._print(Text("\nTry next", "bold"))
        width = max(len(name) for name, _ in next_steps)
        for name, what in next_steps:
            self._prose(f"{name:<{width}}  {what}", hang=width + 2)

    def _answer(self, result: TurnResult) -> Text:
        shown = printable(result.answer, self._console.encoding)
        line = Text(f"{_INDENT}A  {shown or '(nothing)'}  ")
        if result.right:
            return line.append(f"{self._glyphs.right}right", "green")
        return line.append(f"{self._glyphs.wrong}wrong (right: {result.expected})", "red")

    def _tokens(self, result: TurnResult) -> Text:
        prompt = _figure(result.prompt_tokens)
        if result.read_tokens is None or result.write_tokens is None or result.uncached_tokens is None:
            return Text(f"{_INDENT}{prompt} prompt tokens; the engine does not report what it read")
        parts = (result.read_tokens, result.write_tokens, result.uncached_tokens)
        line = Text(_INDENT)
        for count, mark, style in zip(cells(parts, _BAR_CELLS), self._glyphs.parts, _STYLES, strict=True):
            line.append(mark * count, style)
        read, write, uncached = (_figure(part) for part in parts)
        return line.append(f"  {read} read, {write} write, {uncached} uncached of {prompt}")

    def _prose(self, *paragraphs: str, hang: int = 0) -> None:
        for paragraph in paragraphs:
            wrapped = textwrap.fill(
                paragraph,
                max(40, self._console.width),
                initial_indent=_INDENT,
                subsequent_indent=_INDENT + " " * hang,
                break_on_hyphens=False,
            )
            self._print(Text(wrapped))

    def _print(self, line: Text) -> None:
        # Lines are wrapped here: rich would fill them up with spaces.
        self._console.print(line, soft_wrap=True, highlight=False)


def cells(parts: Sequence[int], width: int) -> list[int]:
    """Share `width` cells out among parts, by size; a part that is not zero gets at least one."""
    total = sum(parts)
    if not total:
        return [0 for _ in parts]
    given = [max(part * width // total, 1 if part else 0) for part in parts]
    while sum(given) != width:
        step = 1 if sum(given) < width else -1
        # Who is furthest from its due gets or gives the next one, and keeps one.
        owed = [step * (part * width / total - count) for part, count in zip(parts, given, strict=True)]
        free = [index for index, part in enumerate(parts) if part and given[index] + step]
        choice = max(free, key=owed.__getitem__)
        given[choice] += step
    return given


def describe(picture: Picture) -> str:
    """A picture in words."""
    scene = picture.scene
    things = (f"{thing.colour} {f'digit {thing.name}' if thing.is_digit else thing.name}" for thing in scene.things)
    return f"Picture {picture.number}: {', '.join(things)}, on {scene.background}; {scene.width} x {scene.height}."


def printable(answer: str, encoding: str) -> str:
    """An answer on one line, in characters that a terminal of this encoding shows and takes for nothing else."""
    line = " ".join(answer.split())
    shown = "".join(char if char.isprintable() else "?" for char in line)
    shown = shown.encode(encoding, "replace").decode(encoding)
    return shown if len(shown) <= _ANSWER_CHARS else shown[: _ANSWER_CHARS - 3] + "..."


def explain(result: TurnResult) -> str:
    """What happened in a turn, in one sentence that its figures support."""
    read, prompt, computed = result.read_tokens, result.prompt_tokens, result.computed_tokens
    if read is None or prompt is None or computed is None:
        return "What was reused cannot be said: the engine does not report it."
    if result.change == "first":
        return _explain_first(result, read, prompt)
    if _breaks_at_drop(result, computed):
        return (
            f"The conversation no longer matches from the dropped picture on, so {computed:,} of {prompt:,} tokens "
            f"were computed{_later_pictures(result)}."
        )
    history = result.history_tokens
    if history is None or (result.change == "dropped" and read < history):
        return f"{read:,} of {prompt:,} tokens were read and {computed:,} computed."
    if read < history:
        return f"Less was read than the turn before left in the cache: {read:,} of {history:,} tokens."
    return _explain_whole(result, computed)


def _explain_first(result: TurnResult, read: int, prompt: int) -> str:
    if read:
        return f"The engine had seen the start of this before: {read:,} of {prompt:,} tokens were read."
    pictures = ""
    if result.encoder_runs is not None and result.encoder_runs == result.images:
        pictures = f", and {_count(result.encoder_runs, 'picture')} encoded"
    return f"Nothing of it was in the cache: all {prompt:,} tokens were computed{pictures}."


def _explain_whole(result: TurnResult, computed: int) -> str:
    """A turn that read all that the one before had left."""
    encoded = ""
    if result.encoder_runs == result.new_images == 0 and result.change == "encoding":
        encoded = ", and no picture was encoded again"
    elif result.encoder_runs == result.new_images and result.new_images:
        encoded = ", and only the new picture was encoded"
    if result.change == "encoding":
        return (
            "Other files, same pixels: the gateway takes them for the same pictures, so the whole history was read"
            f"{encoded}."
        )
    if result.change == "picture":
        return f"The whole history was read; {computed:,} tokens from its end on were computed{encoded}."
    return f"The whole history was read; only the {computed:,} tokens from its end on were computed."


def _breaks_at_drop(result: TurnResult, computed: int) -> bool:
    """Whether the figures say that all pictures behind a dropped one were computed again: the engine needed the
    features of each, or, where it does not tell, computed at least as many tokens as they have."""
    if result.change != "dropped":
        return False
    if result.encoder_runs is not None and result.encoder_hits is not None:
        return result.encoder_runs + result.encoder_hits >= result.images
    return result.visual_tokens is not None and computed >= result.visual_tokens


def _later_pictures(result: TurnResult) -> str:
    runs, hits = result.encoder_runs, result.encoder_hits
    if runs is None or hits is None:
        return ""
    again = "none was encoded again" if runs == 0 else f"{_count(runs, 'picture')} encoded again"
    return f"; {_count(hits, 'later picture')} came from the encoder cache, {again}"


def summary(sums: Totals) -> list[str]:
    """The sums of a session in words."""
    told: list[str] = []
    if sums.read_tokens is None or sums.computed_tokens is None or sums.prompt_tokens is None:
        told.append(f"{_figure(sums.prompt_tokens)} prompt tokens; the engine does not report what it read.")
    else:
        told.append(
            f"{sums.prompt_tokens:,} prompt tokens: {sums.read_tokens:,} read, {_figure(sums.write_tokens)} write, "
            f"{_figure(sums.uncached_tokens)} uncached."
        )
        times = f", {sums.prompt_tokens / sums.computed_tokens:.1f} times as many" if sums.computed_tokens else ""
        told.append(
            f"{sums.computed_tokens:,} tokens were computed (write and uncached). Without any reuse it would have been "
            f"all {sums.prompt_tokens:,}{times}."
        )
    if sums.encoder_runs is not None:
        told.append(
            f"{_count(sums.encoder_runs, 'picture')} encoded. Without any reuse it would have been {sums.images:,}."
        )
    if sums.write_derived:
        told.append("The engine does not report written tokens; they are derived.")
    told.append(f"{sums.right} of {sums.turns} answers right.")
    return told


def next_steps(readme: str = "README.md") -> list[tuple[str, str]]:
    """What to try after the demonstration."""
    return [
        ("stillframe serve", "the gateway for a client of your own: base_url http://127.0.0.1:8000/v1"),
        (
            "stillframe experiment",
            f"{len(GROUPS)} controlled pairs of requests, straight to the engine and through the gateway",
        ),
        (readme, "other models, an engine that you already run, settings"),
    ]


def _doing(turn: Turn) -> str:
    """What the client does."""
    doing = {
        "first": f"{len(turn.new)} pictures and a question",
        "question": "another question",
        "picture": "one more picture",
        "encoding": "the client writes all pictures anew, with the same pixels",
        "dropped": "the client drops its oldest picture",
    }
    return doing[turn.change]


def _encoder(result: TurnResult) -> str | None:
    if result.encoder_runs is None or result.encoder_hits is None:
        return None
    return f"Encoder cache: {_count(result.encoder_runs, 'run')}, {_count(result.encoder_hits, 'hit')}."


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def _figure(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"
