"""Fetching an image by URL without becoming somebody's way into the network.

Every hop is checked before it is made: scheme, host spelling, and each address that its name resolves to. The checked
address is the one that is connected to (names are resolved once a hop, and the socket is checked again when it is
made), so a name that changes its mind between check and use gains nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from context.errors import ImageError
from context.images.addresses import AddressPolicy, is_odd_ipv4
from context.images.base import FetchLimits
from context.images.places import Places
from context.images.sniff import has_image_magic

_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_MAGIC_BYTES = 16
_READ_BYTES = 64 * 1024


class ImageFetcher:
    """Fetches images for one process. Connections are not shared between fetches.

    Args:
        limits: bounds of fetching.
        max_bytes: bound of the body's size.
        max_waiting: how many fetches may wait for a place; more than one request may have URLs.
        resolver: who resolves names; the system by default.

    Raises:
        ValueError: `allow_private` holds something that is no network.
    """

    def __init__(
        self, limits: FetchLimits, max_bytes: int, max_waiting: int, resolver: AbstractResolver | None = None
    ) -> None:
        self._limits, self._max_bytes = limits, max_bytes
        self._policy = AddressPolicy(limits.allow_private)
        self._resolver = resolver
        self._places = Places(limits.max_concurrent, max_waiting, "fetched")
        self._session: aiohttp.ClientSession | None = None

    @property
    def refusals(self) -> int:
        """How many fetches were refused because too many waited."""
        return self._places.refusals

    @contextlib.asynccontextmanager
    async def fetch(self, url: str) -> AsyncGenerator[bytes]:
        """The body that a URL leads to, at most `max_bytes`.

        The fetch's place is kept until the context is left, so that no more than `max_concurrent` bodies are in
        memory. Waiting for a place does not count against `timeout_seconds`.

        Raises:
            ImageError: `image_url_blocked`, `image_fetch_failed` (its message names the class of the reason),
                `image_too_large` or `empty_image`. `param` is not set.
            RequestError: 429 `image_queue_full`, too many fetches wait for a place.
        """
        if not self._limits.enabled:
            raise _blocked("fetching by URL is switched off")
        async with self._places.hold():
            yield await self._body(url)

    async def _body(self, url: str) -> bytes:
        try:
            async with asyncio.timeout(self._limits.timeout_seconds):
                return await self._follow(url)
        except TimeoutError:
            raise _failed("timeout") from None
        except AddressRefused:
            raise _blocked("it leads to an address that is not public") from None
        except aiohttp.ClientConnectorDNSError as error:
            raise _failed("dns") from error
        except (aiohttp.ClientSSLError, aiohttp.ServerFingerprintMismatch) as error:
            raise _failed("tls") from error
        except aiohttp.InvalidURL as error:
            raise _failed("invalid_url") from error
        except aiohttp.ClientConnectionError as error:
            raise _failed("connect") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _failed("protocol") from error

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _follow(self, text: str) -> bytes:
        try:
            url = URL(text)
        except ValueError as error:
            raise _failed("invalid_url") from error
        for _ in range(self._limits.max_redirects + 1):
            self._check(url)
            async with self._client().get(url, allow_redirects=False) as response:
                if response.status not in _REDIRECTS:
                    return await self._read(response)
                location = response.headers.get("Location")
                if not location:
                    raise _failed("redirect")
                url = url.join(URL(location))
        raise _failed("redirect")

    def _check(self, url: URL) -> None:
        host = url.raw_host
        if url.scheme not in ("http", "https"):
            raise _blocked("only http and https may be fetched")
        if url.raw_user is not None or url.raw_password is not None:
            raise _blocked("a user name or password in the URL is not accepted")
        if not host or is_odd_ipv4(host):
            raise _blocked("its host is not a name or a plainly written address")
        # aiohttp connects to literal addresses without asking the resolver.
        if (":" in host or host.replace(".", "").isdigit()) and not self._policy.permits(host):
            raise AddressRefused

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        if response.status != 200:
            raise _failed(f"http_status {response.status}")
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise _failed("content_encoding")
        if (response.content_length or 0) > self._max_bytes:
            raise self._too_large()
        body = bytearray()
        async for chunk in response.content.iter_chunked(_READ_BYTES):
            body += chunk
            if len(body) > self._max_bytes:
                raise self._too_large()
            if len(body) >= _MAGIC_BYTES and not has_image_magic(bytes(body[:_MAGIC_BYTES])):
                raise _failed("not_an_image")
        if not body:
            raise ImageError("The URL's body is empty. Check that it leads to an image.", code="empty_image")
        if not has_image_magic(bytes(body[:_MAGIC_BYTES])):
            raise _failed("not_an_image")
        return bytes(body)

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                resolver=_CheckedResolver(self._policy, self._resolver or aiohttp.ThreadedResolver()),
                socket_factory=self.open_socket,
                use_dns_cache=False,
                force_close=True,
                limit=0,
                happy_eyeballs_delay=None,
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=None),
                headers={
                    "User-Agent": self._limits.user_agent,
                    "Accept": "image/*",
                    "Accept-Encoding": "identity",
                },
            )
        return self._session

    def open_socket(self, address: Any) -> socket.socket:
        """The socket for one resolved address (`getaddrinfo`'s five-tuple), made only if it may be connected to.

        Raises:
            AddressRefused: no socket was made.
        """
        family, kind, protocol, _, target = address
        if not self._policy.permits(target[0]):
            raise AddressRefused
        return socket.socket(family, kind, protocol)

    def _too_large(self) -> ImageError:
        return ImageError(
            f"The image behind the URL is larger than {self._max_bytes} bytes. Use a smaller one.",
            code="image_too_large",
        )


class AddressRefused(Exception):
    """An address may not be connected to. No OSError, so that aiohttp does not take it for a failed attempt."""


class _CheckedResolver(AbstractResolver):
    """Resolves names, and refuses a name as a whole when one of its addresses is not permitted."""

    def __init__(self, policy: AddressPolicy, inner: AbstractResolver) -> None:
        self._policy, self._inner = policy, inner

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        results = await self._inner.resolve(host, port, family)
        if not all(self._policy.permits(result["host"]) for result in results):
            raise AddressRefused
        return results

    async def close(self) -> None:
        await self._inner.close()


def _failed(reason: str) -> ImageError:
    return ImageError(
        f"The image could not be fetched ({reason}). Check that the URL leads to a public image, or send the image as "
        "a data URL.",
        code="image_fetch_failed",
    )


def _blocked(reason: str) -> ImageError:
    return ImageError(
        f"The image's URL is not fetched: {reason}. Send the image as a data URL.", code="image_url_blocked"
    )
