"""The experiment on a real gateway: sound caches give `ok` everywhere, and each kind of unsound cache shows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic_core import from_json, to_json

from context.errors import EngineUnavailable
from engine.base import EngineInfo, EngineReply
from engine.fake import FakeConfig
from metrics import experiment
from metrics.experiment import ROUTES, RULES, GatewayClient, Row, run
from metrics.experiment_groups import GROUPS, Group, pair
from metrics.usage import Usage
from tests.api.rig import ADMIN, CHAT, WatchedEngine, serving

ALL = tuple(GROUPS)
# Parts of a row that are proved by themselves.
common = experiment._common  # pyright: ignore[reportPrivateUsage]
compare = experiment._compare  # pyright: ignore[reportPrivateUsage]
expect = experiment._expect  # pyright: ignore[reportPrivateUsage]
place = experiment._place  # pyright: ignore[reportPrivateUsage]
verdict = experiment._verdict  # pyright: ignore[reportPrivateUsage]
with_images = experiment._with_images  # pyright: ignore[reportPrivateUsage]
Expected = experiment.Expected


class Forgetful(WatchedEngine):
    """Empties one of its caches before every chat."""

    def __init__(self, route: str) -> None:
        super().__init__()
        self._route = route

    @asynccontextmanager
    async def forward(
        self, method: str, path: str, *, headers: Mapping[str, str], body: Sequence[bytes] = ()
    ) -> AsyncGenerator[EngineReply]:
        if path == CHAT:
            async with super().forward("POST", self._route, headers={}) as reply:
                assert reply.status == 200
        async with super().forward(method, path, headers=headers, body=body) as reply:
            yield reply


class Blind(WatchedEngine):
    """Takes every picture for the same one, as a cache would that looks at tokens alone."""

    @asynccontextmanager
    async def forward(
        self, method: str, path: str, *, headers: Mapping[str, str], body: Sequence[bytes] = ()
    ) -> AsyncGenerator[EngineReply]:
        if path == CHAT:
            asked: dict[str, Any] = from_json(b"".join(body))
            contents = [message["content"] for message in asked["messages"]]
            for part in (
                part for content in contents if isinstance(content, list) for part in cast("list[Any]", content)
            ):
                if part["type"] == "image_url":
                    part["uuid"] = "any"
            body = [to_json(asked)]
        async with super().forward(method, path, headers=headers, body=body) as reply:
            yield reply


class Says(WatchedEngine):
    """Tells another block size than it has."""

    def __init__(self, block_tokens: int | None) -> None:
        super().__init__()
        self._block_tokens = block_tokens

    def info(self) -> EngineInfo:
        return replace(super().info(), block_tokens=self._block_tokens)


async def _rows(folder: Path, engine: WatchedEngine | None = None, groups: Sequence[Group] = ALL) -> list[Row]:
    async with serving(folder, engine) as (_, host, port):
        client = GatewayClient(f"http://{host}:{port}/", ADMIN["authorization"].removeprefix("Bearer "))
        async with client.connected():
            return await run(client, groups, seed=1)


def _failed(rows: Sequence[Row]) -> set[tuple[str, str]]:
    return {(row.group, row.path) for row in rows if not row.passed}


class TestSoundCaches:
    async def test_every_group_is_as_the_prompts_allow(self, tmp_path: Path) -> None:
        rows = await _rows(tmp_path)
        assert [(row.group, row.path) for row in rows] == [(group, path) for group in ALL for path in ROUTES]
        assert {row.verdict for row in rows} == {"ok"}
        for row in rows:
            assert row.expected["rule"] == RULES[row.group]  # pyright: ignore[reportArgumentType]
            assert (row.read_tokens, row.encoder_runs) == (row.expected["read_tokens"], row.expected["encoder_runs"])
            assert row.prompt_tokens == (row.read_tokens or 0) + (row.write_tokens or 0) + (row.uncached_tokens or 0)
            assert (row.read_tokens or 0) > 0
            assert not row.write_derived
            assert 0 < row.ttft_seconds <= row.total_seconds
            # 336 x 280 pixels of this engine's 28 x 28.
            assert row.visual_tokens == 120 * row.images

    @pytest.mark.case("MC-001")
    async def test_what_differs_is_what_the_groups_say(self, tmp_path: Path) -> None:
        rows = {(row.group, row.path): row for row in await _rows(tmp_path)}
        for path in ROUTES:
            read = {group: rows[group, path].read_tokens or 0 for group in ALL}
            assert read["D"] < read["E"] < read["A"]
            assert rows["A", path].first_difference is None
            assert rows["C", path].encoder_runs == 1
            # A prefix miss is no encoder miss.
            assert (rows["D", path].encoder_runs, rows["D", path].encoder_hits) == (0, 2)
            assert (rows["G", path].encoder_runs, rows["G", path].encoder_hits) == (0, 3)
        assert rows["F", "direct"].encoder_runs == 3
        assert rows["F", "gateway"].read_tokens == rows["A", "gateway"].read_tokens
        assert rows["F", "gateway"].first_difference is None
        difference = rows["F", "direct"].first_difference
        assert difference is not None
        assert (difference["message"], difference["part"]) == (1, 1)

    async def test_another_block_size_is_as_sound(self, tmp_path: Path) -> None:
        config = FakeConfig(block_tokens=48)
        rows = await _rows(tmp_path, WatchedEngine(config), ("B", "D", "G"))
        assert _failed(rows) == set()
        assert all((row.read_tokens or 0) % 48 == 0 for row in rows)


class TestUnsoundCaches:
    @pytest.mark.case("MC-024")
    async def test_a_prefix_cache_that_keeps_nothing(self, tmp_path: Path) -> None:
        rows = await _rows(tmp_path, Forgetful("/reset_prefix_cache"))
        assert _failed(rows) == {(group, path) for group in ALL for path in ROUTES}
        assert all(row.verdict.startswith("read 0 tokens instead of ") for row in rows)

    @pytest.mark.case("MC-036")
    async def test_a_prefix_cache_that_confuses_pictures(self, tmp_path: Path) -> None:
        rows = await _rows(tmp_path, Blind(), ("D", "F", "G"))
        assert {("F", "direct"), ("G", "direct"), ("G", "gateway")} <= _failed(rows)
        wrong = {(row.group, row.path): row for row in rows}
        for place_ in (("G", "direct"), ("G", "gateway"), ("F", "direct")):
            assert (wrong[place_].read_tokens or 0) > wrong[place_].expected["read_tokens"]

    async def test_an_encoder_cache_that_keeps_nothing(self, tmp_path: Path) -> None:
        rows = await _rows(tmp_path, Forgetful("/reset_encoder_cache"), ("D", "G"))
        assert _failed(rows) == {(group, path) for group in ("D", "G") for path in ROUTES}
        assert all(row.verdict.startswith("encoder runs ") and "read" not in row.verdict for row in rows)

    async def test_blocks_of_another_size_than_told(self, tmp_path: Path) -> None:
        rows = await _rows(tmp_path, Says(1), ("A", "D"))
        assert _failed(rows) == {(group, path) for group in ("A", "D") for path in ROUTES}

    @pytest.mark.case("MC-086")
    async def test_what_is_not_reported_is_not_ok(self, tmp_path: Path) -> None:
        rows = await _rows(tmp_path, WatchedEngine(FakeConfig(reports_cache=False)), ("A",))
        assert [row.verdict for row in rows] == ["read tokens are unreported"] * 2

    async def test_without_a_block_size_there_is_nothing_to_compare(self, tmp_path: Path) -> None:
        with pytest.raises(EngineUnavailable, match="size of its KV blocks"):
            await _rows(tmp_path, Says(None), ("A",))


class TestTheGatewayItself:
    async def test_a_wrong_token_says_so(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as (_, host, port):
            client = GatewayClient(f"http://{host}:{port}", "wrong")
            async with client.connected():
                with pytest.raises(EngineUnavailable, match="administrator"):
                    await run(client, ALL, seed=1)

    async def test_none_there_says_so(self) -> None:
        listener = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        listener.close()
        await listener.wait_closed()
        client = GatewayClient(f"http://127.0.0.1:{port}", "token")
        async with client.connected():
            with pytest.raises(EngineUnavailable, match="no gateway"):
                await run(client, ALL, seed=1)


def _verdict(read: int | None, runs: int | None, hits: int | None, *, tells_encoder: bool = True) -> str:
    usage = Usage(100, 1, read, None if read is None else 100 - read, None if read is None else 0)
    return verdict(usage, runs, hits, Expected(64, 1, 2, 70), tells_encoder=tells_encoder)


def _row(group: Group, path: str, read: int, said: str = "ok") -> Row:
    return Row(
        group, "", cast("Any", path), 100, read, 0, False, 0, 0, 0, 0, 0, 0, None, 0.1, 0.2, {"read_tokens": read}, said
    )


class TestVerdicts:
    @pytest.mark.parametrize(
        ("measured", "said"),
        [
            ((64, 1, 2), "ok"),
            ((48, 1, 2), "read 48 tokens instead of 64"),
            ((64, 0, 2), "encoder runs 0 instead of 1"),
            ((64, 1, 3), "encoder hits 3 instead of 2"),
            ((None, 1, 2), "read tokens are unreported"),
            ((64, None, None), "encoder figures are unreported"),
            ((0, 3, 0), "read 0 tokens instead of 64; encoder runs 3 instead of 1; encoder hits 0 instead of 2"),
        ],
    )
    def test_says_what_is_wrong(self, measured: tuple[int | None, int | None, int | None], said: str) -> None:
        assert _verdict(*measured) == said
        assert replace(_row("A", "direct", 0), verdict=said).passed == (said == "ok")

    def test_an_engine_that_cannot_tell_passes_with_a_note(self) -> None:
        said = _verdict(64, None, None, tells_encoder=False)
        assert said == "ok (encoder figures are unreported)"
        assert _row("A", "direct", 64, said).passed
        assert not _row("A", "direct", 64, _verdict(63, None, None, tells_encoder=False)).passed
        assert not _row("A", "direct", 64, _verdict(64, 2, 2, tells_encoder=False)).passed

    def test_e_must_read_more_than_d(self) -> None:
        good = [_row("D", "direct", 10), _row("E", "direct", 11)]
        assert compare(good) == good
        _, checked = compare([_row("D", "direct", 10), _row("E", "direct", 10)])
        assert checked.verdict == "read does not stop later than in D"
        _, checked = compare([_row("D", "direct", 10), _row("E", "direct", 10, "read x")])
        assert checked.verdict == "read x; read does not stop later than in D"
        note = "ok (encoder figures are unreported)"
        _, checked = compare([_row("D", "direct", 10), _row("E", "direct", 10, note)])
        assert not checked.passed

    @pytest.mark.parametrize(("path", "same"), [("gateway", True), ("direct", False)])
    def test_f_is_a_through_the_gateway_alone(self, path: str, same: bool) -> None:
        assert compare([_row("A", path, 9), _row("F", path, 9)])[1].passed == same
        assert compare([_row("A", path, 9), _row("F", path, 8)])[1].passed != same


class TestWhatThePromptsAllow:
    @pytest.mark.parametrize(
        ("first", "second", "length"),
        [("abc", "abc", 3), ("abc", "abd", 2), ("abc", "ab", 2), ("", "a", 0), ("b", "a", 0)],
    )
    def test_common(self, first: str, second: str, length: int) -> None:
        assert common([(ord(c), "") for c in first], [(ord(c), "") for c in second]) == length

    def test_equal_tokens_of_other_pictures_differ(self) -> None:
        tokens = [1, 9, 9, 2, 9, 9, 3]
        marked = with_images(tokens, 9, ("x", "y"))
        assert marked == [(1, ""), (9, "x"), (9, "x"), (2, ""), (9, "y"), (9, "y"), (3, "")]
        assert common(marked, with_images(tokens, 9, ("x", "z"))) == 4

    def test_more_pictures_than_names_are_text(self) -> None:
        assert with_images([9, 1, 9], 9, ("x",)) == [(9, "x"), (1, ""), (9, "")]

    def test_a_prompt_that_fills_its_blocks_reads_one_less(self) -> None:
        made = replace(pair("A", 1), first_pictures=(), second_pictures=())
        for length, read in ((31, 16), (32, 16), (33, 32)):
            tokens = list(range(length))
            assert expect(made, "direct", (tokens, tokens), 9999, 16) == Expected(read, 0, 0, None)

    def test_only_pictures_behind_what_is_read_are_needed(self) -> None:
        made = replace(pair("C", 1), first_pictures=("x", "y"), second_pictures=("x", "y", "z"))
        first = [1, 9, 9, 2, 9, 9]
        second = [*first, 3, 9, 9, 4]
        assert expect(made, "direct", (first, second), 9, 3) == Expected(6, 1, 0, 6)
        # Read ends within the second picture, which is then a hit.
        assert expect(made, "direct", (first, second), 9, 5) == Expected(5, 1, 1, 6)

    def test_other_bytes_are_another_picture_to_the_engine_alone(self) -> None:
        made = replace(pair("F", 1), first_pictures=("x",), second_pictures=("x",))
        tokens = [1, 2, 9, 9, 3]
        assert expect(made, "direct", (tokens, tokens), 9, 2) == Expected(2, 1, 0, 2)
        assert expect(made, "gateway", (tokens, tokens), 9, 2) == Expected(4, 0, 0, None)

    @pytest.mark.parametrize(
        ("group", "message", "part"),
        [("B", 6, 0), ("C", 6, 0), ("D", 1, 1), ("E", 5, 1), ("F", 1, 1), ("G", 1, 1), ("H", 5, 1)],
    )
    def test_the_place_is_the_clients(self, group: Group, message: int, part: int) -> None:
        assert place(pair(group, 1)) == {"message": message, "part": part}
