"""Which network addresses an image may be fetched from."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
# Prefixes of IPv6 that carry an IPv4 address in their last 32 bits: mapped, compatible, translated, NAT64.
_CARRIERS = tuple(ipaddress.IPv6Network(text) for text in ("::ffff:0:0/96", "::/96", "::ffff:0:0:0/96", "64:ff9b::/96"))
_TRANSLATED = (_CARRIERS[0], _CARRIERS[3])
# A network's own NAT64 prefix leads to whatever that network translates to.
_LOCAL_NAT64 = ipaddress.IPv6Network("64:ff9b:1::/48")
_TEREDO = ipaddress.IPv6Network("2001::/32")


class AddressPolicy:
    """Public unicast addresses, and what the operator allowed besides.

    Args:
        allow: networks in CIDR notation that may be reached although they are not public.

    Raises:
        ValueError: an entry is no network.
    """

    def __init__(self, allow: Iterable[str] = ()) -> None:
        self._allow = tuple(ipaddress.ip_network(text, strict=False) for text in allow)

    def permits(self, text: str) -> bool:
        """Whether a numeric address may be connected to. Text that is no address may not."""
        try:
            address = ipaddress.ip_address(text.partition("%")[0])
        except ValueError:
            return False
        inner = _carried(address)
        if any(candidate in network for network in self._allow for candidate in (address, inner)):
            return True
        # These two forms are nothing but a way to write the IPv4 address, which IPv6-only networks depend on.
        if any(address in network for network in _TRANSLATED):
            return _is_public(inner)
        return _is_public(address) and _is_public(inner)


def is_odd_ipv4(host: str) -> bool:
    """Whether a host name is an IPv4 address in a spelling other than four decimal numbers (`0x7f.1`, `2130706433`).

    Nobody needs these spellings for an image, and readers disagree on what they mean.
    """
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        pass
    else:
        return False
    try:
        socket.inet_aton(host.rstrip("."))
    except OSError:
        return False
    return True


def _is_public(address: _Address) -> bool:
    return address.is_global and not (
        address.is_multicast
        or address.is_reserved
        or address.is_unspecified
        or (isinstance(address, ipaddress.IPv6Address) and (address.is_site_local or address in _LOCAL_NAT64))
    )


def _carried(address: _Address) -> _Address:
    """The IPv4 address inside an IPv6 one; the address itself where there is none."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address.sixtofour is not None:
        return address.sixtofour
    if address in _TEREDO and address.teredo is not None:
        return address.teredo[1]
    # ::1 and :: are in the range of the compatible form and not meant by it; they are judged as they stand.
    if int(address) > 1 and any(address in network for network in _CARRIERS):
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address
