"""Long work says how far it is, also where nobody has a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from app.progress import progress

STEPS = (
    ("questions", "question 1 of 3"),
    ("questions", "the second question"),
    ("questions", "question 3 of 3"),
    ("engine", "question 1 of 2"),
    ("engine", "question 2 of 2"),
)


def told(every_seconds: float) -> list[str]:
    """What is written for the steps into something that is no terminal."""
    said = io.StringIO()
    with progress(Console(file=said, width=20), "begins with [words]", every_seconds) as say:
        for step in STEPS:
            say(*step)
    return said.getvalue().splitlines()


def test_a_stage_is_told_when_it_begins_and_its_steps_now_and_then() -> None:
    assert told(3600.0) == ["begins with [words]", "question 1 of 3", "question 1 of 2"]
    assert told(0.0) == ["begins with [words]", *(text for _, text in STEPS)]


def test_a_terminal_has_one_line_that_changes() -> None:
    said = io.StringIO()
    with progress(Console(file=said, width=40, force_terminal=True), "begins") as say:
        say("questions", "question 1 of 3")
    assert "question 1 of 3" in said.getvalue()
    # Control codes take it away again; nothing stays as a line.
    assert "\x1b[2K" in said.getvalue()
