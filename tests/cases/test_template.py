"""What a model's chat template does, found out before it costs anything."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from context.errors import EngineUnavailable
from engine.fake import FakeConfig, FakeEngine
from engine.fake.tokenizer import SPECIAL_TOKENS
from engine.template_check import TemplateFindings, check_template
from tests.api.rig import ADMIN, Rig, WatchedEngine, running
from tests.cases.chats import Chat, call, encoded, part, picture, result, says, user_of

_SHOWN = (
    "{% for p in m.content %}{% if p.type == 'image' %}{% if IMAGES %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% endif %}{% else %}{{ p.text }}{% endif %}{% endfor %}"
)
_CONTENT = "{% if m.content is string %}{{ m.content }}{% else %}" + _SHOWN + "{% endif %}"


def template(images: str = "true", reply: str = "", start: str = "") -> str:
    """A template; `images` says of which messages the images are shown, `reply` and `start` stand before the text of a
    reply in history, and at the end of the prompt."""
    content = _CONTENT.replace("IMAGES", images)
    before = "{% if m.role == 'assistant' %}" + reply + "{% endif %}"
    end = "{% if add_generation_prompt %}<|im_start|>assistant\n" + start + "{% endif %}"
    each = "{% for m in messages %}<|im_start|>{{ m.role }}\n" + before + content + "<|im_end|>\n{% endfor %}"
    return each + end


def checkpoint(folder: Path, chat_template: str) -> Path:
    """A tokenizer of single bytes with a chat template."""
    alphabet = {token: number for number, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])  # pyright: ignore[reportUnknownMemberType]
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|im_end|>", "chat_template": chat_template})
    )
    return folder


async def found(folder: Path, chat_template: str) -> TemplateFindings:
    engine = FakeEngine(FakeConfig(checkpoint=checkpoint(folder / "model", chat_template)))
    await engine.start()
    try:
        return await check_template(engine)
    finally:
        await engine.stop()


THINKING = "<think>\n\n</think>\n\n"


@pytest.mark.case("MC-020")
async def test_a_template_that_drops_the_thinking_from_history_is_told(tmp_path: Path) -> None:
    assert (await found(tmp_path, template())).extends is True
    assert (await found(tmp_path, template(start=THINKING))).extends is False
    # With it in history, as an option of such templates has it, the prompt goes on.
    assert (await found(tmp_path, template(reply=THINKING, start=THINKING))).extends is True
    assert "preserve_thinking" in TemplateFindings(extends=False).warnings[0]
    assert TemplateFindings(extends=True).warnings == ()


@pytest.mark.case("MC-061", "MC-063")
@pytest.mark.parametrize(
    ("images", "system", "tool"),
    [
        ("true", True, True),
        ("m.role != 'system'", False, True),
        ("m.role == 'user'", False, False),
        ("false", None, None),
    ],
)
async def test_whose_images_a_template_shows(
    tmp_path: Path, images: str, system: bool | None, tool: bool | None
) -> None:
    findings = await found(tmp_path, template(images))
    assert (findings.system_images, findings.tool_images) == (system, tool)
    assert any("hoist" in words for words in findings.warnings) is (tool is False)


@pytest.mark.case("MC-020")
async def test_an_engine_that_cannot_be_asked_leaves_it_unknown() -> None:
    class Silent(FakeEngine):
        def forward(self, *_: object, **__: object):  # type: ignore[no-untyped-def]
            raise EngineUnavailable("not there")

    assert await check_template(Silent()) == TemplateFindings()


async def checked(rig: Rig) -> None:
    """Wait, at most two seconds, until the template was looked at."""
    async with asyncio.timeout(2.0):
        while (await rig.get("/admin/state", ADMIN)).json["template"]["extends"] is None:  # noqa: ASYNC110 - nothing tells when
            await asyncio.sleep(0)


@pytest.mark.case("MC-063")
async def test_an_image_that_would_be_dropped_from_a_system_message_is_refused(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "model", template("m.role == 'user'"))
    image = part(encoded(picture()))
    said = {"role": "system", "content": [says("this is the house"), image]}
    async with running(tmp_path, WatchedEngine(FakeConfig(checkpoint=folder))) as rig:
        await checked(rig)
        answer = await Chat(rig).ask(said, user_of(says("hi")))
        assert (answer.status, answer.error["code"]) == (400, "image_in_system")
        assert answer.error["param"] == "messages[0].content[1]"
        assert rig.engine.wire == []
        assert (await Chat(rig).ask({"role": "system", "content": "house"}, user_of(image))).status == 200
    async with running(tmp_path / "other", WatchedEngine()) as rig:
        await checked(rig)
        assert (await Chat(rig).ask(said, user_of(says("hi")))).status == 200


@pytest.mark.case("MC-020")
async def test_the_gateway_says_so_when_it_has_started(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = checkpoint(tmp_path / "model", template(start=THINKING))
    with caplog.at_level(logging.WARNING, "app.gateway"):
        async with running(tmp_path, WatchedEngine(FakeConfig(checkpoint=folder))) as rig:
            await checked(rig)
    assert ["template" in record.getMessage() for record in caplog.records if record.name == "app.gateway"] == [True]


@pytest.mark.case("MC-061")
async def test_images_of_tool_results_pass_by_default(rig: Rig) -> None:
    image = part(encoded(picture()))
    said = {**result("done"), "content": [says("done"), image]}
    assert (await Chat(rig).ask(user_of(says("go")), {"role": "assistant", **call("look")}, said)).status == 200
    sent = rig.engine.sent[-1]["messages"]
    assert [one["role"] for one in sent] == ["user", "assistant", "tool"]
    assert [one["type"] for one in sent[2]["content"]] == ["text", "image_url"]
