"""The dashboard's answers: who gets which, and what they say of chats that went through the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from app.dashboard.access import SESSION_SECONDS
from tests.api.rig import ADMIN, Answer, Rig, ask, image, running, text, user

LOCAL = ("127.0.0.1", 50_000)
FAR = ("203.0.113.7", 50_000)
HOST = {"host": "127.0.0.1:8000"}
READ = "a-read-token-of-tests"
KEYS = {"AUTH__KEYS": "{acme: key-of-acme, globex: key-of-globex}", "DASHBOARD__READ_TOKEN": READ}
CONVERSATION = "x-stillframe-conversation"
JSON = {"content-type": "application/json"}


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def get(
    rig: Rig,
    path: str,
    headers: Mapping[str, str] | None = None,
    *,
    peer: tuple[str, int] | None = LOCAL,
    method: str = "GET",
    body: bytes = b"",
    root_path: str = "",
) -> Answer:
    """Ask as a peer. The path is below /dashboard."""
    where, _, query = f"/dashboard{path}".partition("?")
    scope: dict[str, Any] = {
        "type": "http",
        "method": method,
        "path": root_path + where,
        "raw_path": (root_path + where).encode(),
        "root_path": root_path,
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in {**HOST, **(headers or {})}.items()],
        "client": peer,
        "scheme": "http",
    }
    sent: list[Any] = []
    came = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        return came.pop() if came else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await rig.app(scope, receive, send)
    found = {name.decode(): value.decode("latin-1") for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], found, b"".join(one.get("body", b"") for one in sent[1:]))


async def view(rig: Rig, name: str, headers: Mapping[str, str] | None = None, **query: str) -> Any:
    answer = await get(rig, f"/api/{name}?{urlencode(query)}", headers)
    assert answer.status == 200, answer.body
    return answer.json


async def chat(rig: Rig, *messages: Any, key: str = "key-of-acme") -> str:
    """One chat; gives its conversation once its record is written."""
    answer = await rig.chat(ask(*messages), bearer(key))
    assert answer.status == 200, answer.body
    name = answer.headers[CONVERSATION]
    async with asyncio.timeout(10):
        while True:
            shown = await view(rig, "conversations", bearer(READ), find=name)
            if shown["conversations"]:
                return name
            await asyncio.sleep(0.01)


@asynccontextmanager
async def served(folder: Path, **environment: str) -> AsyncGenerator[Rig]:
    async with running(folder, environment={**KEYS, **environment}) as rig:
        yield rig


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncGenerator[Rig]:
    async with served(tmp_path) as rig:
        yield rig


WHO: dict[str, tuple[tuple[str, int] | None, dict[str, str], int]] = {
    "this machine": (LOCAL, {}, 200),
    "this machine by IPv6": (("::1", 1), {"host": "[::1]:8000"}, 200),
    "this machine by a mapped address": (("::ffff:127.0.0.1", 1), {"host": "localhost"}, 200),
    "a name that begins like an address": (("127.0.0.1", 1), {"host": "[::1].evil.example"}, 401),
    "a name that ends like a port": (("127.0.0.1", 1), {"host": "localhost:evil.example"}, 401),
    "another machine": (FAR, {}, 401),
    "a peer that is not known": (None, {}, 401),
    "a proxy on this machine": (LOCAL, {"x-forwarded-for": "203.0.113.7"}, 401),
    "a proxy with the standard's header": (LOCAL, {"forwarded": "for=203.0.113.7"}, 401),
    "a foreign name that leads here": (LOCAL, {"host": "attacker.example:8000"}, 401),
    "a foreign name that looks like ours": (LOCAL, {"host": "127.0.0.1.attacker.example"}, 401),
    "the read token": (FAR, bearer(READ), 200),
    "the read token under a public name": (FAR, {"host": "stillframe.example", **bearer(READ)}, 200),
    "the administrator": (FAR, ADMIN, 200),
    "a tenant": (FAR, bearer("key-of-acme"), 200),
    "an unknown token": (FAR, bearer("key-of-nobody"), 401),
    "an unknown token on this machine": (LOCAL, bearer("key-of-nobody"), 401),
    "another site's page": (LOCAL, {"sec-fetch-site": "cross-site"}, 403),
    "its own page": (LOCAL, {"sec-fetch-site": "same-origin"}, 200),
}


async def test_who_may_see_it(rig: Rig) -> None:
    answers = {who: await get(rig, "/api/overview", headers, peer=peer) for who, (peer, headers, _) in WHO.items()}
    assert {who: answer.status for who, answer in answers.items()} == {who: status for who, (*_, status) in WHO.items()}
    for answer in answers.values():
        if answer.status == 401:
            assert "dashboard.read_token" in answer.error["message"]
            assert answer.headers["cache-control"] == "no-store"


async def test_this_machine_needs_a_token_where_it_is_told_to(tmp_path: Path) -> None:
    async with served(tmp_path, DASHBOARD__ALLOW_LOOPBACK="false") as rig:
        assert (await get(rig, "/api/overview")).status == 401
        assert (await get(rig, "/api/overview", bearer(READ))).status == 200


async def test_where_it_is_off_there_is_nothing(tmp_path: Path) -> None:
    async with served(tmp_path, DASHBOARD__ENABLED="false") as rig:
        for path in ("", "/", "/app.js", "/api/overview"):
            answer = await get(rig, path)
            assert (answer.status, answer.error["code"]) == (404, "dashboard_disabled")


async def sign_in(rig: Rig, token: str, **headers: str) -> Answer:
    body = b'{"token": "%s"}' % token.encode()
    return await get(rig, "/api/login", {**JSON, **headers}, peer=FAR, method="POST", body=body)


async def test_a_session_is_opened_by_a_token_and_ended(rig: Rig) -> None:
    answer = await sign_in(rig, READ)
    cookie, *attributes = answer.headers["set-cookie"].split("; ")
    assert answer.status == 204
    # No path: below a proxy's prefix the browser takes the folder that it asked for.
    assert set(attributes) == {"HttpOnly", "SameSite=Strict", f"Max-Age={SESSION_SECONDS}"}
    assert READ not in cookie
    assert (await get(rig, "/api/overview", {"cookie": cookie}, peer=FAR)).status == 200
    forged = cookie[:-1] + ("A" if cookie[-1] != "A" else "B")
    assert (await get(rig, "/api/overview", {"cookie": forged}, peer=FAR)).status == 401
    out = await get(rig, "/api/logout", JSON, peer=FAR, method="POST")
    assert "Max-Age=0" in out.headers["set-cookie"]


async def test_other_programs_cookies_do_not_end_a_session(rig: Rig) -> None:
    cookie = (await sign_in(rig, READ)).headers["set-cookie"].partition(";")[0]
    for other in ('a={"b":1}', "path=/", "a b=c", "flag", '"=1', "a=b, c"):
        for both in (f"{other}; {cookie}", f"{cookie};{other}"):
            assert (await get(rig, "/api/status", {"cookie": both}, peer=FAR)).status == 200, both


async def test_backslashes_in_a_cookie_are_not_undone(rig: Rig) -> None:
    """To undo them takes the square of their number: one request of 60 kB would hold up all others for seconds."""
    name, _, value = (await sign_in(rig, READ)).headers["set-cookie"].partition(";")[0].partition("=")
    escaped = f'{name}="\\{ord(value[0]):03o}{value[1:]}"'
    assert (await get(rig, "/api/status", {"cookie": escaped}, peer=FAR)).status == 401


async def test_behind_tls_the_session_is_for_tls_alone(rig: Rig) -> None:
    answer = await sign_in(rig, READ, **{"x-forwarded-proto": "https"})
    assert answer.headers["set-cookie"].endswith("; Secure")


async def test_a_changed_token_ends_its_sessions(tmp_path: Path) -> None:
    async with served(tmp_path) as rig:
        cookie = (await sign_in(rig, READ)).headers["set-cookie"].partition(";")[0]
    async with served(tmp_path) as rig:
        assert (await get(rig, "/api/overview", {"cookie": cookie}, peer=FAR)).status == 200
    for changed in ({"DASHBOARD__READ_TOKEN": f"another-{READ}"}, {"ADMIN_TOKEN": f"another-{READ}"}):
        async with served(tmp_path, **changed) as rig:
            assert (await get(rig, "/api/overview", {"cookie": cookie}, peer=FAR)).status == 401


async def test_a_wrong_token_opens_nothing(rig: Rig) -> None:
    for token, status in (("wrong", 401), ("", 400), ("key-of-nobody", 401)):
        answer = await sign_in(rig, token)
        assert answer.status == status
        assert "set-cookie" not in answer.headers


async def test_a_form_of_another_site_signs_nobody_in(rig: Rig) -> None:
    answer = await get(rig, "/api/login", {"content-type": "text/plain"}, method="POST", body=b'{"token": "x"}')
    assert answer.status == 415


async def test_a_tenant_sees_its_own_alone(rig: Rig) -> None:
    theirs = await chat(rig, user(text("theirs"), image()), key="key-of-globex")
    mine = await chat(rig, user(text("mine"), image("alpha.png")), key="key-of-acme")
    acme, globex = bearer("key-of-acme"), {"tenant": "globex"}
    shown = await view(rig, "conversations", acme, **globex)
    assert [one["conversation"] for one in shown["conversations"]] == [mine]
    assert (await view(rig, "overview", acme, **globex))["totals"]["requests"] == 1
    assert "tenants" not in (await view(rig, "status", acme))["names"]
    [picture] = (await view(rig, "images", bearer("key-of-globex")))["images"]
    # All tenants' together.
    assert (await view(rig, "images", bearer("key-of-globex")))["kv"] is None
    for name, id in (("conversation", theirs), ("image", picture["image_id"]), ("thumbnail", picture["image_id"])):
        for tenant in ("globex", "acme"):
            answer = await get(rig, f"/api/{name}?{urlencode({'tenant': tenant, 'id': id})}", acme)
            assert answer.status == 404, name
    assert len((await view(rig, "conversations", bearer(READ)))["conversations"]) == 2


async def test_without_keys_a_token_that_has_sent_chats_opens_its_own(tmp_path: Path) -> None:
    async with running(tmp_path, environment={"DASHBOARD__READ_TOKEN": READ}) as rig:
        assert (await get(rig, "/api/overview", bearer("somebody"), peer=FAR)).status == 401
        await chat(rig, "hello", key="somebody")
        async with asyncio.timeout(10):
            # Who has no records is asked for once a second.
            while (answer := await get(rig, "/api/status", bearer("somebody"), peer=FAR)).status == 401:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        assert answer.json["viewer"]["tenant"].startswith("token-")


async def test_a_conversation_is_shown_turn_by_turn(rig: Rig) -> None:
    first = [user(text("look at this"), image())]
    name = await chat(rig, *first)
    shown = await view(rig, "conversation", tenant="acme", id=name)
    [turn] = shown["turns"]
    assert turn["prompt_tokens"] == turn["read_tokens"] + turn["write_tokens"] + turn["uncached_tokens"]
    assert (turn["cause"], turn["outcome"], turn["policy"], turn["images"]) == ("cold", "completed", "stable", 1)
    assert shown["kv"]["resident_prefix_tokens"] > 0
    assert (await get(rig, "/api/conversation?tenant=acme&id=none")).status == 404


async def test_an_image_is_shown_with_what_the_engine_holds_of_it(rig: Rig) -> None:
    name = await chat(rig, user(text("one"), image(), image()))
    [listed] = (await view(rig, "images"))["images"]
    assert (listed["occurrences"], listed["encoder_runs"]) == (2, 1)
    assert listed["resident_tokens"] > 0
    held = (await view(rig, "images"))["kv"]
    # Twice in the prompt, at other places.
    assert held["resident_tokens"]["image"] == listed["resident_tokens"]
    assert held["resident_blocks"]["image"] + held["resident_blocks"]["mixed"] == listed["resident_blocks"]
    assert held["evicted_tokens"] == {"text": 0, "image": 0}
    shown = await view(rig, "image", tenant="acme", id=listed["image_id"])
    assert [one["conversation"] for one in shown["in"]] == [name]
    assert shown["stored"]["width"] > 0
    found = await view(rig, "images", find=listed["image_id"][:9])
    assert [one["image_id"] for one in found["images"]] == [listed["image_id"]]
    assert (await view(rig, "images", find="zz"))["images"] == []


async def test_a_thumbnail_is_a_small_webp(rig: Rig) -> None:
    await chat(rig, user(text("one"), image()))
    [listed] = (await view(rig, "images"))["images"]
    answer = await get(rig, f"/api/thumbnail?tenant=acme&id={listed['image_id']}")
    assert answer.headers["content-type"] == "image/webp"
    assert answer.body[8:12] == b"WEBP"
    for id in ("0" * 64, "../secret", ""):
        assert (await get(rig, f"/api/thumbnail?{urlencode({'tenant': 'acme', 'id': id})}")).status == 404


async def test_an_answer_is_sent_again_only_when_something_has_changed(rig: Rig) -> None:
    before = await get(rig, "/api/conversations")
    tag = {"if-none-match": before.headers["etag"]}
    again = await get(rig, "/api/conversations", tag)
    assert (again.status, again.body) == (304, b"")
    await chat(rig, "hello")
    assert (await get(rig, "/api/conversations", tag)).status == 200


async def test_figures_over_time_add_up(rig: Rig) -> None:
    await chat(rig, "hello")
    shown = await view(rig, "overview", range="15m")
    assert shown["totals"]["requests"] == sum(one["requests"] for one in shown["over_time"]) == 1
    assert sum(one["requests"] for one in shown["outcomes"] if one["name"] == "completed") == 1
    assert shown["totals"]["first_token_p50"] is not None
    assert [one["turn"] for one in shown["by_turn"]] == ["1"]


async def test_a_wrong_question_is_refused_with_its_place(rig: Rig) -> None:
    for name, param, value in (
        ("overview", "range", "never"),
        ("conversations", "before", "x"),
        ("images", "limit", "-1"),
    ):
        answer = await get(rig, f"/api/{name}?{param}={value}")
        assert (answer.status, answer.error["param"]) == (400, param)


async def test_recorded_turns_are_replayed_under_every_policy(rig: Rig) -> None:
    await chat(rig, user(text("one"), image()))
    assert (await get(rig, "/api/whatif")).json == {"state": "idle"}
    assert (await get(rig, "/api/whatif", method="POST")).status == 415
    state = (await get(rig, "/api/whatif", JSON, method="POST")).json
    async with asyncio.timeout(60):
        while state["state"] in ("waiting", "running"):
            await asyncio.sleep(0.05)
            state = (await get(rig, "/api/whatif")).json
    assert state["state"] == "done", state
    result = state["result"]
    assert result["turns"] == 1
    assert {"stable", "sliding", "batched"} <= {one["policy"] for one in result["policies"]}
    assert all(one["prompt_tokens"] == one["read_tokens"] + one["computed_tokens"] for one in result["policies"])
    assert result["measured"]["turns"] == 1
    # Another viewer's is another one.
    assert (await get(rig, "/api/whatif", bearer("key-of-globex"))).json == {"state": "idle"}


async def test_the_page_is_served_below_any_prefix(rig: Rig) -> None:
    for root_path in ("", "/tools/stillframe"):
        to = await get(rig, "", root_path=root_path)
        assert (to.status, to.headers["location"]) == (307, "dashboard/")
        page = await get(rig, "/", root_path=root_path)
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert b'="/' not in page.body
        assert b"://" not in page.body
        script = await get(rig, "/app.js", root_path=root_path)
        assert script.headers["content-type"] == "text/javascript; charset=utf-8"


async def test_every_answer_is_guarded_against_foreign_code(rig: Rig) -> None:
    for path in ("/", "/app.js", "/style.css", "/api/status", "/nothing"):
        headers = (await get(rig, path)).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'; script-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]


async def test_there_is_no_other_file(rig: Rig) -> None:
    for name in ("/..%2faccess.py", "/../access.py", "/static/app.js", "/nothing.js", "/api/nothing"):
        assert (await get(rig, name)).status == 404


async def test_other_methods_are_refused(rig: Rig) -> None:
    for path, method in (("/", "POST"), ("/api/overview", "POST"), ("/api/login", "GET")):
        assert (await get(rig, path, method=method)).status == 405
