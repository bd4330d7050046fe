"""The controlled experiment: does the engine's cache do what it should, straight and through the gateway?

For each group two requests are sent that differ in one thing. What the second one reads is compared with what the
prompts themselves allow: the longest common prefix of the two token sequences, in whole blocks. That figure comes from
the engine's own tokenizer and not from its cache, so a cache that is wrong shows.

Each group starts on empty caches. A group measured straight sends its pictures as the client has them; through the
gateway the same requests go to the chat route.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import aiohttp
from pydantic_core import from_json

from context.errors import EngineUnavailable
from metrics.experiment_groups import GROUPS, TOOLS, Group, Pair, pair
from metrics.usage import Usage, read_usage

Path = Literal["direct", "gateway"]
PATHS: tuple[Path, ...] = ("direct", "gateway")
_TIMEOUT_SECONDS = 300
_ANSWER_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Row:
    """The second request of a group on one path. Tokens are the engine's; None is unreported.

    `first_difference` is where the two prompts part: message and part as the client wrote them, and the token.
    `expected` says in words and tokens what should be read, `verdict` is `ok` or says what is wrong.
    """

    group: str
    change: str
    path: str
    prompt_tokens: int | None
    read_tokens: int | None
    write_tokens: int | None
    uncached_tokens: int | None
    visual_tokens: int | None
    images: int
    unique_images: int
    encoder_runs: int | None
    encoder_hits: int | None
    first_difference: Mapping[str, Any] | None
    ttft_seconds: float
    total_seconds: float
    expected: Mapping[str, Any]
    verdict: str


@dataclass(frozen=True, slots=True)
class Answer:
    """One request's figures."""

    request_id: str
    usage: Usage
    ttft_seconds: float
    total_seconds: float


class GatewayClient:
    """Talks to a running gateway as a client and as its administrator."""

    def __init__(self, url: str, admin_token: str, api_key: str = "") -> None:
        self._url = url.rstrip("/")
        self._admin = {"authorization": f"Bearer {admin_token}"}
        self._client = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[GatewayClient]:
        """Hold the connections while inside."""
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as session:
            self._session = session
            yield self

    async def state(self) -> dict[str, Any]:
        """The gateway's `/admin/state`.

        Raises:
            EngineUnavailable: there is no gateway, or it refuses the token.
        """
        return await self._json("GET", "/admin/state")

    async def reset(self) -> None:
        """Empty the engine's caches."""
        await self._json("POST", "/admin/reset")

    async def encoder(self, request_id: str) -> tuple[int | None, int | None]:
        """Encoder runs and hits of a finished request."""
        record = await self._json("GET", f"/admin/requests/{request_id}")
        return record["encoder_runs"], record["encoder_hits"]

    async def tokens(self, body: Mapping[str, Any]) -> list[int]:
        """The prompt's token ids, images expanded, by the engine's own tokenizer."""
        asked = {"model": body["model"], "messages": body["messages"], "add_generation_prompt": True}
        if "tools" in body:
            asked["tools"] = body["tools"]
        return (await self._json("POST", "/engine/tokenize", asked))["tokens"]

    async def chat(self, path: Path, body: Mapping[str, Any]) -> Answer:
        """Send a streamed chat and take its figures."""
        assert self._session is not None
        route = "/v1/chat/completions" if path == "gateway" else "/engine/v1/chat/completions"
        request_id = secrets.token_hex(12)
        headers = self._client if path == "gateway" else {**self._admin, "x-request-id": request_id}
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        began, first, usage = time.perf_counter(), 0.0, None
        async with self._session.post(self._url + route, json=asked, headers=headers) as response:
            if response.status != 200:
                raise EngineUnavailable(f"A request of the experiment was refused: {await _reason(response)}")
            if path == "gateway":
                request_id = response.headers["x-request-id"]
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                event: dict[str, Any] = from_json(line[6:])
                if not first and b'"content":' in line and b'"content":""' not in line:
                    first = time.perf_counter()
                usage = event.get("usage") or usage
        ended = time.perf_counter()
        return Answer(request_id, read_usage(usage), (first or ended) - began, ended - began)

    async def _json(self, method: str, path: str, body: Any = None) -> Any:
        assert self._session is not None
        try:
            async with self._session.request(method, self._url + path, json=body, headers=self._admin) as response:
                if response.status != 200:
                    raise EngineUnavailable(f"The gateway refused {path}: {await _reason(response)}")
                return await response.json()
        except aiohttp.ClientConnectionError as error:
            raise EngineUnavailable(
                f"There is no gateway at {self._url}. Start one with 'stillframe serve'."
            ) from error


