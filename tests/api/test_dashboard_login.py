"""Guessing tokens at the dashboard: what it costs who guesses, and nobody else."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable
from pathlib import Path
from typing import Protocol

import pytest

from app.dashboard.brake import Brake
from app.dashboard.state import KnownTenants
from tests.api.rig import ADMIN, CHAT, Answer, Rig, WatchedEngine, answers_with, ask, running, user
from tests.api.test_dashboard import FAR, JSON, KEYS, READ, bearer, get

WRONG = 10


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncGenerator[Rig]:
    async with running(tmp_path, environment=KEYS) as rig:
        yield rig


async def sign_in(rig: Rig, token: str, peer: tuple[str, int] = FAR) -> Answer:
    return await get(rig, "/api/login", JSON, peer=peer, method="POST", body=b'{"token": "%s"}' % token.encode())


async def show(rig: Rig, token: str, peer: tuple[str, int] = FAR) -> Answer:
    return await get(rig, "/api/status", bearer(token), peer=peer)


class Ask(Protocol):
    def __call__(self, rig: Rig, token: str, peer: tuple[str, int] = FAR) -> Awaitable[Answer]: ...


@pytest.mark.parametrize("ask_with", [sign_in, show])
async def test_guesses_of_an_address_come_to_an_end(rig: Rig, ask_with: Ask) -> None:
    assert [(await ask_with(rig, f"guess {n}")).status for n in range(WRONG)] == [401] * WRONG
    for token in ("one more", READ, "key-of-acme"):
        # Not even looked at: else it could go on.
        answer = await ask_with(rig, token)
        assert (answer.status, answer.error["code"]) == (429, "too_many_wrong_tokens")
        assert 0 < int(answer.headers["retry-after"]) <= 30
        assert f"{answer.headers['retry-after']} seconds" in answer.error["message"]
    # From elsewhere it is as it was.
    assert (await ask_with(rig, READ, peer=("198.51.100.9", 1))).status in (200, 204)


async def test_who_was_right_before_is_not_held_up(rig: Rig) -> None:
    """Behind a proxy all have one address."""
    cookie = (await sign_in(rig, READ)).headers["set-cookie"].partition(";")[0]
    assert (await show(rig, "key-of-acme")).status == 200
    for n in range(2 * WRONG):
        await sign_in(rig, f"guess {n}")
    assert (await sign_in(rig, "another")).status == 429
    assert (await show(rig, "key-of-acme")).status == 200
    assert (await sign_in(rig, READ)).status == 204
    assert (await get(rig, "/api/status", {"cookie": cookie}, peer=FAR)).status == 200


async def test_right_tokens_are_no_guesses(rig: Rig) -> None:
    for _ in range(2 * WRONG):
        for token in (READ, "key-of-acme", ADMIN["authorization"].removeprefix("Bearer ")):
            assert (await show(rig, token)).status == 200
    # A session that has ended is none, either.
    for _ in range(2 * WRONG):
        assert (await get(rig, "/api/status", {"cookie": "stillframe_dashboard=1.x.y"}, peer=FAR)).status == 401
    assert (await show(rig, "wrong")).status == 401


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ("203.0.113.7", "203.0.113.7", True),
        ("203.0.113.7", "203.0.113.8", False),
        ("::ffff:203.0.113.7", "203.0.113.7", True),
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("", "", True),
    ],
)
def test_what_counts_as_one_address(one: str, other: str, together: bool) -> None:
    brake = Brake(lambda: 0.0)
    assert [brake.try_one((one, port)) for port in range(WRONG)] == [0] * WRONG
    assert bool(brake.try_one((other, 1))) is together


def test_the_brake_lets_go_with_time_and_forgets_the_oldest() -> None:
    now = 1000.0
    brake = Brake(lambda: now)
    for _ in range(WRONG):
        assert brake.try_one(("a", 1)) == 0
    assert brake.try_one(("a", 1)) == 30
    now += 29.5
    assert brake.try_one(("a", 1)) == 1
    now += 0.5
    assert (brake.try_one(("a", 1)), brake.try_one(("a", 1))) == (0, 30)
    now += 30 * WRONG
    assert [brake.try_one(("a", 1)) for _ in range(WRONG)] == [0] * WRONG
    brake.was_right(("a", 1))
    assert (brake.try_one(("a", 1)), brake.try_one(("a", 1))) == (0, 30)
    for number in range(5000):
        brake.try_one((f"b{number}", 1))
    assert brake.try_one(("a", 1)) == 0
    assert brake.try_one(None) == 0


async def test_wrong_tokens_cost_no_query_each() -> None:
    asked, now, there = 0, 50.0, ["token-of-acme"]

    async def names() -> list[str]:
        nonlocal asked
        asked += 1
        return list(there)

    known = KnownTenants(names, lambda: now)
    assert not any([await known.has(f"token-{number}") for number in range(1000)])
    assert [await known.has("token-of-acme") for _ in range(10)] == [True] * 10
    assert asked == 1
    there.append("token-of-new")
    now += 2.0
    assert await known.has("token-of-new")
    assert asked == 2


async def test_without_keys_a_tenants_token_opens_its_figures(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        assert (await show(rig, "token-of-acme")).status in (401, 503)
        assert (await rig.chat(ask(user("hi")), bearer("token-of-acme"))).status == 200
    async with running(tmp_path) as rig:
        assert (await show(rig, "token-of-acme")).status == 200
        assert (await show(rig, "token-of-nobody")).status == 401


async def test_a_body_that_is_no_token_is_told_so(rig: Rig) -> None:
    for body, status in ((b"{}", 400), (b'{"token": "' + b"x" * 9000 + b'"}', 413), (b"no JSON", 400)):
        answer = await get(rig, "/api/login", JSON, peer=FAR, method="POST", body=body)
        assert (answer.status, answer.error["param"]) == (status, "token")
        assert answer.error["message"].startswith('Send {"token"')
        assert "image" not in answer.error["message"]


@pytest.mark.parametrize(
    ("path", "method", "allow"),
    [
        ("/dashboard", "POST", "GET, HEAD"),
        ("/dashboard/", "DELETE", "GET, HEAD"),
        ("/dashboard/app.js", "POST", "GET, HEAD"),
        ("/dashboard/api/overview", "POST", "GET, HEAD"),
        ("/dashboard/api/thumbnail", "PUT", "GET, HEAD"),
        ("/dashboard/api/login", "GET", "POST"),
        ("/dashboard/api/logout", "PUT", "POST"),
        ("/dashboard/api/whatif", "DELETE", "GET, POST, HEAD"),
        ("/v1/chat/completions", "GET", "POST"),
        ("/v1/models", "POST", "GET, HEAD"),
        ("/admin/reset", "GET", "POST"),
    ],
)
async def test_a_method_that_is_refused_is_answered_with_those_that_are_not(
    rig: Rig, path: str, method: str, allow: str
) -> None:
    answer = await rig.call(method, path, headers={**ADMIN, **JSON})
    assert (answer.status, answer.headers["allow"]) == (405, allow)
    assert method in answer.error["message"]


async def test_what_the_engine_takes_is_handed_on(tmp_path: Path) -> None:
    engine = WatchedEngine(answer=answers_with(405, b"{}", [(b"allow", b"POST, PUT"), (b"server", b"secret")]))
    async with running(tmp_path, engine) as rig:
        answer = await rig.call("GET", f"/engine{CHAT}", headers=ADMIN)
    assert (answer.status, answer.headers["allow"]) == (405, "POST, PUT")
    assert "server" not in answer.headers
