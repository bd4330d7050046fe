"""The tokenizer takes any text, and the chat template only appends."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from engine.demo_model import bundled_folder

TOKENIZER = Tokenizer.from_file(str(bundled_folder() / "tokenizer.json"))
TEMPLATE = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(
    (bundled_folder() / "chat_template.jinja").read_text()
)


@given(st.text())
def test_any_text_comes_back_as_it_was(text: str) -> None:
    ids = TOKENIZER.encode(text).ids
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text


def test_the_vocabulary_is_small_and_an_answer_is_few_tokens() -> None:
    assert TOKENIZER.get_vocab_size() <= 4096
    for answer in ("red", "circle", "three", "7", "yes", "white"):
        assert len(TOKENIZER.encode(answer).ids) == 1


def random_chat(rng: random.Random) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
    """Messages up to a user's or tool's turn, over everything that a chat may hold."""
    words = ("hello", "größe", "<|im_end|>", "look:\n\n", "a  b ", "{{ x }}", "", "\t7", "🙂")

    def text() -> str:
        return "".join(rng.choice(words) for _ in range(rng.randint(0, 6)))

    def content() -> Any:
        if rng.random() < 0.5:
            return text()
        image = {"type": "image_url", "image_url": {"url": "data:,"}}
        return [rng.choice((image, {"type": "text", "text": text()})) for _ in range(rng.randint(1, 4))]

    messages: list[dict[str, Any]] = []
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": content() if rng.random() < 0.3 else text()})
    for turn in range(rng.randint(2, 6)):
        messages.append({"role": "user", "content": content()})
        if rng.random() < 0.3:
            call = {"type": "function", "id": f"c{turn}", "function": {"name": "look", "arguments": '{"at": 1}'}}
            messages.append({"role": "assistant", "content": rng.choice((None, text())), "tool_calls": [call]})
            messages.append({"role": "tool", "tool_call_id": f"c{turn}", "content": content()})
        messages.append({"role": "assistant", "content": text()})
    tool: dict[str, Any] = {
        "type": "function",
        "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
    }
    return messages, [tool] if rng.random() < 0.4 else None


def render(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> str:
    return TEMPLATE.render(messages=messages, tools=tools, add_generation_prompt=True)


@pytest.mark.parametrize("seed", range(200))
def test_the_prompt_of_a_turn_is_a_prefix_of_the_next_ones(seed: int) -> None:
    messages, tools = random_chat(random.Random(seed))  # noqa: S311  no secret
    turns = [end for end in range(1, len(messages) + 1) if messages[end - 1]["role"] in ("user", "tool")]
    prompts = [render(messages[:end], tools) for end in turns]
    assert len(prompts) >= 2
    for earlier, later in pairwise(prompts):
        assert later.startswith(earlier)
        assert len(later) > len(earlier)
