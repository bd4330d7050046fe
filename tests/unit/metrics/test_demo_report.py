"""The demonstration as it is shown: whole pages, and each sentence only where the figures support it."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from engine.demo_model.questions import Question
from engine.demo_model.scenes import Scene, Thing
from metrics.demo import TurnResult, totals
from metrics.demo_plan import Picture, Turn
from metrics.demo_report import ASCII, Glyphs, Report, cells, explain, glyphs_for, next_steps, printable, summary

FIRST = Picture(1, Scene(252, 224, "pink", (Thing("star", "red", 50, 50, 40), Thing("7", "blue", 150, 150, 40)), ()))
SECOND = Picture(2, Scene(224, 224, "black", (Thing("ring", "green", 50, 50, 40),), ()))
TURNS = (
    Turn(1, "first", (FIRST, SECOND), (FIRST, SECOND), Question("background", "Which background?", "pink")),
    Turn(2, "encoding", (FIRST, SECOND), (), Question("count", "How many?", "two"), reencoded=True),
    Turn(3, "dropped", (SECOND,), (), Question("shape", "Which shape?", "ring"), dropped=FIRST, reencoded=True),
)


def _result(turn: int, change: Any, answer: str, *, right: bool, **figures: Any) -> TurnResult:
    result = TurnResult(
        turn=turn,
        change=change,
        kind=TURNS[turn - 1].question.kind,
        question=TURNS[turn - 1].question.text,
        expected=TURNS[turn - 1].question.answer,
        answer=answer,
        right=right,
        images=len(TURNS[turn - 1].pictures),
        new_images=len(TURNS[turn - 1].new),
        prompt_tokens=1200,
        read_tokens=0,
        write_tokens=1184,
        write_derived=False,
        uncached_tokens=16,
        visual_tokens=136,
        history_tokens=0,
        encoder_runs=0,
        encoder_hits=0,
        ttft_seconds=0.1,
        total_seconds=0.2,
    )
    return replace(result, **figures)


RESULTS = (
    _result(1, "first", "pink", right=True, encoder_runs=2),
    _result(
        2, "encoding", "three", right=False, prompt_tokens=1250, read_tokens=1200, write_tokens=32, uncached_tokens=18,
        history_tokens=1184,
    ),
    _result(
        3, "dropped", "ring", right=True, prompt_tokens=1180, read_tokens=64, write_tokens=1104, uncached_tokens=12,
        history_tokens=1248, visual_tokens=64, encoder_hits=1,
    ),
)  # fmt: skip


def _shown(encoding: str = "utf-8", **options: Any) -> str:
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    report = Report(Console(file=out, width=80, legacy_windows=False, **options))
    report.begin()
    for turn, result in zip(TURNS, RESULTS, strict=True):
        report.turn(turn, result, len(TURNS))
    report.end(totals(RESULTS), next_steps())
    out.seek(0)
    return out.read()


GOLDEN = """\
Prompt tokens of each turn: ██ read from the prefix cache, ▓▓ computed and written to it, ░░ computed, not kept.

Turn 1 of 3: 2 pictures and a question
  Picture 1: red star, blue digit 7, on pink; 252 x 224.
  Picture 2: green ring, on black; 224 x 224.
  Q  Which background?
  A  pink  ✓ right
  ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓░  0 read, 1,184 write, 16 uncached of 1,200
  Encoder cache: 2 runs, 0 hits.
  Nothing of it was in the cache: all 1,200 tokens were computed, and 2 pictures
  encoded.

Turn 2 of 3: the client writes all pictures anew, with the same pixels
  It now sends picture 1 as lossless WebP; picture 2 as PNG without compression,
  with a comment.
  Q  How many?
  A  three  ✗ wrong (right: two)
  ██████████████████████████▓░  1,200 read, 32 write, 18 uncached of 1,250
  Encoder cache: 0 runs, 0 hits.
  Other files, same pixels: the gateway takes them for the same pictures, so the
  whole history was read, and no picture was encoded again.

