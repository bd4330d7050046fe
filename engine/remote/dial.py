"""Opening a connection: names to addresses, the first address that answers, TLS.

asyncio's `create_connection` can try addresses side by side, uvloop's cannot: with it, an address that nobody answers
on would use up all the time there is.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

# Head start of an address over the next one. Source: RFC 8305, section 5.
_HEAD_START_SECONDS = 0.25

Address = tuple[socket.AddressFamily, Any]


@dataclass(frozen=True, slots=True)
class Place:
    """Where an upstream listens. `host` is a name in ASCII or an address without brackets."""

    host: str
    port: int
    secure: bool


async def dial(place: Place, make: Callable[[], asyncio.Protocol], trust: ssl.SSLContext | None) -> None:
    """Connect what `make` gives to a place. `trust` is what a secure place's certificate is checked by.

    Raises:
        ssl.SSLError: the certificate is not trusted (SSLCertVerificationError), or it does not speak TLS.
        OSError: no address answers, or there is none.
    """
    reached = await _first(await _addresses(place))
    name = place.host.rstrip(".") if trust is not None else None
    # From here on the transport owns the socket, also where this fails.
    await asyncio.get_running_loop().create_connection(make, sock=reached, ssl=trust, server_hostname=name)


def default_trust() -> ssl.SSLContext:
    """Trusts what the system trusts, or what SSL_CERT_FILE and SSL_CERT_DIR name. Takes tens of milliseconds."""
    trust = ssl.create_default_context()
    trust.set_alpn_protocols(["http/1.1"])
    return trust


async def _addresses(place: Place) -> list[Address]:
    """The addresses of a place, families in turn, the system's preference first."""
    try:
        found = await _resolved(place)
    except UnicodeError as error:
        raise OSError("not a host name") from error
    families: dict[socket.AddressFamily, list[Address]] = {}
    for family, _, _, _, address in found:
        families.setdefault(family, []).append((family, address))
    return [one for row in itertools.zip_longest(*families.values()) for one in row if one is not None]


async def _resolved(place: Place) -> list[Any]:
    options: dict[str, Any] = {"type": socket.SOCK_STREAM, "proto": socket.IPPROTO_TCP}
    try:
        # What is no name takes no time.
        return socket.getaddrinfo(place.host, place.port, flags=socket.AI_NUMERICHOST, **options)
    except socket.gaierror:
        loop = asyncio.get_running_loop()
        return await loop.getaddrinfo(place.host, place.port, flags=socket.AI_ADDRCONFIG, **options)


async def _first(addresses: Sequence[Address]) -> socket.socket:
    """A socket connected to the first address that answers; each waits a moment for the one before it.

    Raises:
        OSError: none does.
    """
    if len(addresses) == 1:
        return await _connect(addresses[0])
    failure = OSError("no address")
    waiting = list(reversed(addresses))
    tries: set[asyncio.Task[socket.socket]] = set()
    try:
        while waiting or tries:
            if waiting:
                tries.add(asyncio.create_task(_connect(waiting.pop())))
            done, _ = await asyncio.wait(
                tries, timeout=_HEAD_START_SECONDS if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            for attempt in done:
                tries.discard(attempt)
                try:
                    return attempt.result()
                except OSError as error:
                    failure = error
        raise failure
    finally:
        for attempt in tries:
            attempt.add_done_callback(_drop)
            attempt.cancel()


async def _connect(address: Address) -> socket.socket:
    family, place = address
    connecting = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        connecting.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connecting, place)
    except BaseException:
        connecting.close()
        raise
    return connecting


def _drop(attempt: asyncio.Task[socket.socket]) -> None:
    with contextlib.suppress(asyncio.CancelledError, OSError):
        attempt.result().close()
