"""`stillframe export` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.cli import main
from context.ledger import Ledger
from tests.contract.ledger_chats import converse


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STILLFRAME_DATA_DIR", str(tmp_path / "data"))
    return tmp_path


async def _recorded(folder: Path) -> None:
    (folder / "data").mkdir(exist_ok=True)
    ledger = await Ledger.open(folder / "data" / "ledger.db")
    await converse(ledger, 2, "c1", "alice")
    await converse(ledger, 1, "c2", "bob")
    await ledger.close()


def _run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["export", *arguments])
    return ended.value.code  # pyright: ignore[reportReturnType]


@pytest.mark.parametrize("format", ["openai", "token_ids", "mooncake"])
def test_each_format(folder: Path, format: str, capsys: pytest.CaptureFixture[str]) -> None:
    import asyncio

    asyncio.run(_recorded(folder))
    file, told = folder / "out.jsonl", folder / "told.json"
    assert _run("--format", format, "--out", str(file), "--json", str(told)) == 0
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(lines) == 3
    assert json.loads(told.read_text()) == {"format": format, "file": str(file), "turns": 3, "unplaced": 0}
    assert f"3 turns are in {file}." in capsys.readouterr().err
    if format == "mooncake":
        assert lines[0]["block_size"] == 512
    if format == "token_ids":
        # By the demo model's own tokenizer.
        assert max(lines[0]["token_ids"]) >= 2**31
        assert lines[0]["spans"][1]["image_id"] == f"{0:064x}"


def test_one_tenants_turns_to_standard_output(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import asyncio

    asyncio.run(_recorded(folder))
    assert _run("--tenant", "bob", "--out", "-") == 0
    shown = capsys.readouterr()
    [line] = [json.loads(line) for line in shown.out.splitlines()]
    assert line["tenant"] == "bob"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--out", "x", "--block-tokens", "0", "--format", "mooncake"], "--block-tokens"),
        (["--out", "x", "--url", "http://127.0.0.1:1"], "--url"),
        (["--out", "-", "--json", "-"], "--json"),
        (["--out", "nowhere/x"], "folder does not exist"),
        (["--out", "x", "--format", "token_ids", "--upstream", "http://127.0.0.1:1"], "--url"),
        (["--out", "x"], "no gateway has served a chat"),
    ],
)
def test_faults_name_their_place(
    folder: Path,
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    if "--upstream" in arguments:
        import asyncio

        asyncio.run(_recorded(folder))
    assert _run(*arguments) == 2
    assert words in capsys.readouterr().err
    assert not (folder / "x").exists()
