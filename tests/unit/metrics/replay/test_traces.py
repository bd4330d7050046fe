"""Generated sessions: the same every time, and as they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from pydantic_core import from_json, to_json

from context.errors import ConfigError
from context.transcript import transcript
from metrics.replay.images import trace_images
from metrics.replay.options import Sizes
from metrics.replay.trace import Trace, read, write
from metrics.replay.traces import KINDS, load_trace

SMALL = Sizes((56, 48), 0.05)
SPECS = (
    "t1:steps=22",
    "t1:steps=9,images=2",
    "t1:steps=6,time=on",
    "t1:steps=9,window=keep3_delete",
    "t1:steps=9,window=keep3_placeholder",
    "t1:steps=9,window=keep5_message",
    "t1:steps=12,window=chunk3_3",
    "t1:steps=12,window=turns8",
    "t1:steps=12,window=halve8",
    "t1:steps=6,window=state",
    "t1:steps=6,window=tail",
    "t2",
    "t2:time=on",
    "t3",
    "t4",
    "t5",
    "t5:variant=b",
    "t5:variant=c",
    "t5:long=on",
    "t6:events=160",
    "t6:events=12,time=on,info=on",
)


@pytest.mark.parametrize("spec", SPECS)
async def test_what_a_trace_expects_is_so(spec: str) -> None:
    """Against the transcript and the image identities of the product."""
    trace = load_trace(spec, SMALL)
    before: list[bytes] = []
    had = 0
    async with trace_images() as images:
        for turn in trace.turns:
            wires = await images.resolved(turn.messages)
            messages = transcript(wires, b"").messages
            ids = [part.ref.image_id for message in messages for _, part in message.images]
            expect = turn.expect
            assert expect is not None
            assert (expect.occurrences, expect.unique_images) == (len(ids), len(set(ids))), turn.number
            now = [message.digest for message in messages]
            same = next((at for at, one in enumerate(before) if now[at : at + 1] != [one]), None)
            assert (expect.first_diff and expect.first_diff["message"]) == same, turn.number
            came = sum(part.get("type") != "text" for one in turn.new for part in _parts(one))
            assert expect.eviction == (len(ids) < had + came) or spec.startswith(("t4", "t6")), turn.number
            had = len(ids)
            (reply,) = transcript(await images.resolved([turn.reply]), b"").messages
            before = [*now, reply.digest]


def _parts(message: Any) -> list[dict[str, Any]]:
    content: Any = message.get("content")
    return cast("list[dict[str, Any]]", content) if isinstance(content, list) else []


@pytest.mark.parametrize("name", KINDS)
def test_the_same_seed_gives_the_same_bytes(name: str) -> None:
    first, again = load_trace(f"{name}:seed=3", SMALL), load_trace(name, Sizes((56, 48), 0.05, 3))
    other = load_trace(f"{name}:seed=4", SMALL)
    assert to_json(first.turns) == to_json(again.turns)
    assert to_json(first.turns) != to_json(other.turns)


def test_t1_is_as_described() -> None:
    trace = load_trace("t1", SMALL)
    assert len(trace.turns) == 60
    urls = [turn.messages[-1]["content"][1]["image_url"]["url"] for turn in trace.turns]
    assert [at + 1 for at in range(1, 60) if urls[at] == urls[at - 1]] == list(range(7, 60, 7))
    called = [turn.number for turn in trace.turns if turn.reply.get("tool_calls")]
    assert called == [20, 40]
    assert [message["role"] for message in trace.turns[20].new] == ["tool", "tool", "user"]
    assert trace.turns[-1].expect is not None
    assert trace.turns[-1].expect.unique_images == 52


def test_t3_holds_nine_pictures_of_which_six_differ() -> None:
    last = load_trace("t3", SMALL).turns[-1].expect
    assert last is not None
    assert (last.unique_images, last.occurrences) == (6, 9)


def test_t4_changes_its_history_where_it_says() -> None:
    trace = load_trace("t4", SMALL)
    places = {turn.number: turn.expect.first_diff for turn in trace.turns if turn.expect and turn.expect.first_diff}
    assert places == {3: {"message": 1, "part": 1}, 4: {"message": 1, "part": 4}, 5: {"message": 3, "part": 1}}
    assert [turn.number for turn in trace.turns if turn.expect and turn.expect.eviction] == [5]
    assert trace.limits == {"max_images": 4}
    last = trace.turns[-1].expect
    assert last is not None
    assert last.occurrences == 5


def test_t6_shuffles_permutes_and_sums_up() -> None:
    trace = load_trace("t6", SMALL)
    names = [[tool["function"]["name"] for tool in turn.tools or ()] for turn in trace.turns]
    assert [at + 1 for at in range(1, 180) if names[at] != names[at - 1]] == [60]
    assert sorted(names[0]) == sorted(names[-1])
    changed = [turn.number for turn in trace.turns if turn.expect and turn.expect.first_diff]
    assert changed == [100, 150]
    photo = trace.turns[2].messages[-1]
    assert all(photo in turn.messages for turn in trace.turns[2:]), "the user's photo stays"
    old = [turn.messages[3]["tool_calls"][0]["function"]["arguments"] for turn in trace.turns[1:99]]
    assert old[72] != old[73] == old[-1]
    assert from_json(old[72]) == from_json(old[73])
    assert [turn.number for turn in trace.turns if turn.expect and turn.expect.eviction] == [100, 150]


def test_everything_is_the_session_without_any_cut() -> None:
    whole, cut = load_trace("t1:steps=9", SMALL), load_trace("t1:steps=9,window=turns8", SMALL)
    assert len(cut.turns[-1].messages) < len(whole.turns[-1].messages)
    assert cut.everything() == whole.everything() == list(whole.turns[-1].messages)
    told = {3: {"role": "assistant", "content": "other"}}
    assert sum(one == told[3] for one in whole.everything(told)) == 1


@pytest.mark.parametrize("spec", ["t1:steps=6,window=state", "t2", "t4"])
def test_a_trace_survives_its_file(spec: str, tmp_path: Path) -> None:
    trace = load_trace(spec, SMALL)
    write(trace, tmp_path / "mine.jsonl")
    again = read(tmp_path / "mine.jsonl")
    assert again.name == "mine"
    assert to_json(again.turns) == to_json(trace.turns)
    assert again.limits == trace.limits


def test_what_a_line_leaves_out_is_found(tmp_path: Path) -> None:
    trace = load_trace("t2", SMALL)
    file = tmp_path / "bare.jsonl"
    write(trace, file)
    lines = [from_json(line) for line in file.read_bytes().splitlines()]
    bare = [{"turn": line["turn"], "messages": line["messages"]} for line in lines]
    file.write_bytes(b"\n".join(map(to_json, bare)))
    again: Trace = read(file)
    assert [to_json(turn.new) for turn in again.turns] == [to_json(turn.new) for turn in trace.turns]
    assert [turn.reply for turn in again.turns[:-1]] == [turn.reply for turn in trace.turns[:-1]]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("t9", "is neither one of t1"),
        ("t1:window=keep0_delete", "is no way to cut"),
        ("t1:steps=none", "whole number"),
        pytest.param("t1:steps=" + "9" * 5000, "whole number", id="t1:steps=9..."),
        pytest.param(f"t1:window=keep{'9' * 5000}_delete", "is no way to cut", id="t1:window=keep9..."),
        ("t1:speed=3", "is no option of it"),
        ("t1:size=big", "such as 1280x800"),
        ("t1:text=0", "factor above 0"),
        ("t1:calls=maybe", "takes on or off"),
        ("t5:variant=d", "takes one of a, b, c"),
    ],
)
def test_a_bad_name_or_option_is_explained(spec: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_trace(spec, SMALL)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"{", "line 1: is not JSON"),
        (b'{"messages": []}', "line 1: needs messages"),
        (b'{"messages": [{"role": "user"}], "limits": {"max_images": "4"}}', "line 1: limits.max_images takes a whole"),
        (b'{"messages": [{"role": "user", "content": "a"}]}\n{"messages": [3]}', r"line 2: messages\[0\] needs a role"),
    ],
)
def test_a_bad_file_is_explained(content: bytes, words: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        load_trace(str(file))


def test_the_page_tells_every_option() -> None:
    rows = Path("docs/replay.md").read_text().splitlines()
    for name, kind in KINDS.items():
        (row,) = [row for row in rows if row.startswith(f"| `{name}` |")]
        assert [option for option in kind.defaults if f"`{option}`" not in row] == []
