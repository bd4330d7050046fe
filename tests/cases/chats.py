"""What the tests of cases talk with: the gateway over HTTP, and the context alone; and small generated pictures."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pybase64
from PIL import Image
from pydantic_core import to_json

from context.conversations import Begun, Conversations
from context.images.base import ImageRef
from context.plan import SentMessage
from context.policies.base import Policy, Request
from context.policies.keep import STABLE
from context.transcript import ImagePart
from tests.api.rig import Answer, Rig

Wire = dict[str, Any]
SHOTS = [ImageRef(f"{number:02x}" * 32, 1280, 800, "image/png", 9000) for number in range(64)]


@dataclass
class Context:
    """A client and the gateway's context for it. `history` is what the client resends. A turn is found by its content
    in all of a tenant's conversations, so that tests that compare have a tenant each. `name` is the client's own."""

    conversations: Conversations
    policy: Policy = STABLE
    request: Request = field(default_factory=Request)
    history: list[Wire] = field(default_factory=list[Wire])
    tenant: str = "one"
    name: str | None = None

    async def ask(self, *new: Wire, tools: list[Any] | None = None, reply: str | Wire | None = "ok") -> Begun:
        self.history += new
        begun = await self.conversations.begin(
            self.history,
            tools,
            tenant=self.tenant,
            key=self.tenant.encode(),
            policy=self.policy,
            request=self.request,
            conversation=self.name,
        )
        begun = await self.conversations.accept(begun)
        if reply is not None:
            message = {"content": reply} if isinstance(reply, str) else reply
            await self.conversations.answer(begun, {"role": "assistant", **message})
            self.history.append({"role": "assistant", **message})
        return begun


@dataclass
class Chat:
    """A client that talks to a gateway and keeps its history."""

    rig: Rig
    history: list[Wire] = field(default_factory=list[Wire])
    headers: dict[str, str] = field(default_factory=dict[str, str])

    async def ask(self, *new: Wire, **more: Any) -> Answer:
        """Ask on; the reply joins the history where the request was served."""
        self.history += new
        answer = await self.rig.chat({"max_tokens": 3, "messages": self.history, **more}, self.headers)
        if answer.status == 200:
            message = answer.json["choices"][0]["message"]
            self.history.append({"role": "assistant", "content": message["content"]})
        return answer

    @property
    def sent(self) -> list[Wire]:
        """The messages of the latest request, as the engine got them; images by uuid alone."""
        return bare(self.rig.engine.sent[-1]["messages"])


def bare(messages: Sequence[Wire]) -> list[Wire]:
    """Messages without image data, which goes to an engine once."""

    def part(one: Any) -> Any:
        return {"image": one["uuid"]} if one["type"] == "image_url" else one

    made: list[Wire] = []
    for one in messages:
        content: Any = one["content"]
        made.append({**one, "content": [part(each) for each in content]} if isinstance(content, list) else one)  # pyright: ignore[reportUnknownVariableType]
    return made


def spelled(sent: Sequence[SentMessage]) -> list[bytes]:
    """Each message as bytes, images by id."""

    def plain(value: Any) -> Any:
        return ["image", value.ref.image_id, value.detail] if isinstance(value, ImagePart) else str(value)

    return [to_json(one.wire, fallback=plain) for one in sent]


def extends(later: Begun, earlier: Begun) -> bool:
    """Whether one prompt begins with another one, byte for byte."""
    before, now = spelled(earlier.plan.sent), spelled(later.plan.sent)
    return now[: len(before)] == before and later.plan.tools == earlier.plan.tools


def user(text: str, *shots: int) -> Wire:
    parts: list[Any] = [ImagePart(SHOTS[shot]) for shot in shots]
    return {"role": "user", "content": [*parts, {"type": "text", "text": text}] if shots else text}


def system(text: str) -> Wire:
    return {"role": "system", "content": text}


def call(name: str, arguments: str = "{}", identity: str = "c1") -> Wire:
    function = {"name": name, "arguments": arguments}
    return {"content": None, "tool_calls": [{"id": identity, "type": "function", "function": function}]}


def result(text: str, *shots: int, identity: str = "c1") -> Wire:
    return {**user(text, *shots), "role": "tool", "tool_call_id": identity}


def tool(name: str, *properties: str) -> Wire:
    schema = {"type": "object", "properties": {one: {"type": "string"} for one in properties}}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def picture(number: int = 0, size: tuple[int, int] = (64, 48), mode: str = "RGB") -> Image.Image:
    """Pixels that no other number has."""
    band = Image.linear_gradient("L").resize(size)
    shifted = band.point([(level + 37 * number) % 256 for level in range(256)])
    return Image.merge("RGB", (shifted, band, band.transpose(Image.Transpose.FLIP_LEFT_RIGHT))).convert(mode)


def encoded(image: Image.Image, format: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()


def part(data: bytes, media_type: str = "image/png", **more: Any) -> Wire:
    url = f"data:{media_type};base64,{pybase64.b64encode_as_string(data)}"
    return {"type": "image_url", "image_url": {"url": url, **more}}


def says(text: str) -> Wire:
    return {"type": "text", "text": text}


def user_of(*parts: Any) -> Wire:
    return {"role": "user", "content": list(parts)}
