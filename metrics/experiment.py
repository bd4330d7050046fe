"""The controlled experiment: does the engine's cache do what it should, straight and through the gateway?

For each group two requests are sent that differ in one thing. What the second one reads is compared with what the
prompts themselves allow: the longest common prefix of the two token sequences, in whole blocks. That figure comes from
the engine's own tokenizer and not from its cache, so a cache that is wrong shows.

Each group starts on empty caches. A group measured straight sends its pictures as the client has them; through the
gateway the same requests go to the chat route.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from context.errors import EngineUnavailable
from metrics.experiment_client import Answer, GatewayClient, Route
from metrics.experiment_groups import GROUPS, TOOLS, Group, Pair, pair
from metrics.usage import Usage

__all__ = ["ROUTES", "RULES", "GatewayClient", "Row", "run"]

ROUTES: tuple[Route, ...] = ("direct", "gateway")
_ANSWER_TOKENS = 4
# What an engine over HTTP cannot tell is no fault of its caches; an engine that reports its events has to.
_OK_WITHOUT_ENCODER = "ok (encoder figures are unreported)"


@dataclass(frozen=True, slots=True)
class Row:
    """The second request of a group on one path. Tokens are the engine's; None is unreported.

    `first_difference` is where the two prompts part: message and part as the client wrote them, and the token.
    `expected` says in words and tokens what should be read. `verdict` says what is wrong, or begins with `ok`: alone,
    or with what could not be checked. `write_derived`: see `Usage`.
    """

    group: str
    change: str
    path: Route
    prompt_tokens: int | None
    read_tokens: int | None
    write_tokens: int | None
    write_derived: bool
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

    @property
    def passed(self) -> bool:
        """Whether nothing that was reported is wrong, and the read tokens were reported."""
        return self.verdict in ("ok", _OK_WITHOUT_ENCODER)


async def run(
    client: GatewayClient, groups: Sequence[Group], seed: int, progress: Callable[[str], None] = lambda _: None
) -> list[Row]:
    """Run groups on a gateway whose engine is ready; rows in order, direct before gateway.

    Raises:
        EngineUnavailable: the gateway or its engine cannot run it; says why.
    """
    engine = (await client.state())["engine"]
    if engine["state"] != "ready":
        raise EngineUnavailable("The engine is not ready yet; try again when /health/ready says so.")
    block = engine["block_tokens"]
    if not block or not engine["models"]:
        raise EngineUnavailable(
            "The experiment needs an engine that tells its model and the size of its KV blocks: an embedded vLLM, the "
            "fake engine, or an upstream whose /metrics has vllm:cache_config_info."
        )
    model = engine["models"][0]
    pad = await _image_token(client, model)
    await _warm_up(client, model)
    rows: list[Row] = []
    for group in groups:
        made = pair(group, seed)
        bodies = _body(model, made.first), _body(model, made.second)
        tokens = [await client.tokens(body) for body in bodies]
        for path in ROUTES:
            progress(f"{group} {GROUPS[group]}, {path}")
            await client.reset()
            await client.chat(path, bodies[0])
            answer = await client.chat(path, bodies[1])
            runs, hits = await client.encoder(answer.request_id)
            expected = _expect(made, path, tokens, pad, block)
            verdict = _verdict(answer.usage, runs, hits, expected, tells_encoder=engine["kind"] != "remote")
            rows.append(_row(made, path, answer, expected, runs, hits, verdict))
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
    for path in ROUTES:
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


def _expect(made: Pair, path: Route, tokens: Sequence[Sequence[int]], pad: int, block: int) -> Expected:
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


def _row(
    made: Pair, path: Route, answer: Answer, expected: Expected, runs: int | None, hits: int | None, verdict: str
) -> Row:
    usage = answer.usage
    differs = expected.common_tokens is not None
    return Row(
        group=made.group,
        change=GROUPS[made.group],
        path=path,
        prompt_tokens=usage.prompt_tokens,
        read_tokens=usage.read_tokens,
        write_tokens=usage.write_tokens,
        write_derived=usage.write_derived,
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
        verdict=verdict,
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


def _verdict(usage: Usage, runs: int | None, hits: int | None, expected: Expected, *, tells_encoder: bool) -> str:
    wrong: list[str] = []
    if usage.read_tokens is None:
        wrong.append("read tokens are unreported")
    elif usage.read_tokens != expected.read_tokens:
        wrong.append(f"read {usage.read_tokens} tokens instead of {expected.read_tokens}")
    unreported = runs is None or hits is None
    if unreported and tells_encoder:
        wrong.append("encoder figures are unreported")
    for name, measured, wanted in (
        ("encoder runs", runs, expected.encoder_runs),
        ("encoder hits", hits, expected.encoder_hits),
    ):
        if measured is not None and measured != wanted:
            wrong.append(f"{name} {measured} instead of {wanted}")
    return "; ".join(wrong) or (_OK_WITHOUT_ENCODER if unreported else "ok")


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
            verdict = problem if row.passed else f"{row.verdict}; {problem}"
            checked.append(replace(row, verdict=verdict))
        else:
            checked.append(row)
    return checked
