"""Each cause in a session that makes it, through the real planner and the fake engine's caches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from context.policies.choice import load_policy
from context.policies.summary import Summary
from engine.fake.template import ChatMLTemplate, Conversation
from metrics.attribution import Attribution
from metrics.usage import Usage
from tests.contract.cases import words
from tests.unit.metrics.attribution_rig import BLOCK, Client, OtherTemplate, Rig, picture, rig, uuid_of

TOOLS: list[Any] = [{"type": "function", "function": {"name": "look", "description": words(30), "parameters": {}}}]


async def begun(rig: Rig, client: Client, turns: int = 3) -> None:
    """Some turns in which nothing is lost."""
    client.messages.append({"role": "system", "content": f"It is 2026-11-03 10:15:00. {words(40)}"})
    for number in range(turns):
        found = await rig.ask(client, words(30, seed=number), picture(number))
        assert found.cause == (None if number else "cold")
        assert found.lost_tokens == 0


async def cold(rig: Rig, client: Client) -> Attribution:
    return await rig.ask(Client("another"), words(30, seed=77))


async def client_edit(rig: Rig, client: Client) -> Attribution:
    client.messages[3]["content"][0]["text"] = "something else"
    return await rig.ask(client, "and now?")


async def client_window(rig: Rig, client: Client) -> Attribution:
    del client.messages[1:3]
    return await rig.ask(client, "and now?")


async def volatile_text(rig: Rig, client: Client) -> Attribution:
    client.system(f"It is 2026-11-03 10:16:07. {words(40)}")
    return await rig.ask(client, "and now?")


async def tools_changed(rig: Rig, client: Client) -> Attribution:
    client.tools = TOOLS
    return await rig.ask(client, "and now?")


async def policy_eviction(rig: Rig, client: Client) -> Attribution:
    client.policy = load_policy("sliding")
    return await rig.ask(client, "and now?", picture(50))


async def summary(rig: Rig, client: Client) -> Attribution:
    client.policy = Summary("turns", 3, 1)
    return await rig.ask(client, "and now?")


async def engine_eviction(rig: Rig, client: Client) -> Attribution:
    rig.fill(rig.core.config.max_model_tokens - 200, seed=1)
    return await rig.ask(client, "and now?")


async def template(rig: Rig, client: Client) -> Attribution:
    rig.core.template = OtherTemplate()
    return await rig.ask(client, "and now?")


async def salt(rig: Rig, client: Client) -> Attribution:
    client.salt = "another"
    return await rig.ask(client, "and now?")


async def below_block(rig: Rig, client: Client) -> Attribution:
    short = Client("short")
    assert (await rig.ask(short, "hi", reply="yes")).cause == "cold"
    assert rig.usage.prompt_tokens is not None
    assert rig.usage.prompt_tokens < BLOCK
    return await rig.ask(short, words(30))


async def engine_unreported(rig: Rig, client: Client) -> Attribution:
    rig.reports = False
    return await rig.ask(client, "and now?")


Make = Callable[[Rig, Client], Awaitable[Attribution]]
ACTORS: dict[Make, str] = {
    cold: "client",
    client_edit: "client",
    client_window: "client",
    volatile_text: "client",
    tools_changed: "client",
    policy_eviction: "policy",
    summary: "policy",
    engine_eviction: "engine",
    template: "template",
    salt: "gateway",
    below_block: "engine",
    engine_unreported: "engine",
}


def check_made(make: Make, found: Attribution, usage: Usage, block: int) -> None:
    """The cause that was made is the one that was found, and what it cost is what the engine did not read."""
    assert (found.cause, found.actor) == (make.__name__, ACTORS[make])
    if make in (cold, below_block):
        assert (found.expected_read, found.lost_tokens) == (0, 0)
    elif make is engine_unreported:
        assert (found.expected_read, found.lost_tokens) == (None, None)
    else:
        assert found.expected_read is not None
        assert usage.read_tokens is not None
        assert found.lost_tokens == found.expected_read - usage.read_tokens >= block


@pytest.mark.parametrize("make", ACTORS, ids=lambda make: make.__name__)
async def test_every_cause(make: Make) -> None:
    async with rig(num_blocks=257) as made:
        client = Client("c")
        await begun(made, client)
        check_made(make, await make(made, client), made.usage, BLOCK)


async def test_it_is_what_was_sent_before_that_is_expected() -> None:
    async with rig() as made:
        client = Client("c")
        await made.ask(client, words(40))
        before = made.usage
        assert before.prompt_tokens is not None
        assert before.completion_tokens is not None
        found = await made.ask(client, words(40, seed=1))
        left = before.prompt_tokens + before.completion_tokens - 1
        assert found.expected_read == made.usage.read_tokens == left // BLOCK * BLOCK
        # The same again: all but the block of the last token.
        del client.messages[-1:]
        again = await made.ask(client)
        assert made.usage.prompt_tokens is not None
        assert again.expected_read == made.usage.read_tokens == (made.usage.prompt_tokens - 1) // BLOCK * BLOCK
        assert again.cause is None


async def test_a_branch_expects_what_it_repeats() -> None:
    async with rig() as made:
        client = Client("c")
        client.messages.append({"role": "system", "content": words(40)})
        for number in range(3):
            await made.ask(client, words(40, seed=number))
        client.messages[5:] = []
        found = await made.ask(client, words(40, seed=9))
        assert (found.cause, found.lost_tokens) == (None, 0)
        assert found.expected_read == made.usage.read_tokens


async def test_a_loss_below_a_block_is_none() -> None:
    async with rig() as made:
        client = Client("c")
        await begun(made, client, 1)
        # All but the last words of the reply: of those no block is full.
        client.messages[-1] = {"role": "assistant", "content": client.messages[-1]["content"] + "!"}
        found = await made.ask(client, "and now?")
        assert client.last is not None
        assert client.last.breaks
        assert (found.cause, found.lost_tokens) == (None, 0)


@pytest.mark.parametrize("mirrored", [True, False])
async def test_the_break_is_marked_at_its_place(mirrored: bool) -> None:
    async with rig(mirrored=mirrored) as made:
        client = Client("c")
        await begun(made, client, 6)
        del client.messages[6:7]
        client.messages.insert(6, {"role": "assistant", "content": "changed"})
        found = await made.ask(client, "and now?")
        assert found.cause == "client_edit"
        assert found.break_token is not None
        assert made.usage.read_tokens is not None
        off = BLOCK if mirrored else made.usage.read_tokens * 0.15 + BLOCK
        assert abs(found.break_token - made.usage.read_tokens) <= off


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (client_edit, "client_edit"),
        (tools_changed, "tools_changed"),
        (policy_eviction, "policy_eviction"),
        (salt, "salt"),
        (below_block, "below_block"),
        # Without events nobody can tell these two apart.
        (engine_eviction, "engine_unreported"),
        (template, "engine_unreported"),
    ],
)
async def test_without_events(make: Make, cause: str) -> None:
    async with rig(num_blocks=257, mirrored=False) as made:
        client = Client("c")
        await begun(made, client)
        found = await make(made, client)
        assert found.cause == cause
        assert found.evicted_image is None


async def test_the_probe_tells_the_template_without_events() -> None:
    async with rig(mirrored=False) as made:
        made.attributor.template_extends = False
        client = Client("c")
        await begun(made, client)
        assert (await template(made, client)).cause == "template"


@pytest.mark.parametrize("mirrored", [True, False])
@pytest.mark.parametrize("also", [None, summary, client_edit, policy_eviction, volatile_text])
async def test_a_change_of_model_is_the_clients_whatever_else_the_turn_does(mirrored: bool, also: Make | None) -> None:
    """Another model has a cache of its own: nothing of what was sent can be read, with or without a summary."""
    for model, actor in (("another", "client"), ("model", "gateway")):
        async with rig(num_blocks=257, mirrored=mirrored) as made:
            client = Client("c")
            await begun(made, client)
            client.model, client.salt = model, "another"
            found = await (made.ask(client, "and now?") if also is None else also(made, client))
            assert (found.cause, found.actor) == ("salt", actor)
            assert found.lost_tokens == found.expected_read


async def test_another_name_of_the_same_model_is_no_other_cache() -> None:
    """What has been read, or is there to be read, is the same cache's."""
    async with rig(num_blocks=257) as made:
        client = Client("c")
        await begun(made, client)
        client.model = "an alias"
        assert (await made.ask(client, "and now?")).cause is None
        client.model = "model"
        assert (await client_edit(made, client)).cause == "client_edit"


