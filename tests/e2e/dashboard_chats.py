"""Chats of a GUI agent through a gateway's socket, for tests that look at the dashboard meanwhile."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import Any

import httpx
from PIL import Image, ImageDraw

from tests.api.rig import data_url, text, user


def screenshot(step: int) -> dict[str, Any]:
    """An image part; each step's differs a little from the one before."""
    picture = Image.new("RGB", (320, 200), (240, 243, 248))
    draw = ImageDraw.Draw(picture)
    draw.rectangle((0, 0, 320, 18), fill=(47, 98, 196))
    for row in range(5):
        draw.rectangle((70, 30 + 32 * row, 300, 54 + 32 * row), fill=(255, 255, 255), outline=(210, 215, 222))
    draw.ellipse((80 + 12 * step, 40 + 8 * step, 94 + 12 * step, 54 + 8 * step), fill=(200, 60, 50))
    file = io.BytesIO()
    picture.save(file, "PNG")
    return {"type": "image_url", "image_url": {"url": data_url(file.getvalue())}}


@dataclass
class Agent:
    """One conversation."""

    url: str
    model: str = "stillframe-fake"
    messages: list[Any] = field(default_factory=list[Any])
    conversation: str = ""

    async def step(self, *, edit: str | None = None, reuse: str | None = None) -> None:
        """Ask with one more screenshot; `edit` changes the first message, as a client may. `reuse` is what it allows of
        approximate KV of images."""
        if not self.messages:
            self.messages.append({"role": "system", "content": "Use the desktop with care. " * 60})
        number = len(self.messages)
        if edit is not None:
            self.messages[1] = user(text(edit))
        self.messages.append(user(text(f"Step {number}: what is next?"), screenshot(number)))
        body = {"model": self.model, "messages": self.messages, "max_tokens": 12}
        async with httpx.AsyncClient(timeout=30) as client:
            headers = {"x-stillframe-reuse": reuse} if reuse else {}
            answer = await client.post(f"{self.url}/v1/chat/completions", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        self.conversation = answer.headers["x-stillframe-conversation"]
        self.messages.append(answer.json()["choices"][0]["message"])
