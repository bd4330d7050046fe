"""A brake on guessing tokens: so many wrong ones from one address, and then one now and then."""

from __future__ import annotations

import ipaddress
import math
import time
from collections.abc import Callable

from context.images.memo import Lru

_AT_ONCE = 10
_ONE_EVERY_SECONDS = 30.0
_ADDRESSES = 4096
# What one customer of a network has to choose from.
_V6_PREFIX = 64


class Brake:
    """Counts wrong tokens by address, of the latest addresses. Called from one event loop.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # How many wrong ones count now, and when that was.
        self._wrong: Lru[str, tuple[float, float]] = Lru(_ADDRESSES)

    def try_one(self, client: object) -> int:
        """Count a try as wrong until it is known to be right; 0, or the seconds to wait before the next one where it
        is not to be looked at.

        Args:
            client: the peer's address and port, as the server has it.
        """
        address, now = _address(client), self._clock()
        count = self._counted(address, now)
        if count > _AT_ONCE - 1:
            return math.ceil((count - _AT_ONCE + 1) * _ONE_EVERY_SECONDS)
        self._wrong.put(address, (count + 1, now))
        return 0

    def was_right(self, client: object) -> None:
        """Take back the last try of an address."""
        address, now = _address(client), self._clock()
        self._wrong.put(address, (max(0.0, self._counted(address, now) - 1), now))

    def _counted(self, address: str, now: float) -> float:
        count, then = self._wrong.get(address) or (0.0, now)
        return max(0.0, count - (now - then) / _ONE_EVERY_SECONDS)


def _address(client: object) -> str:
    """Whose tries count together."""
    text = str(client[0]) if isinstance(client, tuple | list) and client else ""  # pyright: ignore[reportUnknownArgumentType]
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return text
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address), _V6_PREFIX), strict=False))
