"""`stillframe report`: from a file to a terminal, JSON and a page."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from app.cli import main
from app.report_command import moment_of, splits_of
from context.errors import ConfigError, StillframeError
from context.store.turn_reader import TurnReader
from context.store.turn_rows import TurnStoreError
from metrics.records import queries
from metrics.records.queries import open_records
from metrics.records.record import TurnRecord
from metrics.records.store import RecordStore
from tests.unit.metrics.records.some import BEGIN, many, record

_MADE = many(600, 24 * 3)


def _file(folder: Path, records: list[TurnRecord]) -> str:
    store = RecordStore(folder / "ledger.db", 0.5)
    store.write(records)
    store.close()
    return str(folder / "ledger.db")


def _run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["report", *arguments])
    return int(ended.value.code or 0)


class _Page(HTMLParser):
    """Tags that are closed, attributes, and the texts of table rows and of plots."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.rows: list[list[str]] = []
        self.labels: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in ("meta",):
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag == "svg":
            self.labels.append(dict(attrs).get("aria-label") or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def _read(page: str) -> _Page:
    read = _Page()
    read.feed(page)
    assert read.open == []
    return read


def test_json_says_what_the_records_say(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    assert _run("--file", _file(tmp_path, _MADE), "--by", "policy", "--by", "model,outcome", "--json", str(out)) == 0
    found = json.loads(out.read_text())
    told = [one for one in _MADE if one.read_tokens is not None]
    prompt, read = sum(one.prompt_tokens or 0 for one in told), sum(one.read_tokens or 0 for one in told)
    assert found["totals"]["requests"] == 600
    assert found["totals"]["read_ratio"] == pytest.approx(read / prompt)
    assert found["totals"]["computed_tokens"] == prompt - read
    assert {row["policy"] for row in found["splits"]["policy"]} == {"stable", "batched"}
    assert sum(row["requests"] for row in found["splits"]["model,outcome"]) == 600
    assert {row["outcome"] for row in found["splits"]["model,outcome"]} == {"completed", "aborted", "failed"}
    assert sum(row["requests"] for row in found["over_time"]) == 600
    assert {one["policy"] for one in found["policies"]} == {"stable", "batched"}


def test_one_policy_of_one_tenant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = _file(tmp_path, _MADE)
    assert _run("--file", file, "--tenant", "alice", "--policy", "batched", "--json", "-") == 0
    found = json.loads(capsys.readouterr().out)
    chosen = [one for one in _MADE if (one.tenant, one.policy) == ("alice", "batched")]
    assert found["totals"]["requests"] == len(chosen)
    assert found["totals"]["lost_tokens"] == sum(one.lost_tokens or 0 for one in chosen)


def test_the_terminal_says_what_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("--file", _file(tmp_path, _MADE), "--by", "policy") == 0
    shown = capsys.readouterr().out
    for heading in ("By turn", "With and without image eviction", "by lost tokens", "By policy", "95% intervals"):
        assert heading in shown
    causes = re.findall(r"^ (template|salt|cold) ", shown, re.M)
    lost = {one: sum(r.lost_tokens or 0 for r in _MADE if r.cause == one) for one in causes}
    assert causes == sorted(causes, key=lambda cause: -lost[cause])
    assert len(causes) == 3


def test_latency_evictions_and_what_reading_is_worth(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STILLFRAME_PRICES", '[{model: "*", input: 4, cached_input: 1, output: 9}]')
    evicted = {"cause": "engine_eviction", "actor": "engine", "lost_tokens": 1000, "evicted_conversation": "c1"}
    made = [record(BEGIN + at, prompt_tokens=9000, read_tokens=8000, first_token_seconds=0.1) for at in range(19)]
    made.append(record(BEGIN + 50, number=7, read_tokens=0, **evicted, first_token_seconds=4.0))
    file, out, page = _file(tmp_path, made), tmp_path / "r.json", tmp_path / "r.html"
    assert _run("--file", file, "--by", "policy", "--json", str(out), "--html", str(page)) == 0
    found, shown = json.loads(out.read_text()), capsys.readouterr().out
    assert found["saved"] == pytest.approx(19 * 8000 * 3 / 1e6)
    assert found["wasted"] == pytest.approx(1000 * 3 / 1e6)
    assert "reading saved 0.4560" in shown
    (all_turns,) = found["latency"]["all"]
    assert all_turns["first_token"]["p50"] == pytest.approx(0.1, rel=0.15)
    assert all_turns["first_token"]["p99"] == pytest.approx(4.0, rel=0.3)
    assert [row["values"] for row in found["latency"]["policy"]] == [["stable"]]
    (paid,) = found["evicted"]
    assert (paid["conversation"], paid["paid_turn"], paid["lost_tokens"]) == ("c1", 7, 1000)
    rows = [row for row in _read(page.read_text()).rows if row[:3] == ["c1", "text", "itself"]]
    assert rows == [["c1", "text", "itself", "7", "1", "1,000"]]
    assert re.search(r"c1 +text +itself +7 +1 +1,000", shown)
    assert "first p50" in shown


def test_loaded_tokens_have_a_column_where_there_are_any(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loaded = record(BEGIN, prompt_tokens=1000, read_tokens=100, write_tokens=300, uncached_tokens=50, loaded_tokens=550)
    out = tmp_path / "r.html"
    for records, has_any in (([record()], False), ([loaded], True)):
        folder = tmp_path / str(has_any)
        folder.mkdir()
        file = _file(folder, records)
        assert _run("--file", file, "--html", str(out)) == 0
        shown, text = capsys.readouterr().out, out.read_text()
        assert ("550 loaded from the pool of images' KV" in shown) == has_any
        assert (re.search(r"read +loaded +computed", shown) is not None) == has_any
        assert ('<i class="loaded"></i>loaded' in text) == has_any
        assert all(("loaded" in row) == has_any for row in _read(text).rows if row[:2] == ["turn", "requests"])
        assert all(len(line) <= 80 for line in shown.splitlines() if "loaded " in line and "  " in line)
    assert _run("--file", file, "--json", "-") == 0
    totals = json.loads(capsys.readouterr().out)["totals"]
    parts = ("read_tokens", "loaded_tokens", "write_tokens", "uncached_tokens")
    assert sum(totals[part] for part in parts) == totals["prompt_tokens"] == 1000
    assert totals["computed_tokens"] == 350


def test_times_to_the_first_token_and_of_the_whole_answer_are_of_the_same_requests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = record(BEGIN, first_token_seconds=2.0, total_seconds=3.0)
    refused = record(BEGIN + 1, outcome="refused", first_token_seconds=None, total_seconds=0.01)
    aborted = record(BEGIN + 2, outcome="aborted", first_token_seconds=9.0, total_seconds=9.5)
    assert _run("--file", _file(tmp_path, [slow, refused, aborted])) == 0
    assert "First token after 2.0 s, whole answer after 3.0 s" in capsys.readouterr().out
    (tmp_path / "none").mkdir()
    assert _run("--file", _file(tmp_path / "none", [refused])) == 0
    assert "First token" not in capsys.readouterr().out


def test_the_page_stands_alone_and_has_its_values_as_tables(tmp_path: Path) -> None:
    out = tmp_path / "r.html"
    made = [*_MADE, record(BEGIN + 5, policy="stable", model="<script>alert(1)</script>")]
    assert _run("--file", _file(tmp_path, made), "--by", "policy", "--by", "model", "--html", str(out)) == 0
    text = out.read_text()
    page = _read(text)
    assert "<script>alert" not in text
    assert not [one for one in page.attributes if one[1] in ("src", "href", "xlink:href", "onload", "onclick")]
    assert "url(" not in text
    assert "prefers-color-scheme: dark" in text
    assert ("html", "lang", "en") in page.attributes
    # Each plot has a name; and its values stand in a table.
    assert len(page.labels) >= 6
    assert all(page.labels)
    turns = {row[0]: row for row in page.rows}
    first = [one for one in made if one.number == 1]
    assert turns["1"][1] == f"{len(first):,}"
    assert [row[0] for row in page.rows if row[0] in ("none", "0-10%")] == ["none", "0-10%"]


def test_bars_are_as_high_as_their_values(tmp_path: Path) -> None:
    from metrics.report.charts import Series, stacked_bars

    drawn = stacked_bars("x", ["a", "b"], [Series("r", "read", [100, 50]), Series("w", "write", [0, 100])], "tokens")
    heights = [float(one) for one in re.findall(r'<rect class="\w+"[^>]*height="([\d.]+)"', drawn)]
    assert heights == [pytest.approx(2 * heights[1], abs=0.2), heights[1], pytest.approx(heights[0], abs=0.2)]
    assert "b: 100 tokens, w" in drawn


def test_nothing_and_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = _file(tmp_path, []), tmp_path / "r.html"
    assert _run("--file", file, "--html", str(out), "--by", "policy") == 0
    assert "There are no records yet." in capsys.readouterr().out
    assert "There are no records yet." in out.read_text()
    _file(tmp_path, [record(prompt_tokens=None, read_tokens=None)])
    assert _run("--file", file, "--html", str(out), "--by", "policy") == 0
    shown = capsys.readouterr().out
    assert "1 request, 0 with cache figures" in shown
    assert "Of 1 request with 0 prompt tokens the engine did not say" in shown
    _read(out.read_text())
    assert _run("--file", file, "--until", "2001-01-01") == 0
    assert "no records of these turns. The file has some from 2026-09-21" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--file", "nothing.db"], "there is no such file"),
        (["--by", "colour"], "there is no split 'colour'; take of model, policy"),
        (["--since", "soon"], "--since: takes a time such as"),
        (["--since", "1h", "--until", "2h"], "--until: must be later"),
        (["--tenant", "nobody"], "there are no records of 'nobody'; known are alice, bob"),
        (["--json", "-", "--html", "-"], "names the same file"),
    ],
)
def test_what_is_wrong_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    file = [] if "--file" in arguments else ["--file", _file(tmp_path, _MADE[:40])]
    assert _run(*file, *arguments) == 2
    told = capsys.readouterr().err
    assert words in told
    assert "Traceback" not in told


def test_a_file_of_records_that_cannot_be_read_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made: dict[str, tuple[Callable[[Path], object], str]] = {
        "folder": (lambda path: path.mkdir(), "is a folder; name the file in it"),
        "pipe": (os.mkfifo, "is a pipe or a device; name a file"),
        "text": (lambda path: path.write_text("no database " * 400), "is damaged, or no file of a gateway's"),
        "empty": (lambda path: path.touch(), "holds no records"),
    }
    for name, (make, words) in made.items():
        make(tmp_path / name)
        assert _run("--file", str(tmp_path / name)) == 2
        assert f"{tmp_path / name}: {words}" in capsys.readouterr().err
        if name != "empty":
            with pytest.raises(StillframeError) as told:
                TurnReader(tmp_path / name)
            assert words in (told.value.remedy if isinstance(told.value, TurnStoreError) else str(told.value))


def test_a_file_that_is_locked_is_not_called_damaged(tmp_path: Path) -> None:
    file = Path(_file(tmp_path, _MADE[:40]))
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode = DELETE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(ConfigError, match="is locked by another program; close what has it open"):
            open_records(file, busy_seconds=0.01)
        with pytest.raises(TurnStoreError) as told:
            TurnReader(file, busy_seconds=0.01)
        assert told.value.remedy.startswith("is locked by another program")
    with open_records(file, busy_seconds=0.01) as records:
        assert queries.totals(records).requests == 40


def test_a_data_folder_without_records(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setenv("STILLFRAME_DATA_DIR", str(tmp_path))
    assert _run() == 2
    assert "a gateway makes it as data_dir/ledger.db" in capsys.readouterr().err
    _file(tmp_path, _MADE[:40])
    assert _run() == 0
    assert "40 requests" in capsys.readouterr().out


def test_moments_and_splits() -> None:
    assert moment_of("--since", "1.5h", 10_000.0) == 4600.0
    assert moment_of("--since", "1970-01-02", 0.0) == 86_400.0
    assert moment_of("--since", "1970-01-01T02:00+02:00", 9.0) == 0.0
    assert splits_of(["policy", "Model".lower() + ", multi-turn", "policy"]) == [["policy"], ["model", "multi_turn"]]
    with pytest.raises(ConfigError, match="no split"):
        splits_of(["policy,x"])
