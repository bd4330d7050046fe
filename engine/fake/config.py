"""What can be set on the fake engine. Everything has a default; a bad combination stops the start."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from context.errors import ConfigError
from context.visual_tokens import VisualShape, max_visual_tokens


@dataclass(frozen=True, slots=True)
class FakeConfig:
    """Sizes, behaviour and speed of a fake engine.

    Sizes are vLLM's: `num_blocks` counts as `--num-gpu-blocks-override` does, one of them is vLLM's null block and
    never holds tokens. `encoder_cache_embeddings` and `encoder_budget_embeddings` default to `max_batched_tokens`, and
    are at least the largest image, as vLLM's are.

    Speed: a step takes `prefill_seconds_per_token` for each prompt token that is computed,
    `encoder_seconds_per_embedding` for each embedding that the vision encoder makes, and `decode_seconds_per_token`
    when it decodes anything.

    Answers, the first that is set: `script` (the next text, in a circle), `echo` (the last user message), otherwise
    words derived from the prompt, `answer_tokens` long. `tool_calls` answers a request that brings tools with a call.

    `accepts_uuid=False` behaves as an upstream that knows no uuid; `refuses_cache_salt` as one that refuses unknown
    parameters of ours; `reports_cache=False` leaves out `prompt_tokens_details`.
    """

    model: str = "stillframe-fake"
    checkpoint: Path | None = None
    visual: VisualShape = field(default_factory=VisualShape)

    block_tokens: int = 16
    num_blocks: int = 16_385
    max_model_tokens: int = 131_072
    max_batched_tokens: int = 8192
    max_running: int = 256
    max_images_per_prompt: int = 999
    processor_cache_bytes: int = 4 * 1024**3
    encoder_cache_embeddings: int | None = None
    encoder_budget_embeddings: int | None = None

    prefill_seconds_per_token: float = 0.0
    decode_seconds_per_token: float = 0.0
    encoder_seconds_per_embedding: float = 0.0

    answer_tokens: int = 16
    echo: bool = False
    script: tuple[str, ...] = ()
    tool_calls: bool = False

    accepts_uuid: bool = True
    refuses_cache_salt: bool = False
    reports_cache: bool = True

    @property
    def encoder_cache_size(self) -> int:
        """Embeddings that the encoder cache holds."""
        return max(self.encoder_cache_embeddings or self.max_batched_tokens, max_visual_tokens(self.visual))

    @property
    def encoder_budget(self) -> int:
        """Embeddings that one step may compute."""
        return max(self.encoder_budget_embeddings or self.max_batched_tokens, max_visual_tokens(self.visual))

    def check(self, where: str = "fake engine") -> None:
        """See that a prompt of the greatest length can run.

        Raises:
            ConfigError: a size or a time is impossible.
        """
        sizes = ("block_tokens", "num_blocks", "max_model_tokens", "max_batched_tokens", "max_running", "answer_tokens")
        for name in sizes:
            if getattr(self, name) < 1:
                raise ConfigError(where, name, f"must be at least 1, got {getattr(self, name)}")
        for name in ("prefill_seconds_per_token", "decode_seconds_per_token", "encoder_seconds_per_embedding"):
            if getattr(self, name) < 0:
                raise ConfigError(where, name, f"must not be negative, got {getattr(self, name)}")
        room = (self.num_blocks - 1) * self.block_tokens
        if room < self.max_model_tokens:
            reason = f"{self.max_model_tokens} tokens do not fit into {self.num_blocks} blocks, which hold {room}"
            raise ConfigError(where, "max_model_tokens", f"{reason}; raise num_blocks or lower it")
