"""What the fake engine says, and how it says it on the wire."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import from_json, to_json
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from context.errors import ConfigError, EngineProtocolError, EngineUnavailable
from engine.asgi import call
from engine.fake import FakeApp, FakeConfig, FakeCore, Fault, create_app
from engine.fake.__main__ import main, parse
from engine.fake.tokenizer import SPECIAL_TOKENS, BuiltinTokenizer
from tests.contract.cases import data_url, events_of

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "parameters": {
                "type": "object",
                "properties": {"at": {"type": "integer"}, "how": {"enum": ["near", "far"]}},
                "required": ["at", "how"],
            },
        },
    }
]


def _body(text: str = "hello", **parameters: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]} | parameters


async def _post(app: FakeApp, body: Any, path: str = "/v1/chat/completions") -> tuple[int, bytes]:
    data = body if isinstance(body, bytes) else to_json(body)
    async with call(app, "POST", path, headers={"x-request-id": "r1"}, body=[data]) as reply:
        return reply.status, await reply.read()


async def _get(app: FakeApp, path: str) -> bytes:
    async with call(app, "GET", path) as reply:
        return await reply.read()


@pytest.fixture
async def app() -> AsyncIterator[FakeApp]:
    app = create_app()
    yield app
    await app.driver.stop()


@pytest.fixture
async def _stops() -> AsyncIterator[list[FakeApp]]:
    apps: list[FakeApp] = []
    yield apps
    for app in apps:
        await app.driver.stop()


@pytest.fixture
def make(_stops: list[FakeApp]) -> Any:
    def make(**options: Any) -> FakeApp:
        _stops.append(create_app(FakeConfig(**options)))
        return _stops[-1]

    return make


@pytest.mark.parametrize(
    "text", ["", "plain words", "  two\n\nlines\t", "naïve 漢字 🙂 e\u0301", "1234567", "<|im_end|"]
)
def test_builtin_tokenizer_is_exact_both_ways(text: str) -> None:
    tokenizer = BuiltinTokenizer()
    assert "".join(tokenizer.decode_each(tokenizer.encode(text))) == text


def test_special_tokens_are_one_token() -> None:
    ids = BuiltinTokenizer().encode("a<|image_pad|>b<|im_end|>")
    assert [ids[1], ids[3]] == [BuiltinTokenizer.image_token, BuiltinTokenizer.end_token]
    assert len(ids) == 4


async def test_a_whole_reply_has_vllms_keys(app: FakeApp) -> None:
    _, content = await _post(app, _body())
    body = from_json(content)
    assert " ".join(body) == (
        "id object created model choices service_tier system_fingerprint usage prompt_logprobs prompt_token_ids "
        "prompt_text kv_transfer_params ec_transfer_params metrics"
    )
    message = body["choices"][0]["message"]
    assert " ".join(message) == "role content refusal annotations audio function_call reasoning"
    assert (body["id"], body["choices"][0]["finish_reason"]) == ("chatcmpl-r1", "stop")
    # The end token is counted and not shown.
    assert body["usage"]["completion_tokens"] == 17
    assert body["usage"]["prompt_tokens_details"] == {
        "cached_tokens": 0,
        "created_cache_tokens": 0,
        "multimodal_tokens": None,
    }


async def test_the_same_prompt_gets_the_same_answer(app: FakeApp) -> None:
    answers = [from_json((await _post(app, _body(text)))[1]) for text in ("one", "one", "two")]
    one, same, two = (answer["choices"][0]["message"]["content"] for answer in answers)
    assert one == same != two


async def test_streamed_text_is_the_whole_text(app: FakeApp) -> None:
    whole = from_json((await _post(app, _body(n=2)))[1])
    events = events_of((await _post(app, _body(n=2, stream=True)))[1])
    for index, choice in enumerate(whole["choices"]):
        deltas = [shown for event in events for shown in event["choices"] if shown["index"] == index]
        assert "".join(shown["delta"]["content"] for shown in deltas) == choice["message"]["content"]
        assert deltas[-1]["finish_reason"] == choice["finish_reason"]
    assert whole["choices"][0]["message"] != whole["choices"][1]["message"]


async def test_continuous_usage(app: FakeApp) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = events_of((await _post(app, _body(max_tokens=3, stream=True, stream_options=options)))[1])
    assert [event["usage"]["completion_tokens"] for event in events] == [0, 1, 2, 3, 3]


@pytest.mark.parametrize(
    ("parameters", "text", "reason", "stop_reason"),
    [
        ({}, "one two three", "stop", None),
        ({"max_tokens": 2}, "one two", "length", None),
        ({"max_completion_tokens": 1, "max_tokens": 9}, "one", "length", None),
        ({"stop": " tw"}, "one", "stop", " tw"),
        ({"stop": ["x", " two"], "include_stop_str_in_output": True}, "one two", "stop", " two"),
        ({"max_tokens": 5}, "one two three", "stop", None),
        ({"max_tokens": 4}, "one two three", "length", None),
        ({"max_tokens": 6, "ignore_eos": True}, "one two threeone two", "length", None),
    ],
)
async def test_ends(make: Any, parameters: Any, text: str, reason: str, stop_reason: str | None) -> None:
    app = make(script=("one two three",))
    choice = from_json((await _post(app, _body(**parameters)))[1])["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"], choice["stop_reason"]) == (text, reason, stop_reason)


async def test_script_and_echo(make: Any) -> None:
    scripted, echo = make(script=("a", "b")), make(echo=True)
    said = [from_json((await _post(scripted, _body()))[1])["choices"][0]["message"]["content"] for _ in range(3)]
    assert said == ["a", "b", "a"]
    assert from_json((await _post(echo, _body("say é 漢")))[1])["choices"][0]["message"]["content"] == "say é 漢"


async def test_tool_calls(make: Any) -> None:
    app = make(tool_calls=True)
    choice = from_json((await _post(app, _body(tools=TOOLS)))[1])["choices"][0]
    (made,) = choice["message"]["tool_calls"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
    assert (made["function"]["name"], json.loads(made["function"]["arguments"])) == ("look", {"at": 1, "how": "near"})
    events = events_of((await _post(app, _body(tools=TOOLS, stream=True)))[1])
    deltas = [event["choices"][0]["delta"] for event in events]
    assert [delta["tool_calls"][0]["function"] for delta in deltas if "tool_calls" in delta] == [made["function"]]
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_a_named_tool_is_called_unasked(app: FakeApp) -> None:
    named = {"type": "function", "function": {"name": "look"}}
    choice = from_json((await _post(app, _body(tools=TOOLS, tool_choice=named)))[1])["choices"][0]
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "look"
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b"{", 400, "body"),
        (b"[]", 400, "body"),
        ({}, 400, "body.messages"),
        ({"messages": [{"content": "x"}]}, 400, "body.messages.0.role"),
        (_body(model="other"), 404, "model"),
        (_body(n=0), 400, "n"),
        (_body(n=2, temperature=0), 400, None),
        (_body(max_tokens=0), 400, "max_tokens"),
        (_body(max_tokens="x"), 400, "body.max_tokens"),
        (_body(tools=[]), 400, "tools"),
        (_body(tool_choice="required"), 400, "tool_choice"),
        (_body(cache_salt="a/b"), 400, "cache_salt"),
        (_body(cache_salt=""), 400, "cache_salt"),
        (_body(cache_salt="x" * 129), 400, "cache_salt"),
        (_body(stream_options={"include_usage": True}), 400, "stream_options"),
        (_body("long " * 140_000), 400, "input_tokens"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": None}]}]}, 400, "body.messages"),
        ({"messages": [{"role": "user", "content": [{"type": "video_url"}]}]}, 400, "type"),
    ],
)
async def test_refusals(app: FakeApp, body: Any, status: int, param: str | None) -> None:
    got, content = await _post(app, body)
    error = from_json(content)["error"]
    assert (got, error["code"], error["param"]) == (status, status, param)
    assert (await _get(app, "/fake/requests")) == b'{"open_requests":0,"running_sequences":0}'


async def test_too_many_image_tokens(make: Any) -> None:
    app = make(max_model_tokens=100)
    part = {"type": "image_url", "image_url": {"url": data_url(640, 480, 1).decode()}}
    status, content = await _post(app, {"messages": [{"role": "user", "content": [part]}]})
    assert (status, "exceeds model's maximum context length (100)" in content.decode()) == (400, True)


async def test_tokenize_counts_images_as_the_prompt_does(app: FakeApp) -> None:
    part = {"type": "image_url", "image_url": {"url": data_url(640, 480, 1).decode()}, "uuid": "u"}
    body = {"messages": [{"role": "user", "content": ["what?", part]}]}
    counted = from_json((await _post(app, body, "/tokenize"))[1])
    asked = from_json((await _post(app, body))[1])
    assert counted["count"] == len(counted["tokens"]) == asked["usage"]["prompt_tokens"]
    assert asked["usage"]["prompt_tokens_details"]["multimodal_tokens"] == {"image": 391}


async def test_metrics(app: FakeApp) -> None:
    for _ in range(2):
        await _post(app, _body("word " * 50, max_tokens=1))
    metrics = dict(line.rsplit(" ", 1) for line in (await _get(app, "/metrics")).decode().splitlines())
    label = '{engine="0",model_name="stillframe-fake"}'
    prompt = int(metrics[f"vllm:prompt_tokens_total{label}"])
    assert int(metrics[f"vllm:prefix_cache_queries_total{label}"]) == prompt > 0
    assert int(metrics[f"vllm:prefix_cache_hits_total{label}"]) == (prompt // 2 - 1) // 16 * 16


async def test_faults(app: FakeApp) -> None:
    await _post(app, {"kind": "error", "status": 503}, "/fake/faults")
    assert (await _post(app, _body()))[0] == 503
    app.faults.append(Fault("fail"))
    with pytest.raises(EngineUnavailable):
        await _post(app, _body())
    for stream in (False, True):
        app.faults.append(Fault("break", after_chunks=1))
        with pytest.raises(EngineProtocolError):
            await _post(app, _body(stream=stream))
    app.faults.append(Fault("slow", seconds=0.01))
    assert (await _post(app, _body()))[0] == 200
    assert (await _post(app, {"kind": "no such"}, "/fake/faults"))[0] == 400
    app.faults.append(Fault("crash"))
    assert [(await _post(app, _body()))[0] for _ in range(2)] == [500, 500]
    async with call(app, "GET", "/health") as reply:
        assert reply.status == 503


async def test_routes(app: FakeApp) -> None:
    for method, path, status in [("GET", "/health", 200), ("GET", "/no", 404), ("GET", "/tokenize", 405)]:
        async with call(app, method, path) as reply:
            assert reply.status == status


def _checkpoint(folder: Path, template: str) -> Path:
    alphabet = {token: number for number, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    specials = [AddedToken(token, special=True) for token in SPECIAL_TOKENS]
    tokenizer.add_special_tokens(specials)  # pyright: ignore[reportUnknownMemberType]
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<|im_end|>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


PARTS = (
    "{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{% if p.type == 'image' %}<|image_pad|>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %};{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
)
TEXTS = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (PARTS, "user:a<|image_pad|>b;"),
        (TEXTS, "user:<|vision_start|><|image_pad|><|vision_end|>\na\nb;"),
    ],
)
def test_a_checkpoints_template(tmp_path: Path, template: str, text: str) -> None:
    core = FakeCore(FakeConfig(checkpoint=_checkpoint(tmp_path, template)))
    part = {"type": "image_url", "image_url": {"url": data_url(56, 56, 1).decode()}}
    prompt = core.render({"messages": [{"role": "user", "content": ["a", part, "b"]}]})
    expected = core.tokenizer.encode(text)
    assert len(prompt.tokens) == len(expected) + 3
    assert [token for token in prompt.tokens if token != core.tokenizer.image_token] == [
        token for token in expected if token != core.tokenizer.image_token
    ]


def test_tools_stand_in_a_template_as_vllm_gives_them(tmp_path: Path) -> None:
    core = FakeCore(FakeConfig(checkpoint=_checkpoint(tmp_path, PARTS)))
    tools = [{"type": "function", "function": {"parameters": {"b": 1, "a": 2}, "name": "f", "unknown": 1}}]
    rendered = core.render(_body("x", tools=tools)).tokens
    written = (
        'user:x;[{"type": "function", "function": {"name": "f", "description": null, "parameters": {"b": 1, "a": 2}}}]'
    )
    assert rendered == core.tokenizer.encode(written)


@pytest.mark.parametrize("missing", ["tokenizer.json", "tokenizer_config.json"])
def test_an_incomplete_checkpoint(tmp_path: Path, missing: str) -> None:
    (_checkpoint(tmp_path, TEXTS) / missing).unlink()
    with pytest.raises(ConfigError) as refused:
        FakeCore(FakeConfig(checkpoint=tmp_path))
    assert str(tmp_path) not in str(refused.value)


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    _, config = parse(["--num-blocks", "9", "--max-model-tokens", "64", "--script", "a", "--script", "b", "--no-uuid"])
    assert (config.num_blocks, config.script, config.accepts_uuid) == (9, ("a", "b"), False)
    assert main(["--num-blocks", "9"]) == 2
    assert "raise num_blocks" in capsys.readouterr().err


def test_a_taken_port(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["--port", str(taken.getsockname()[1])]) == 1
    assert "--port N" in capsys.readouterr().err


def test_as_a_process() -> None:
    command = [sys.executable, "-m", "engine.fake", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        host, _, port = process.stdout.readline().rpartition("http://")[2].strip().partition(":")
        try:
            with socket.create_connection((host, int(port)), timeout=20) as connection:
                connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
                assert connection.recv(64).startswith(b"HTTP/1.1 200")
        finally:
            process.terminate()