Turn 3 of 3: the client drops its oldest picture
  Picture 1 is gone; picture 2 is now image 1.
  Q  Which shape?
  A  ring  ✓ right
  █▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓░  64 read, 1,104 write, 12 uncached of 1,180
  Encoder cache: 0 runs, 1 hit.
  The conversation no longer matches from the dropped picture on, so 1,116 of
  1,180 tokens were computed; 1 later picture came from the encoder cache, none
  was encoded again.

3 turns
  3,630 prompt tokens: 1,264 read, 2,320 write, 46 uncached.
  2,366 tokens were computed (write and uncached). Without any reuse it would
  have been all 3,630, 1.5 times as many.
  2 pictures encoded. Without any reuse it would have been 5.
  2 of 3 answers right.

Try next
  stillframe serve       the gateway for a client of your own: base_url
                         http://127.0.0.1:8000/v1
  stillframe experiment  8 controlled pairs of requests, straight to the engine
                         and through the gateway
  README.md              other models, an engine that you already run, settings
"""


class TestPage:
    def test_the_whole_page(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("FORCE_COLOR", raising=False)
        assert _shown() == GOLDEN

    def test_ascii_where_blocks_cannot_be_shown(self) -> None:
        shown = _shown("ascii", force_terminal=False)
        table = str.maketrans("█▓░", "#+.")
        assert shown == GOLDEN.replace("✓ ", "").replace("✗ ", "").translate(table)

    def test_colours_in_a_terminal_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("NO_COLOR", raising=False)
        coloured = _shown(force_terminal=True, color_system="standard")
        assert "\x1b[32m✓ right" in coloured
        assert "\x1b[31m✗ wrong" in coloured
        assert "\x1b[31m░" in coloured
        assert "\x1b" not in _shown(force_terminal=False)

    def test_no_color_is_obeyed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NO_COLOR", "1")
        shown = _shown(force_terminal=True, color_system="standard")
        assert "\x1b[3" not in shown.replace("\x1b[39m", "")
        assert "█" in shown

    def test_what_is_unreported_has_no_bar(self) -> None:
        out = io.StringIO()
        report = Report(Console(file=out, width=80))
        report.turn(TURNS[0], replace(RESULTS[0], read_tokens=None, write_tokens=None, uncached_tokens=None), 3)
        report.turn(TURNS[0], replace(RESULTS[0], encoder_runs=None, encoder_hits=None), 3)
        first, second = out.getvalue().split("\nTurn")[1:]
        assert "1,200 prompt tokens; the engine does not report what it read\n" in first
        assert "▓" not in first
        assert "Encoder" not in second


class TestBars:
    @pytest.mark.parametrize(
        ("parts", "width", "given"),
        [
            ((50, 25, 25), 8, [4, 2, 2]),
            ((1000, 1, 1), 10, [8, 1, 1]),
            ((0, 99, 1), 10, [0, 9, 1]),
            ((1, 1, 1), 10, [4, 3, 3]),
            ((0, 0, 0), 10, [0, 0, 0]),
            ((7, 0, 0), 5, [5, 0, 0]),
        ],
    )
    def test_cells(self, parts: tuple[int, ...], width: int, given: list[int]) -> None:
        assert cells(parts, width) == given

    @pytest.mark.parametrize(
        ("encoding", "glyphs"), [("utf-8", Glyphs()), ("ascii", ASCII), ("latin-1", ASCII), ("no", ASCII)]
    )
    def test_glyphs(self, encoding: str, glyphs: Glyphs) -> None:
        assert glyphs_for(encoding) == glyphs


@pytest.mark.parametrize(
    ("answer", "encoding", "shown"),
    [
        (" a\n b ", "utf-8", "a b"),
        ("\x1b[31mred\x07", "utf-8", "?[31mred?"),
        ("rød", "ascii", "r?d"),
        ("x" * 41, "utf-8", "x" * 37 + "..."),
    ],
)
def test_an_answer_cannot_steer_the_terminal(answer: str, encoding: str, shown: str) -> None:
    assert printable(answer, encoding) == shown


def _said(change: str, **figures: Any) -> str:
    known = {"prompt_tokens": 300, "read_tokens": 256, "history_tokens": 224, "images": 2, "new_images": 0}
    return explain(replace(RESULTS[0], change=change, **{**known, "encoder_runs": 0, "encoder_hits": 0, **figures}))


class TestSentences:
    @pytest.mark.parametrize(
        ("change", "figures", "said"),
        [
            ("question", {}, "The whole history was read; only the 44 tokens from its end on were computed."),
            (
                "question",
                {"read_tokens": 192},
                "Less was read than the turn before left in the cache: 192 of 224 tokens.",
            ),
            ("question", {"history_tokens": None}, "256 of 300 tokens were read and 44 computed."),
            ("question", {"read_tokens": None}, "What was reused cannot be said: the engine does not report it."),
            ("first", {}, "The engine had seen the start of this before: 256 of 300 tokens were read."),
            ("first", {"read_tokens": 0}, "Nothing of it was in the cache: all 300 tokens were computed."),
            (
                "picture",
                {"new_images": 1, "encoder_runs": 1},
                "The whole history was read; 44 tokens from its end on were computed, and only the new picture was "
                "encoded.",
            ),
            (
                "picture",
                {"new_images": 1, "encoder_runs": 3},
                "The whole history was read; 44 tokens from its end on were computed.",
            ),
            (
                "encoding",
                {"read_tokens": 64},
                "Less was read than the turn before left in the cache: 64 of 224 tokens.",
            ),
            (
                "encoding",
                {"encoder_runs": None},
                "Other files, same pixels: the gateway takes them for the same pictures, so the whole history was "
                "read.",
            ),
        ],
    )  # fmt: skip
    def test_follow_the_figures(self, change: str, figures: dict[str, Any], said: str) -> None:
        assert _said(change, **figures) == said

    @pytest.mark.parametrize(
        ("figures", "breaks"),
        [
            ({"read_tokens": 64, "encoder_hits": 2}, True),
            ({"read_tokens": 64, "encoder_runs": 1, "encoder_hits": 1}, True),
            # A picture was not needed: the engine knew this conversation without the dropped one.
            ({"read_tokens": 200, "encoder_hits": 1}, False),
            ({"read_tokens": 64, "encoder_runs": None, "encoder_hits": None}, True),
            ({"read_tokens": 200, "encoder_runs": None, "encoder_hits": None}, False),
            ({"read_tokens": 64, "encoder_runs": None, "encoder_hits": None, "visual_tokens": None}, False),
        ],
    )
    def test_a_break_is_said_where_all_later_pictures_were_needed(self, figures: dict[str, Any], breaks: bool) -> None:
        said = _said("dropped", **figures)
        assert said.startswith("The conversation no longer matches from the dropped picture on") == breaks
        assert (
            breaks
            or said == f"{figures['read_tokens']} of 300 tokens were read and {300 - figures['read_tokens']} computed."
        )

    def test_pictures_that_were_encoded_again_are_said(self) -> None:
        assert "1 later picture came from the encoder cache, 1 picture encoded again" in _said(
            "dropped", read_tokens=64, encoder_runs=1, encoder_hits=1
        )


class TestSums:
    def test_unreported_is_no_zero(self) -> None:
        sums = totals([RESULTS[0], replace(RESULTS[1], read_tokens=None, write_tokens=None, uncached_tokens=None)])
        assert summary(sums)[0] == "2,450 prompt tokens; the engine does not report what it read."
        assert len(summary(sums)) == 3

    def test_a_derived_figure_says_so(self) -> None:
        assert any("derived" in line for line in summary(totals([replace(RESULTS[0], write_derived=True)])))
        assert not any("derived" in line for line in summary(totals(RESULTS)))

    def test_nothing_computed_divides_nothing(self) -> None:
        sums = totals([replace(RESULTS[0], read_tokens=1200, write_tokens=0, uncached_tokens=0)])
        assert summary(sums)[1].endswith("it would have been all 1,200.")
