"""What the records and metrics of a mixed session say is what the real engine counted.

With STILLFRAME_LONG=1 it has five hundred turns.
"""

from __future__ import annotations

import base64
import io
import json
import os
import random
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from PIL import Image

from metrics.records import queries
from metrics.records.queries import open_records
from metrics.records.record import TurnRecord
from tests.e2e.test_real_engine import Served, served_by, wait_for

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

_TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {"name": "look", "description": "Look around.", "parameters": {"type": "object", "properties": {}}},
    }
]
_WORDS = tuple("the red circle is left of a small blue square and far below it stands one green star".split(" "))  # noqa: SIM905 - as one reads it
# By these words the engine counts, too: prompts, and what the prefix cache was asked for and gave.
_COUNTERS = ("vllm:prompt_tokens_total", "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    yield from served_by(tmp_path_factory.mktemp("data"))


@dataclass(slots=True)
class Session:
    """Some conversations at a time, one turn after another; `used` is the usage of each turn by its request id."""

    served: Served
    rng: random.Random
    chats: list[list[Any]] = field(default_factory=lambda: [[] for _ in range(6)])
    used: dict[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    apart: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_COUNTERS, 0.0))
    twice: set[str] = field(default_factory=set[str])
    aborted: int = 0

    def turn(self) -> None:
        """One turn of some kind in some conversation; kinds that the engine counts in another way stand apart."""
        at = self.rng.randrange(len(self.chats))
        if len(self.chats[at]) > 24:
            self.chats[at] = []
        chat = self.chats[at]
        chat += self._asked(chat)
        body = {"messages": chat, "max_tokens": self.rng.randrange(1, 6), "seed": 1}
        if at % 3 == 0:
            body |= {"tools": _TOOLS, "tool_choice": "none"}
        kind = self.rng.random()
        if kind < 0.06:
            self._apart(lambda: self._leave(body))
            chat.pop()
            return
        if kind < 0.12:
            known = set(self.used)
            self._apart(lambda: chat.append(self._ask(body | {"n": 2})))
            self.twice |= self.used.keys() - known
            return
        chat.append(self._ask(body) if kind < 0.55 else self._stream(body))

    def _asked(self, chat: list[Any]) -> list[Any]:
        text = " ".join(self.rng.choices(_WORDS, k=self.rng.randrange(3, 40)))
        head = [] if chat else [{"role": "system", "content": "You look at pictures. " * self.rng.randrange(1, 9)}]
        if len(chat) > 2 and self.rng.random() < 0.15:
            call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
            said = {"role": "assistant", "content": None, "tool_calls": [call]}
            chat[-1:] = [said]
            return [{"role": "tool", "tool_call_id": "c1", "content": text}]
        if self.rng.random() < 0.3:
            return [*head, {"role": "user", "content": [self._picture(), {"type": "text", "text": text}]}]
        return [*head, {"role": "user", "content": text}]

    def _picture(self) -> Any:
        color = tuple(self.rng.randrange(0, 256, 51) for _ in range(3))
        out, kind = io.BytesIO(), self.rng.choice(["png", "gif"])
        Image.new("RGB", (self.rng.choice([56, 84, 112]), 84), color).save(out, kind)
        data = base64.b64encode(out.getvalue()).decode()
        return {"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,{data}"}}

    def _ask(self, body: Any) -> Any:
        answer = httpx.post(f"{self.served.url}/v1/chat/completions", json=body, timeout=120)
        assert answer.status_code == 200, answer.text
        found = answer.json()
        self.used[answer.headers["x-request-id"]] = found["usage"]
        return {"role": "assistant", "content": found["choices"][0]["message"]["content"] or ""}

    def _stream(self, body: Any) -> Any:
        body = body | {"stream": True, "stream_options": {"include_usage": True}}
        words, usage = "", None
        with httpx.stream("POST", f"{self.served.url}/v1/chat/completions", json=body, timeout=120) as answer:
            for line in answer.iter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line.removeprefix("data: "))
                usage = event.get("usage") or usage
                words += "".join(choice["delta"].get("content") or "" for choice in event["choices"])
        assert usage is not None
        self.used[answer.headers["x-request-id"]] = usage
        return {"role": "assistant", "content": words}

    def _leave(self, body: Any) -> None:
        body = body | {"stream": True, "max_tokens": 400, "ignore_eos": True}
        with httpx.stream("POST", f"{self.served.url}/v1/chat/completions", json=body, timeout=120) as answer:
            lines = answer.iter_lines()
            while not next(lines).startswith("data: "):
                pass
        self.aborted += 1
        wait_for(lambda: self.counted("stillframe_running_requests") == 0, 10)

    def _apart(self, act: Any) -> None:
        before = self.engine()
        act()
        for name, value in self.engine().items():
            self.apart[name] += value - before[name]

    def engine(self) -> dict[str, float]:
        """The engine's own counters."""
        return {name: self.counted(name) for name in _COUNTERS}

    def counted(self, name: str, label: str = "") -> float:
        lines = httpx.get(f"{self.served.url}/metrics", timeout=30).text.splitlines()
        return sum(
            float(line.rsplit(" ", 1)[1])
            for line in lines
            if line.split("{")[0].split(" ")[0] == name and label in line
        )


def records_of(served: Served, count: int) -> list[TurnRecord]:
    """The records, once so many are written."""
    found: list[TurnRecord] = []

    def are_there() -> bool:
        nonlocal found
        with open_records(served.data / "ledger.db") as records:
            found = queries.latest(records, limit=10_000)
        return len(found) >= count

    wait_for(are_there, 10)
    return found


@pytest.mark.parametrize("turns", [500 if os.environ.get("STILLFRAME_LONG") == "1" else 150])
def test_every_turn_and_all_sums_are_the_engines(served: Served, turns: int) -> None:
    session = Session(served, random.Random(turns))  # noqa: S311
    known = {one.request_id for one in records_of(served, 0)}
    parts = ("read", "write", "uncached")
    own = {part: session.counted("stillframe_prompt_tokens_total", part) for part in parts}
    engine = session.engine()
    for _ in range(turns):
        session.turn()
    made = [one for one in records_of(served, len(known) + turns) if one.request_id not in known]
    completed = [one for one in made if one.outcome == "completed"]
    assert len(made) == turns
    assert {one.request_id for one in completed} == session.used.keys()
    assert sum(one.outcome == "aborted" for one in made) == session.aborted > 0
    for one in completed:
        usage = session.used[one.request_id]
        assert one.prompt_tokens == usage["prompt_tokens"]
        assert one.read_tokens == usage["prompt_tokens_details"]["cached_tokens"]
        assert one.read_tokens is not None
        assert one.write_tokens is not None
        assert one.uncached_tokens is not None
        assert one.read_tokens + one.write_tokens + one.uncached_tokens == usage["prompt_tokens"]
    for part in parts:
        grown = session.counted("stillframe_prompt_tokens_total", part) - own[part]
        assert grown == sum(getattr(one, f"{part}_tokens") for one in completed)
    # Of a turn that was left there is no usage; one of two choices is asked twice. The engine counts both.
    grown = {name: value - engine[name] - session.apart[name] for name, value in session.engine().items()}
    single = [one for one in completed if one.request_id not in session.twice]
    prompt, read = sum(one.prompt_tokens or 0 for one in single), sum(one.read_tokens or 0 for one in single)
    assert grown == dict(zip(_COUNTERS, (prompt, prompt, read), strict=True))