async def _reason(response: aiohttp.ClientResponse) -> str:
    try:
        return str((await response.json())["error"]["message"])
    except (ValueError, KeyError, TypeError, aiohttp.ContentTypeError):
        return f"HTTP {response.status}"


async def run(
    client: GatewayClient, groups: Sequence[Group], seed: int, progress: Callable[[str], None] = lambda _: None
) -> list[Row]:
    """Run groups on a gateway whose engine is ready; rows in order, direct before gateway.

    Raises:
        EngineUnavailable: the gateway or its engine cannot run it; says why.
    """
    engine = (await client.state())["engine"]
    block = engine["block_tokens"]
    if not block or not engine["models"]:
        raise EngineUnavailable("The experiment needs an engine that reports its blocks: vLLM, or the fake engine.")
    model = engine["models"][0]
    pad = await _image_token(client, model)
    await _warm_up(client, model)
    rows: list[Row] = []
    for group in groups:
        made = pair(group, seed)
        bodies = _body(model, made.first), _body(model, made.second)
        tokens = [await client.tokens(body) for body in bodies]
        for path in PATHS:
            progress(f"{group} {GROUPS[group]}, {path}")
            await client.reset()
            await client.chat(path, bodies[0])
            answer = await client.chat(path, bodies[1])
            runs, hits = await client.encoder(answer.request_id)
            expected = _expect(made, path, tokens, pad, block)
            rows.append(_row(made, path, answer, expected, runs, hits))
    return _compare(rows)


def _body(model: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "model": model,
        "messages": messages,
        "tools": list(TOOLS),
        "tool_choice": "none",
        "temperature": 0,
        "seed": 0,
        "max_tokens": _ANSWER_TOKENS,
    }


async def _image_token(client: GatewayClient, model: str) -> int:
    """The token that stands for a piece of an image: by far the most frequent one of a prompt with little text."""
    picture = next(part for part in pair("A", 0).first[1]["content"] if part["type"] == "image_url")
    tokens = await client.tokens({"model": model, "messages": [{"role": "user", "content": [picture]}]})
    return Counter(tokens).most_common(1)[0][0]


async def _warm_up(client: GatewayClient, model: str) -> None:
    """The first requests of an engine pay for its own caches of code and memory."""
    for path in PATHS:
        await client.chat(path, _body(model, pair("A", 99).first))


Token = tuple[int, str]


def _with_images(tokens: Sequence[int], pad: int, keys: Sequence[str]) -> list[Token]:
    """Tokens with the picture that each belongs to: two pictures have equal tokens and are not equal."""
    marked: list[Token] = []
    images = -1
    before: int | None = None
    for token in tokens:
        if token == pad and before != pad:
            images += 1
        marked.append((token, keys[images] if token == pad and 0 <= images < len(keys) else ""))
        before = token
    return marked


@dataclass(frozen=True, slots=True)
class Expected:
    """What the second request of a group should read and encode, from the two prompts alone."""

    read_tokens: int
    encoder_runs: int
    encoder_hits: int
    common_tokens: int | None


def _expect(made: Pair, path: Path, tokens: Sequence[Sequence[int]], pad: int, block: int) -> Expected:
    """Args: `tokens` of both prompts, `pad` the image token, `block` the tokens of a KV block."""
    pictures = made.second_pictures
    if made.group == "F" and path == "direct":
        # The engine's own identity of an image is its bytes: the same pixels written otherwise are another image.
        pictures = tuple(f"{key}, other bytes" for key in pictures)
    first, second = _with_images(tokens[0], pad, made.first_pictures), _with_images(tokens[1], pad, pictures)
    common = _common(first, second)
    # The last token of a prompt is always computed: one that ends with a full block reads one block less.
    read = min(common, len(second) - 1) // block * block
    # An image whose tokens are all read never reaches the encoder cache.
    needed = {key for _, key in second[read:] if key}
    new = needed - set(made.first_pictures)
    return Expected(read, len(new), len(needed - new), None if common == len(second) else common)


