"""What can be set on a remote engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from yarl import URL

from context.errors import ConfigError

Answer = Literal["auto", True, False]


@dataclass(frozen=True, slots=True)
class RemoteSettings:
    """The `upstreams` section of the settings, and the base URLs.

    `urls` are base URLs such as `http://127.0.0.1:8001/v1`; one without a path means `/v1`. `api_key` goes to every
    upstream; without it the client's own Authorization header goes on. `connections` bounds the requests at one time to
    one upstream; more wait for `read_timeout_seconds` at most. `retries` are further tries of one request, all before
    the first byte of its answer. `probe_usage`: ask each upstream for an answer of one token, twice at most, to see
    whether it reports what it reads from its prefix cache.

    The rest needs no setting: a connection is not reused after `keep_alive_seconds` of rest, which must stay under the
    upstream's own limit (vLLM: 5) so that a request never meets a connection that is being closed; an upstream that is
    down is probed after `cooling_seconds`, then after twice as long, up to `max_cooling_seconds`.

    Raises:
        ConfigError: a URL or the key cannot be used.
    """

    urls: tuple[str, ...]
    api_key: str = field(default="", repr=False)
    accepts_uuid: Answer = "auto"
    accepts_cache_salt: Answer = "auto"
    probe_usage: bool = False
    connections: int = 256
    connect_timeout_seconds: float = 5.0
    read_timeout_seconds: float = 600.0
    retries: int = 2
    keep_alive_seconds: float = 4.0
    probe_timeout_seconds: float = 10.0
    cooling_seconds: float = 0.25
    max_cooling_seconds: float = 5.0
    backoff_seconds: float = 0.1

    def __post_init__(self) -> None:
        if not self.urls:
            raise ConfigError("settings", "upstream", "names no URL; give one such as http://127.0.0.1:8001/v1")
        if len(set(self.urls)) != len(self.urls):
            raise ConfigError("settings", "upstream", "names the same URL twice; name each upstream once")
        for number, url in enumerate(self.urls):
            base_url(url, f"upstream[{number}]")
        if not self.api_key.isascii() or not self.api_key.isprintable():
            raise ConfigError("settings", "upstreams.api_key", "holds a character that cannot stand in an HTTP header")


def base_url(text: str, key: str = "upstream") -> URL:
    """An upstream's base URL, without a slash at its end.

    Raises:
        ConfigError: it is not a plain http or https URL.
    """
    # The URL itself is not repeated: it may hold a password.
    try:
        url = URL(text)
        usable = url.scheme in ("http", "https") and bool(url.host) and url.port != 0
    except ValueError as error:
        raise ConfigError("settings", key, "is not a URL; write it as http://127.0.0.1:8001/v1") from error
    if not usable:
        raise ConfigError("settings", key, "is not an http or https URL; write it as http://127.0.0.1:8001/v1")
    if url.user is not None or url.password is not None:
        raise ConfigError("settings", key, "holds a user or password; put the key into upstreams.api_key")
    if url.query_string or url.fragment:
        raise ConfigError("settings", key, "holds a query or a fragment; give the base URL alone")
    path = url.path.rstrip("/")
    return url.with_path(path or "/v1")


def server_url(base: URL, path: str) -> URL:
    """A path of the server's root, which may carry a query; `/v1/...` stands for the base URL."""
    plain = path.lstrip("/")
    if plain == "v1" or plain.startswith(("v1/", "v1?")):
        return URL(str(base) + plain.removeprefix("v1"), encoded=True)
    return URL(f"{str(base).removesuffix('/v1')}/{plain}", encoded=True)
