"""Every path beside chat: who may call it, what it answers, and what no path answers."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from pydantic_core import to_json

from engine.base import EngineInfo
from tests.api.rig import ADMIN, CHAT, JSON, Rig, WatchedEngine, answers_with, ask, image, running, user

KEYS = {"AUTH__KEYS__ALICE": "key-a", "AUTH__KEYS__BOB": "schlüssel"}


async def test_models(rig: Rig) -> None:
    for path in ("/v1/models", "/v1/models/"):
        answer = await rig.get(path)
        assert answer.json["object"] == "list"
        (card,) = answer.json["data"]
        assert (card["id"], card["object"], card["owned_by"]) == ("stillframe-fake", "model", "stillframe")
        assert card["max_model_len"] == rig.engine.config.max_model_tokens
    assert (await rig.get("/v1/models/stillframe-fake")).json == card
    unknown = await rig.get("/v1/models/org/nope")
    assert (unknown.status, unknown.error["code"], unknown.error["param"]) == (404, "model_not_found", "model")
    assert "stillframe-fake" in unknown.error["message"]


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/completions", "/admin", "/engine", "/v1/chat/completions/x", "/health", "/docs", "//"]
)
async def test_unknown_paths(rig: Rig, path: str) -> None:
    answer = await rig.get(path)
    assert (answer.status, answer.error["code"]) == (404, "unknown_path")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", CHAT, "POST"),
        ("HEAD", CHAT, "POST"),
        ("OPTIONS", CHAT, "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("DELETE", "/v1/models/x", "GET, HEAD"),
        ("GET", "/admin/reset", "POST"),
        ("PUT", "/metrics", "GET, HEAD"),
    ],
)
async def test_wrong_methods(rig: Rig, method: str, path: str, allowed: str) -> None:
    answer = await rig.call(method, path, headers=ADMIN)
    assert (answer.status, answer.error["code"], answer.headers["allow"]) == (405, "method_not_allowed", allowed)


async def test_no_preflight_is_granted(rig: Rig) -> None:
    headers = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    answer = await rig.call("OPTIONS", CHAT, headers=headers)
    assert answer.status == 405
    answer = await rig.chat(ask("a"), {"origin": "http://evil.example"})
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
async def test_what_a_page_may_send_unasked_is_refused(rig: Rig, kind: str) -> None:
    answer = await rig.call("POST", CHAT, to_json(ask("a")), {"content-type": kind} if kind else {})
    assert (answer.status, answer.error["code"]) == (415, "unsupported_type")
    assert rig.engine.wire == []


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8"])
async def test_json_types(rig: Rig, kind: str) -> None:
    assert (await rig.call("POST", CHAT, to_json(ask("a")), {"content-type": kind})).status == 200


async def test_health_and_metrics_need_no_key(tmp_path: Path) -> None:
    async with running(tmp_path, environment=KEYS) as rig:
        assert (await rig.get("/health/live")).json == {"status": "alive"}
        assert (await rig.get("/health/ready")).status == 200
        metrics = await rig.get("/metrics")
        assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert b"stillframe_engine_ready 1.0" in metrics.body


@pytest.mark.parametrize(
    "value", [None, "", "Bearer", "Bearer ", "Bearer key", "Bearer key-aa", "key-a", "Basic key-a", "Bearer \xff\xfe"]
)
async def test_wrong_keys(tmp_path: Path, value: str | None) -> None:
    headers = {} if value is None else {"authorization": value}
    async with running(tmp_path, environment=KEYS) as rig:
        for answer in (await rig.chat(ask("a"), headers), await rig.get("/v1/models", headers)):
            assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
            assert answer.headers["www-authenticate"] == "Bearer"
        assert rig.engine.wire == []
        assert await rig.outcomes() == {"refused": 1}


async def test_right_keys(tmp_path: Path) -> None:
    async with running(tmp_path, environment=KEYS) as rig:
        in_utf8 = "Bearer " + "schlüssel".encode().decode("latin-1")
        for value in ("Bearer key-a", "bearer key-a", "BEARER  key-a ", in_utf8):
            assert (await rig.chat(ask("a"), {"authorization": value})).status == 200, value
        salts = [body["cache_salt"] for body in rig.engine.sent]
        assert salts[0] == salts[1] == salts[2] != salts[3]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/admin/state"),
        ("POST", "/admin/reset"),
        ("GET", "/admin/requests/x"),
        ("GET", "/engine/v1/models"),
        ("POST", "/engine/v1/chat/completions"),
    ],
)
async def test_admin_routes_need_the_token(tmp_path: Path, method: str, path: str) -> None:
    async with running(tmp_path, environment=KEYS) as rig:
        for headers in ({}, {"authorization": "Bearer key-a"}, {"authorization": "Bearer "}):
            answer = await rig.call(method, path, headers=headers)
            assert (answer.status, answer.error["code"]) == (401, "admin_token_required")
            assert answer.headers["www-authenticate"] == "Bearer"


async def test_admin_token_is_made_once_and_kept(tmp_path: Path) -> None:
    tokens: set[str] = set()
    for _ in range(2):
        async with running(tmp_path, environment={"ADMIN_TOKEN": ""}) as rig:
            tokens.add((tmp_path / "admin-token").read_text())
            headers = {"authorization": f"Bearer {(tmp_path / 'admin-token').read_text()}"}
            assert (await rig.get("/admin/state", headers)).status == 200
    assert len(tokens) == 1
    assert (tmp_path / "admin-token").stat().st_mode & 0o077 == 0
    assert (tmp_path / "secret").stat().st_mode & 0o077 == 0


async def test_state(rig: Rig) -> None:
    state = (await rig.get("/admin/state", ADMIN)).json
    assert state["engine"] == {
        "kind": "fake",
        "state": "ready",
        "models": ["stillframe-fake"],
        "accepts_uuid": True,
        "block_tokens": 16,
        "max_model_tokens": 131_072,
        "max_images_per_prompt": 999,
    }
    assert state["policy"] == "stable"


async def test_request_records(rig: Rig) -> None:
    answer = await rig.chat(ask(user(image())))
    record = (await rig.get(f"/admin/requests/{answer.headers['x-request-id']}", ADMIN)).json
    assert record == {
        "request_id": answer.headers["x-request-id"],
        "encoder_runs": 1,
        "encoder_hits": 0,
        "encoder_evictions": 0,
    }
    assert (await rig.get("/admin/requests/nobody", ADMIN)).json["encoder_runs"] is None


async def test_straight_to_the_engine(rig: Rig) -> None:
    answer = await rig.get("/engine/v1/models", ADMIN)
    assert answer.json["data"][0]["id"] == "stillframe-fake"
    body = to_json(ask("a", stream=True) | {"model": "stillframe-fake"})
    raw = await rig.call("POST", "/engine/v1/chat/completions", body, {**ADMIN, **JSON})
    assert raw.events[-1] == "[DONE]"
    assert rig.engine.wire == [body]
    refused = await rig.call("POST", "/engine/v1/chat/completions", b"{", {**ADMIN, **JSON})
    assert refused.status == 400
    assert refused.error["message"]


async def test_a_query_and_an_escaped_path_go_on_as_they_came(tmp_path: Path) -> None:
    seen: list[tuple[str, bytes]] = []

    class Seeing(WatchedEngine):
        """Notes what is asked of it."""

        def forward(self, method, path, *, headers, body=()):  # type: ignore[no-untyped-def]  # pyright: ignore
            seen.append((path, b"".join(body)))  # pyright: ignore
            return super().forward(method, path, headers=headers, body=body)  # pyright: ignore

    async with running(tmp_path, Seeing()) as rig:
        await rig.get("/engine/a%3fb/%0d%0aX:%20y?q=%26&r", ADMIN)
    # The gateway itself asks for tokens when the engine is ready.
    assert [one for one in seen if one[0] != "/tokenize"] == [("/a%3fb/%0d%0aX:%20y?q=%26&r", b"")]


async def test_engine_stream_that_breaks_is_left_unfinished(tmp_path: Path) -> None:
    from tests.api.rig import streams

    async with running(tmp_path, WatchedEngine(answer=streams(b"data: 1\n\n", breaks=True))) as rig:
        answer = await rig.call("POST", "/engine/v1/chat/completions", b"{}", {**ADMIN, **JSON})
        assert answer.broken
        assert answer.body == b"data: 1\n\n"


async def test_prefix_of_a_mounting_server(rig: Rig) -> None:
    async def mounted(scope, receive, send) -> None:  # type: ignore[no-untyped-def]  # pyright: ignore
        if scope["type"] == "http":  # pyright: ignore
            scope = {**scope, "root_path": "/ai"}  # pyright: ignore
        await rig.app(scope, receive, send)  # pyright: ignore

    from engine import asgi

    async with asgi.call(mounted, "GET", "/ai/v1/models/stillframe-fake") as reply:  # pyright: ignore
        assert reply.status == 200
    async with asgi.call(mounted, "GET", "/ai/engine/health", headers=ADMIN) as reply:  # pyright: ignore
        assert reply.status == 200


async def test_trailing_slash(rig: Rig) -> None:
    assert (await rig.call("POST", CHAT + "/", to_json(ask("a")), JSON)).status == 200


async def test_an_unforeseen_failure_tells_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Wrong(WatchedEngine):
        """Raises what no engine should, from some time on."""

        is_wrong = False

        def info(self) -> EngineInfo:
            if self.is_wrong:
                raise ZeroDivisionError("secret /srv/app/x.py")
            return super().info()

    async with running(tmp_path, engine := Wrong()) as rig:
        engine.is_wrong = True
        with caplog.at_level(logging.DEBUG):
            for answer in (await rig.get("/v1/models"), await rig.chat(ask("a"))):
                assert (answer.status, answer.error["code"]) == (500, "engine_error")
                assert b"srv" not in answer.body
        assert "ZeroDivisionError" in caplog.text
        assert "secret" not in caplog.text
        assert await rig.outcomes() == {"failed": 1}


async def test_error_answers_of_the_engine_are_cleaned_for_admins_too(tmp_path: Path) -> None:
    engine = WatchedEngine(answer=answers_with(500, b"Traceback /srv/app/x.py"))
    async with running(tmp_path, engine) as rig:
        answer = await rig.call("POST", "/engine/v1/chat/completions", b"{}", {**ADMIN, **JSON})
    assert (answer.status, answer.error["code"]) == (502, "engine_error")
