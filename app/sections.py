"""The sections of the settings: what each value may be, and the limits that other packages take from them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from context.images.base import FetchLimits, ImageLimits
from context.ledger import LedgerLimits
from context.policies.choice import PolicyRule, is_policy_path, unknown_policy
from context.policies.document import PRESETS
from context.tokens.families import Family
from metrics.records.prices import Price


class Section(BaseModel):
    """What every part of the settings refuses: unknown keys, values of another type, and numbers that are none."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


def _policy_name(name: str) -> str:
    if name not in PRESETS and not is_policy_path(name):
        raise ValueError(unknown_policy(name))
    return name


PolicyName = Annotated[str, AfterValidator(_policy_name)]


class PolicyRuleSection(Section):
    model: str | None = Field(None, min_length=1, max_length=256)
    tenant: str | None = Field(None, min_length=1)
    policy: PolicyName
    share: float | None = Field(None, gt=0, le=1)

    @model_validator(mode="after")
    def _says_for_whom(self) -> PolicyRuleSection:
        if self.model is None and self.tenant is None and self.share is None:
            raise ValueError("a rule needs a model, a tenant or a share; for every request set policy")
        return self

    def rule(self) -> PolicyRule:
        """This rule as the choice takes it."""
        return PolicyRule(**self.model_dump())


class Auth(Section):
    keys: dict[str, str]

    @field_validator("keys")
    @classmethod
    def _distinct(cls, keys: dict[str, str]) -> dict[str, str]:
        if len(set(keys.values())) != len(keys):
            raise ValueError("two tenants have the same key")
        if any(not key for key in keys.values()):
            raise ValueError("a key is empty")
        return keys


class Server(Section):
    max_body_bytes: int = Field(ge=1024)
    inflight_body_bytes: int = Field(ge=1024)
    body_timeout_seconds: float = Field(gt=0)
    min_upload_bytes_per_second: float = Field(ge=0)
    max_answer_bytes: int = Field(ge=1024)
    max_messages: int = Field(ge=1)
    max_parts: int = Field(ge=1)
    max_concurrent_requests: int = Field(ge=1)
    keep_alive_seconds: int = Field(ge=1)
    shutdown_grace_seconds: int = Field(ge=0)

    @model_validator(mode="after")
    def _one_fits(self) -> Server:
        if self.inflight_body_bytes < self.max_body_bytes:
            raise ValueError("inflight_body_bytes must be at least max_body_bytes, or the largest body never fits")
        return self


class Images(Section):
    max_image_bytes: int = Field(ge=1)
    max_pixels: int = Field(ge=1)
    max_side: int = Field(ge=1, le=65_535)
    min_side: int = Field(ge=1)
    max_aspect_ratio: float = Field(ge=0)
    max_images_per_request: int = Field(ge=0)
    formats: tuple[Literal["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"], ...] = Field(min_length=1)
    as_png: tuple[Literal["JPEG", "WEBP", "GIF"], ...]
    background: tuple[int, int, int]
    animated: Literal["reject", "first_frame"]
    decode_threads: int = Field(ge=1)
    decode_queue: int = Field(ge=1)
    memo_entries: int = Field(ge=1)
    payload_cache_bytes: int = Field(ge=0)
    max_sent_bytes: int = Field(ge=1024)
    store_url: str
    store_max_bytes: int = Field(ge=0)
    near_duplicate_distance: int = Field(ge=0, le=64)

    @field_validator("background")
    @classmethod
    def _colour(cls, colour: tuple[int, int, int]) -> tuple[int, int, int]:
        if not all(0 <= channel <= 255 for channel in colour):
            raise ValueError("each of the three channels is 0 to 255")
        return colour

    def limits(self) -> ImageLimits:
        """These settings as the image service takes them."""
        return ImageLimits(**self.model_dump(exclude={"store_url", "max_sent_bytes"}))


class Fetch(Section):
    enabled: bool
    timeout_seconds: float = Field(gt=0)
    max_redirects: int = Field(ge=0)
    max_concurrent: int = Field(ge=1)
    allow_private: tuple[str, ...]
    user_agent: str = Field(min_length=1)

    @field_validator("allow_private")
    @classmethod
    def _networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        import ipaddress

        for network in networks:
            ipaddress.ip_network(network)
        return networks

    def limits(self) -> FetchLimits:
        """These settings as the image service takes them."""
        return FetchLimits(**self.model_dump())


class ContextSection(Section):
    summary_timeout_seconds: float = Field(gt=0)


class LedgerSection(Section):
    max_age_seconds: float = Field(gt=0)
    max_bytes: int = Field(ge=1024 * 1024)
    memory_bytes: int = Field(ge=0)

    def limits(self) -> LedgerLimits:
        """These settings as the ledger takes them."""
        return LedgerLimits(**self.model_dump())


class RecordsSection(Section):
    max_age_seconds: float = Field(gt=0)
    max_bytes: int = Field(ge=1024 * 1024)
    max_waiting: int = Field(ge=1)


_FEWEST_TOKEN_CHARS = 16


class DashboardSection(Section):
    enabled: bool
    allow_loopback: bool
    read_token: str

    @field_validator("read_token")
    @classmethod
    def _long(cls, token: str) -> str:
        if token and (len(token) < _FEWEST_TOKEN_CHARS or not token.isascii() or not token.isprintable()):
            raise ValueError(f"takes at least {_FEWEST_TOKEN_CHARS} printable ASCII characters; make a random one")
        return token


class PriceSection(Section):
    model: str = Field("*", min_length=1, max_length=256)
    input: float = Field(ge=0)
    cached_input: float | None = Field(None, ge=0)
    cache_write: float | None = Field(None, ge=0)
    output: float = Field(ge=0)

    def price(self) -> Price:
        """This price as the records take it: what is not given costs as much as any other prompt token."""
        read = self.input if self.cached_input is None else self.cached_input
        write = self.input if self.cache_write is None else self.cache_write
        return Price(self.model, self.input, read, write, self.output)


class Estimates(Section):
    visual_family: Literal["auto", Family]
    image_tokens: int = Field(ge=1, le=1_000_000)


class EngineSection(Section):
    start_timeout_seconds: float = Field(gt=0)
    stop_timeout_seconds: float = Field(ge=0)
    restart_on_crash: bool
    max_restarts: int = Field(ge=0)
    offline: bool
    kv_cache_gib: int = Field(ge=1)
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"]
    vllm: dict[str, Any]


class Upstreams(Section):
    api_key: str
    accepts_uuid: Literal["auto", True, False]
    accepts_cache_salt: Literal["auto", True, False]
    probe_usage: bool
    connections: int = Field(ge=1)
    connect_timeout_seconds: float = Field(gt=0)
    read_timeout_seconds: float = Field(gt=0)
    retries: int = Field(ge=0)

    @field_validator("accepts_uuid", "accepts_cache_salt", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        # The default is a word, so that the environment's value arrives as one, too.
        return {"true": True, "false": False}.get(value.lower(), value) if isinstance(value, str) else value


class Otel(Section):
    endpoint: str

    @field_validator("endpoint")
    @classmethod
    def _url(cls, url: str) -> str:
        from urllib.parse import urlsplit

        parts = urlsplit(url)
        if url and (parts.scheme not in ("http", "https") or not parts.hostname):
            # Not the value: it may hold a password.
            raise ValueError("expected the http or https URL of an OTLP/HTTP receiver such as http://127.0.0.1:4318")
        return url
