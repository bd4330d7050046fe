"""`stillframe policy`: what it prints, and with which status it ends."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from app.cli import main
from context.policies.document import PRESETS

BAD = 'name: mine\nversion: "1"\nkind: batched\nbatched:\n  high: 2\n  low: 4\nnonsense: 1\n'
MINE = 'name: mine\nversion: "1"\nkind: batched\nbatched: {high: 4, low: 2}\n'


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert run("policy", "check", *arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("policy", "--help") == 0
    assert {"check", "list"} <= set(re.findall(r"^\s+(\w+)", capsys.readouterr().out, re.M))
    assert run("policy", "check", "--help") == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("FILE|NAME", "--steps", "--json"))


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("policy", "list") == 0
    shown = capsys.readouterr().out
    assert [line.split()[0] for line in shown.splitlines()[1:7]] == list(PRESETS)
    assert run("policy", "list", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["policies"]
    assert [row["name"] for row in rows] == list(PRESETS)
    assert all(row["description"] for row in rows)


def test_faults_end_with_2_and_are_all_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(BAD)
    assert run("policy", "check", str(file)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"{file}:5: batched.high: must be above low, which is 4" in err
    assert f"{file}:7: nonsense: there is no such key" in err


@pytest.mark.parametrize(
    ("settings", "words", "force"),
    [
        ("policy: {file}", "for all that no rule takes", [("default", None, None, None)]),
        ("policy: stable", "The settings name it nowhere", []),
        (
            "policy: stable\npolicy_rules:\n  - {{model: 'qwen*', share: 0.25, policy: {file}}}",
            "for 0.25 of the conversations of model qwen* that no rule before took",
            [("rule", "qwen*", None, 0.25)],
        ),
        (
            "policy: stable\npolicy_headers: [{file}]\npolicy_rules:\n  - {{tenant: acme, policy: {file}}}",
            "for all conversations of tenant acme that no rule before took; where a client asks for it",
            [("rule", None, "acme", None), ("header", None, None, None)],
        ),
    ],
)
def test_a_check_says_for_whom_the_settings_have_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: str, words: str, force: list[tuple[Any, ...]]
) -> None:
    file, config = tmp_path / "mine.yaml", tmp_path / "settings.yaml"
    file.write_text(MINE)
    config.write_text(settings.format(file=file))
    assert run("policy", "check", str(file), "--config", str(config)) == 0
    assert words in capsys.readouterr().out
    rows = report(capsys, str(file), "--config", str(config))["in_force"]
    assert [(row["by"], row["model"], row["tenant"], row["share"]) for row in rows] == force


def test_a_policy_is_checked_without_settings_that_can_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STILLFRAME_PORT", "no port")
    assert run("policy", "check", "stable") == 0
    assert "settings" not in capsys.readouterr().out
    assert run("policy", "check", "stable", "--config", str(tmp_path / "nothing.yaml")) == 2


def test_a_check_shows_parameters_turns_and_the_difference_to_stable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(MINE)
    assert run("policy", "check", str(file), "--steps", "8") == 0
    shown = capsys.readouterr().out
    assert "mine 1 (batched) can be used." in shown
    assert re.search(r"^batched\.high +4 +20 +above it a batch is evicted", shown, re.M)
    assert re.search(r"^layout\.volatile_roles +\[system, developer\] ", shown, re.M)
    assert re.search(r"^2 to 4 +2 to 4 ", shown, re.M)
    assert re.search(r"^5 +2 .* policy_eviction by policy at messages\[2\]", shown, re.M)
    assert re.search(r"^8 turns: .* breaks\. Against stable: \d\.\d\d of the computed tokens", shown, re.M)


def test_the_report_of_a_policy_that_evicts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(MINE)
    told = report(capsys, str(file), "--steps", "12")
    assert (told["name"], told["kind"], told["parameters"]["batched.high"]) == ("mine", "batched", 4)
    turns = told["turns"]
    assert [turn["turn"] for turn in turns] == list(range(1, 13))
    assert max(turn["images"] for turn in turns) == 4
    assert [turn["turn"] for turn in turns if turn["cause"]] == [5, 8, 11]
    summary = told["summary"]
    assert summary["computed_tokens"] == sum(turn["computed_tokens"] for turn in turns)
    assert summary["prompt_tokens"] < summary["stable"]["prompt_tokens"]
    assert summary["computed_tokens"] > summary["stable"]["computed_tokens"]


def test_what_the_presets_do_to_one_session(capsys: pytest.CaptureFixture[str]) -> None:
    found = {name: report(capsys, name, "--steps", "24") for name in PRESETS}
    stable = found["stable"]["summary"]
    # All but the answers, which are in the cache as they were made.
    assert 0.8 * stable["floor_tokens"] < stable["computed_tokens"] < stable["floor_tokens"]
    for name in ("observe", "stable", "reference"):
        assert found[name]["summary"]["breaks"] == 0
    assert found["observe"]["turns"] == found["stable"]["turns"]
    assert {turn["cause"] for turn in found["sliding"]["turns"][3:]} == {"policy_eviction"}
    assert found["sliding"]["summary"]["computed_tokens"] > 2 * stable["computed_tokens"]
    assert found["batched"]["summary"]["breaks"] == 1
    assert found["batched"]["summary"]["computed_tokens"] < 1.5 * stable["computed_tokens"]
    assert found["reference"]["summary"]["most_images"] == 1
    assert {turn["cause"] for turn in found["summary"]["turns"]} == {"", "summary"}
    assert found["summary"]["summary"]["longest_prompt_tokens"] < 17_000
    for told in found.values():
        # Only whole blocks can be read, and the first turn finds nothing.
        turns = told["turns"]
        assert turns[0]["computed_tokens"] == turns[0]["prompt_tokens"]
        assert all(0 < turn["computed_tokens"] <= turn["prompt_tokens"] + 20_000 for turn in turns)
