"""What can be set on a benchmark."""

from __future__ import annotations

import sys
from dataclasses import dataclass

# `{port}` and `{upstream}` are filled in; the upstream is a base URL that ends in /v1.
GATEWAY = (sys.executable, "-m", "app.cli", "serve", "--port", "{port}", "--upstream", "{upstream}")


@dataclass(frozen=True, slots=True)
class BenchConfig:
    """Which gateway is measured, and how often. All counts are bounds: a run always ends.

    `gateway_command` starts it with `{port}` and `{upstream}` filled in; `ready_path` answers 200 when it can be used.
    Each of `rounds` rounds sends `small_requests` and `image_requests` to each target in turn, one at a time, and
    `throughput_requests` to the engine and the gateway, `clients` at a time.
    """

    gateway_command: tuple[str, ...] = GATEWAY
    ready_path: str = "/health/ready"
    start_timeout_seconds: float = 60.0
    rounds: int = 7
    small_requests: int = 150
    image_requests: int = 40
    throughput_requests: int = 1500
    clients: int = 32
    large_images: int = 16
    memory_requests: int = 96
    memory_body_bytes: int = 5_000_000
    leaving_requests: int = 1000
    leaving_share: float = 0.2
    settle_seconds: float = 20.0
    seed: int = 20_261_101
