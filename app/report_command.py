"""`stillframe report`: what the recorded turns came to."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from rich.console import Console

from app.commands import check_writable, write_json
from app.settings import Settings
from context.errors import ConfigError
from metrics.records.figures import Split
from metrics.records.queries import SPLITS, Filter, Records, names, open_records
from metrics.report.base import as_json, make_report
from metrics.report.page import page
from metrics.report.tables import tables, told

_AGO = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_WIDTH = 150


def report(options: argparse.Namespace, settings: Settings) -> int:
    """Show a report. Exit status 0, also where there is nothing to report.

    Raises:
        ConfigError: an option is wrong, or there is no file of records.
    """
    now = time.time()
    of = Filter(
        moment_of("--since", options.since, now),
        moment_of("--until", options.until, now),
        options.tenant,
        options.model,
        options.policy,
    )
    if of.since is not None and of.until is not None and of.since >= of.until:
        raise ConfigError("flag", "--until", "must be later than --since")
    splits = splits_of(options.by or [])
    for file in (options.json, options.html):
        check_writable(file)
    if options.json is not None and str(options.json) == str(options.html):
        raise ConfigError("flag", "--html", "names the same file as --json; choose another")
    with open_records(options.file or settings.data_path / "ledger.db") as records:
        _check_names(records, of)
        made = make_report(records, of, splits, options.baseline, settings.price_table())
    if options.json is not None:
        write_json(options.json, as_json(made))
    if options.html is not None:
        _write(options.html, page(made))
    to_stdout = "-" in (str(options.json), str(options.html))
    is_terminal = (sys.stderr if to_stdout else sys.stdout).isatty()
    console = Console(stderr=to_stdout, width=None if is_terminal else _WIDTH)
    for line in told(made):
        console.print(line, highlight=False, markup=False)
    for table in tables(made):
        console.print(table)
    return 0


def moment_of(flag: str, given: str | None, now: float) -> float | None:
    """A moment in seconds since 1970: a date or time in ISO 8601, UTC where no zone is given, or how long ago it was.

    Raises:
        ConfigError: it is neither.
    """
    if given is None:
        return None
    if (ago := _AGO.fullmatch(given.strip().lower())) is not None:
        return now - float(ago[1]) * _UNITS[ago[2]]
    try:
        found = datetime.fromisoformat(given.strip())
        return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, OSError) as error:
        reason = "takes a time such as 2026-11-30 or 2026-11-30T14:00 (UTC), or how long ago, such as 30m, 12h or 7d"
        raise ConfigError("flag", flag, reason) from error


def splits_of(given: Sequence[str]) -> list[list[Split]]:
    """What to split by: each a name, or several with commas between them for all their combinations.

    Raises:
        ConfigError: there is no such split.
    """
    made: list[list[Split]] = []
    for words in given:
        chosen = [word.strip().replace("-", "_") for word in words.split(",") if word.strip()]
        for word in chosen:
            if word not in SPLITS:
                raise ConfigError("flag", "--by", f"there is no split {word[:32]!r}; take of {', '.join(SPLITS)}")
        split = cast("list[Split]", list(dict.fromkeys(chosen)))
        if split and split not in made:
            made.append(split)
    return made


def _check_names(records: Records, of: Filter) -> None:
    """A name that no record has is a mistake more often than a question.

    Raises:
        ConfigError: there is none of that name.
    """
    for kind in ("tenant", "model", "policy"):
        given = getattr(of, kind)
        if given is None:
            continue
        known = names(records, kind)
        if given not in known:
            shown = ", ".join(known[:12]) or "none"
            raise ConfigError("flag", f"--{kind}", f"there are no records of {given[:64]!r}; known are {shown}")


def _write(file: Path, text: str) -> None:
    """Write to a file, or to standard output for `-`.

    Raises:
        ConfigError: it cannot be written.
    """
    if str(file) == "-":
        sys.stdout.write(text)
        return
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError("flag", str(file), f"cannot be written ({error.strerror}); name another file") from error