def _row(made: Pair, path: Path, answer: Answer, expected: Expected, runs: int | None, hits: int | None) -> Row:
    usage = answer.usage
    differs = expected.common_tokens is not None
    return Row(
        group=made.group,
        change=GROUPS[made.group],
        path=path,
        prompt_tokens=usage.prompt_tokens,
        read_tokens=usage.read_tokens,
        write_tokens=usage.write_tokens,
        uncached_tokens=usage.uncached_tokens,
        visual_tokens=usage.visual_tokens,
        images=len(made.second_pictures),
        unique_images=len(set(made.second_pictures)),
        encoder_runs=runs,
        encoder_hits=hits,
        first_difference={**_place(made), "token": expected.common_tokens} if differs else None,
        ttft_seconds=answer.ttft_seconds,
        total_seconds=answer.total_seconds,
        expected={
            "read_tokens": expected.read_tokens,
            "encoder_runs": expected.encoder_runs,
            "encoder_hits": expected.encoder_hits,
            "rule": RULES[made.group],
        },
        verdict=_verdict(usage, runs, hits, expected),
    )


RULES: Mapping[Group, str] = {
    "A": "every full block is read",
    "B": "the whole old prefix is read",
    "C": "the prefix before the new image is read; only it is encoded",
    "D": "read stops at the deleted image; later images are encoder hits and KV misses",
    "E": "read stops at the deleted image, later than in D",
    "F": "straight: every image is new; through the gateway: as A",
    "G": "read stops at the first swapped image; both are encoder hits",
    "H": "the prefix before the tail is read",
}


def _common(first: Sequence[Token], second: Sequence[Token]) -> int:
    for index, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return index
    return min(len(first), len(second))


def _place(made: Pair) -> dict[str, Any]:
    """Message and part of the first difference, as the client wrote them."""
    for index, (one, other) in enumerate(zip(made.first, made.second, strict=False)):
        if one == other:
            continue
        parts = zip(one["content"], other["content"], strict=False)
        shorter = min(len(one["content"]), len(other["content"]))
        return {"message": index, "part": next((i for i, (a, b) in enumerate(parts) if a != b), shorter)}
    return {"message": min(len(made.first), len(made.second)), "part": 0}


def _verdict(usage: Usage, runs: int | None, hits: int | None, expected: Expected) -> str:
    wrong: list[str] = []
    if usage.read_tokens is None:
        wrong.append("read tokens are unreported")
    elif usage.read_tokens != expected.read_tokens:
        wrong.append(f"read {usage.read_tokens} tokens instead of {expected.read_tokens}")
    for name, measured, wanted in (
        ("encoder runs", runs, expected.encoder_runs),
        ("encoder hits", hits, expected.encoder_hits),
    ):
        if measured is not None and measured != wanted:
            wrong.append(f"{name} {measured} instead of {wanted}")
    return "; ".join(wrong) or "ok"


def _compare(rows: list[Row]) -> list[Row]:
    """Add what only two rows together can show: E reads more than D, and F through the gateway is A."""
    read = {(row.group, row.path): row.read_tokens or 0 for row in rows}
    checked: list[Row] = []
    for row in rows:
        problem = ""
        if row.group == "E" and ("D", row.path) in read and read["E", row.path] <= read["D", row.path]:
            problem = "read does not stop later than in D"
        if row.group == "F" and ("A", row.path) in read:
            same = read["F", row.path] == read["A", row.path]
            if same != (row.path == "gateway"):
                problem = "does not equal A" if row.path == "gateway" else "equals A, although the bytes differ"
        if problem:
            verdict = problem if row.verdict == "ok" else f"{row.verdict}; {problem}"
            checked.append(replace(row, verdict=verdict))
        else:
            checked.append(row)
    return checked