async def test_a_break_behind_what_was_evicted_is_not_the_reason() -> None:
    """The client changes its last question, and the engine has evicted all: the client is not to blame."""
    async with rig(num_blocks=257) as made:
        client = Client("c")
        await begun(made, client, 5)
        client.messages[-1] = {"role": "assistant", "content": words(20, seed=500)}
        made.fill(made.core.config.max_model_tokens - 200, seed=1)
        found = await made.ask(client, "and now?")
        assert client.last is not None
        assert [one.cause for one in client.last.breaks] == ["client_edit"]
        assert found.cause == "engine_eviction"


async def test_a_break_in_front_of_what_was_evicted_is_the_reason() -> None:
    async with rig(num_blocks=257) as made:
        client = Client("c")
        await begun(made, client, 5)
        client.messages[1]["content"][0]["text"] = "something else"
        made.fill(made.core.config.max_model_tokens - 200, seed=1)
        assert (await made.ask(client, "and now?")).cause == "client_edit"


async def test_a_reset_is_the_engines_doing_and_no_images() -> None:
    async with rig() as made:
        client = Client("c")
        await begun(made, client)
        assert made.core.reset_prefix_cache()
        made.tell()
        found = await made.ask(client, "and now?")
        assert (found.cause, found.evicted_image) == ("engine_eviction", None)


