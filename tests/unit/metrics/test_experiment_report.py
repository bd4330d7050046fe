"""The experiment's table and picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from PIL import Image
from rich.console import Console

from metrics.experiment import Row
from metrics.experiment_groups import GROUPS
from metrics.experiment_report import plot, table

_BLACK, _READ = (0, 0, 0), (0x2A, 0x9D, 0x8F)


def _rows(read: int | None = 640, verdict: str = "ok", *, derived: bool = False) -> list[Row]:
    return [
        Row(
            group=group,
            change=change,
            path=cast("Any", path),
            prompt_tokens=1234,
            read_tokens=read,
            write_tokens=560,
            write_derived=derived,
            uncached_tokens=34,
            visual_tokens=360,
            images=3,
            unique_images=3,
            encoder_runs=None,
            encoder_hits=2,
            first_difference=None,
            ttft_seconds=0.012,
            total_seconds=0.02,
            expected={"read_tokens": 640, "encoder_runs": 0, "encoder_hits": 2, "rule": "r"},
            verdict=verdict,
        )
        for group, change in list(GROUPS.items())[:2]
        for path in ("direct", "gateway")
    ]


def _shown(rows: list[Row]) -> str:
    console = Console(width=180, force_terminal=True, color_system="standard", legacy_windows=False)
    with console.capture() as captured:
        console.print(table(rows))
    return captured.get()


class TestTable:
    def test_a_row_for_each_with_measured_and_expected(self) -> None:
        shown = _shown(_rows(read=1600))
        assert table(_rows()).row_count == 4
        for text in ("A identical", "B text appended", "direct", "gateway", "1,234", "1,600", "640", "2/2", "12 ms"):
            assert text in shown
        assert "derived" not in shown

    def test_unreported_is_no_zero(self) -> None:
        shown = _shown(_rows(read=None))
        assert "?/0" in shown
        assert " ? " in shown

    def test_a_derived_figure_says_so(self) -> None:
        assert "written tokens; they are derived" in _shown(_rows(derived=True))

    def test_no_figure_is_cut_in_a_narrow_terminal(self) -> None:
        console = Console(width=80, force_terminal=False)
        with console.capture() as captured:
            console.print(table(_rows()))
        for text in ("uncached", "1,234", "640", "560", "12 ms"):
            assert text in captured.get()

    @pytest.mark.parametrize(
        ("verdict", "colour"),
        [("ok", "32"), ("ok (encoder figures are unreported)", "32"), ("read 0 tokens instead of 16", "31")],
    )
    def test_what_fails_is_red(self, verdict: str, colour: str) -> None:
        assert f"\x1b[{colour}m{verdict}" in _shown(_rows(verdict=verdict))


class TestPlot:
    def _drawn(self, file: Path, rows: list[Row]) -> tuple[tuple[int, int], dict[tuple[int, ...], int]]:
        plot(rows, file)
        with Image.open(file) as picture:
            assert picture.format == "PNG"
            pixels = picture.convert("RGB")
            colours = cast("list[tuple[int, tuple[int, ...]]]", pixels.getcolors(pixels.width * pixels.height))
            return pixels.size, {colour: count for count, colour in colours}

    def test_grows_with_its_rows(self, tmp_path: Path) -> None:
        # 10 inches by 0.42 a row and 1.8 more, at 130 dots an inch.
        two, _ = self._drawn(tmp_path / "two.png", _rows()[:2])
        four, colours = self._drawn(tmp_path / "four.png", _rows())
        assert (two, four) == ((1300, 343), (1300, 452))
        # The ticks that say what should be read, and the bars.
        assert colours[_BLACK] > 100

    def test_bars_are_as_long_as_what_was_read(self, tmp_path: Path) -> None:
        _, little = self._drawn(tmp_path / "a.png", _rows(read=100))
        _, much = self._drawn(tmp_path / "b.png", _rows(read=1000))
        _, unreported = self._drawn(tmp_path / "c.png", _rows(read=None))
        assert much[_READ] > 2 * little[_READ] > 2 * unreported[_READ]