async def test_after_a_gap_only_what_is_known_is_said() -> None:
    """Whether the blocks were evicted or never alike stood in what was missed."""
    async with rig(num_blocks=257) as made:
        client = Client("c")
        await begun(made, client, 1)
        made.lose = True
        await made.ask(client, words(40, seed=8))
        made.fill(made.core.config.max_model_tokens - 200, seed=1)
        made.lose = False
        found = await made.ask(client, "and now?")
        assert made.mirror is not None
        assert made.mirror.gaps == 1
        assert found.lost_tokens
        assert found.cause == "engine_unreported"


class Forgetful(ChatMLTemplate):
    """Leaves out what was said, as templates do with what was thought."""

    def render(self, conversation: Conversation, tools: list[dict[str, Any]] | None, options: Mapping[str, Any]) -> str:
        """See `Template.render`."""
        shown = [one if one["role"] != "assistant" else {**one, "content": "..."} for one in conversation]
        return super().render(shown, tools, options)


async def test_a_template_that_forgets_costs_the_reply() -> None:
    async with rig() as made:
        made.core.template = Forgetful()
        client = Client("c")
        await made.ask(client, words(40), reply=words(60, seed=5))
        prompt = made.usage.prompt_tokens
        found = await made.ask(client, "and now?")
        assert prompt is not None
        assert found.cause == "template"
        assert found.break_token == made.usage.read_tokens == prompt // BLOCK * BLOCK


async def test_the_evicted_image_is_named() -> None:
    async with rig(num_blocks=65) as made:
        one, two = Client("one"), Client("two")
        for number in range(3):
            await made.ask(one, words(15, seed=number), picture(number))
        await made.ask(two, words(220, seed=50), picture(9))
        found = await made.ask(one, "and now?")
        assert found.cause == "engine_eviction"
        assert found.evicted_image in {uuid_of(number) for number in range(3)}
        assert found.evicted_conversation == one.owner
        assert found.lost_tokens is not None
        assert 0 < found.evicted_tokens <= found.lost_tokens


@pytest.mark.parametrize(
    "make",
    [client_edit, client_window, volatile_text, tools_changed, policy_eviction, summary],
    ids=lambda make: make.__name__,
)
async def test_what_broke_after_a_restart_is_named_all_the_same(make: Make) -> None:
    async with rig() as one:
        client = Client("c")
        await begun(one, client)
        one.restart()
        found = await make(one, client)
    assert (found.cause, found.actor) == (make.__name__, ACTORS[make])
    assert found.lost_tokens
