"""Who may see the dashboard, and whose figures.

The first that applies: a token in the request (the read token or the administrator's: all tenants; a tenant's key: its
own), a session that a token has opened, or a browser on this machine (all tenants).
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

import pybase64

from app import asgi
from app.dashboard.brake import Brake
from context.errors import RequestError
from context.images.memo import Lru
from context.tenancy import Tenancy, Tenant

COOKIE = "stillframe_dashboard"
SESSION_SECONDS = 12 * 3600
# With one of these the peer is a proxy, and who asks is somewhere else.
_HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[^:\[\]]+))(?::[0-9]{1,5})?")
_PROXY_HEADERS = (b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip", b"via", b"cf-connecting-ip")
_MOST_TOKEN_BYTES = 4096
_RIGHT_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who looks. `tenant`: whose figures alone; None for all tenants'."""

    by: Literal["token", "loopback"]
    tenant: str | None = None


class Access:
    """Decides about requests.

    Args:
        secret: of the installation and its administrator's token; sessions are signed with what is made of it and of
            all other tokens, so that a token that is changed ends the sessions it has opened.
        read_token: opens all tenants'; empty for none.
        keys: tenants' keys by name; empty where each bearer token is a tenant of its own.
        allow_loopback: whether this machine's own browsers need no token.
        is_admin: whether a bearer token is the administrator's.
        tenancy: finds the tenant of a token where there are no keys.
        has_records: whether there are records of a tenant of that name.
        brake: on wrong tokens.
    """

    def __init__(
        self,
        secret: bytes,
        read_token: str,
        keys: Mapping[str, str],
        *,
        allow_loopback: bool,
        is_admin: Callable[[bytes], bool],
        tenancy: Tenancy,
        has_records: Callable[[str], Awaitable[bool]],
        brake: Brake | None = None,
    ) -> None:
        self._read_token = read_token.encode("latin-1")
        self._keys = [(name, key.encode()) for name, key in keys.items()]
        self._allow_loopback, self._is_admin = allow_loopback, is_admin
        self._tenancy, self._has_records = tenancy, has_records
        every = b"\0".join([self._read_token, *(sha256(key).digest() for _, key in self._keys)])
        self._brake = brake or Brake()
        # By digest: tokens that were right.
        self._right: Lru[bytes, bool] = Lru(_RIGHT_TOKENS)
        self._signing = hmac.digest(secret, b"dashboard\0" + every, "sha256")

    async def viewer(self, scope: asgi.Scope) -> Viewer:
        """Who asks.

        Raises:
            RequestError: (401) nobody who may; says what to do.
        """
        scheme, _, token = (asgi.header(scope, b"authorization") or "").partition(" ")
        if scheme.lower() == "bearer" and token.strip():
            return await self.of_token(token.strip().encode("latin-1"), scope)
        if (viewer := self._of_session(scope)) is not None:
            return viewer
        why = self._why_not_loopback(scope)
        if why is None:
            return Viewer("loopback")
        raise RequestError(
            f"{why} Sign in with dashboard.read_token or an API key, or send it as 'Authorization: Bearer TOKEN'.",
            code="dashboard_token_required",
            status=401,
        )

    async def of_token(self, given: bytes, scope: asgi.Scope) -> Viewer:
        """Who has this token.

        Raises:
            RequestError: (401) nobody; (429) so many wrong ones came from this address that none is looked at now, but
                for those that were right before.
        """
        client, digest = scope.get("client"), hmac.digest(self._signing, given, "sha256")
        is_known = self._right.get(digest) is not None
        if not is_known and (seconds := self._brake.try_one(client)):
            raise RequestError(
                f"Too many wrong tokens came from this address. Try again in {seconds} seconds.",
                code="too_many_wrong_tokens",
                status=429,
                retry_after_seconds=seconds,
            )
        viewer = await self._viewer_of(given) if len(given) <= _MOST_TOKEN_BYTES else None
        if viewer is not None:
            if not is_known:
                self._brake.was_right(client)
                self._right.put(digest, True)
            return viewer
        self._right.drop(digest)
        raise RequestError(
            "This token is not known here. Use dashboard.read_token, or the API key of a tenant that has sent chats.",
            code="dashboard_token_unknown",
            status=401,
        )

    async def _viewer_of(self, given: bytes) -> Viewer | None:
        if self._read_token and hmac.compare_digest(given, self._read_token):
            return Viewer("token")
        if self._is_admin(given):
            return Viewer("token")
        # All of them, so that how long it takes says nothing about any.
        names = [name for name, key in self._keys if hmac.compare_digest(given, key)]
        if names:
            return Viewer("token", names[0])
        if not self._keys:
            tenant = self._tenancy.of_token(given.decode("latin-1"))
            if await self._has_records(tenant.name):
                return Viewer("token", tenant.name)
        return None

    def tenant(self, name: str) -> Tenant:
        """A tenant by its name in the records."""
        return self._tenancy.named(name)

    def session(self, viewer: Viewer) -> str:
        """A session for who has shown a token, as a cookie's value."""
        expires = int(time.time()) + SESSION_SECONDS
        body = f"{expires}.{_encoded(b'' if viewer.tenant is None else b'=' + viewer.tenant.encode())}"
        return f"{body}.{self._mac(body)}"

    def _of_session(self, scope: asgi.Scope) -> Viewer | None:
        body, _, mac = _cookie(scope).rpartition(".")
        if not body or not hmac.compare_digest(mac.encode("latin-1", "replace"), self._mac(body).encode()):
            return None
        expires, _, name = body.partition(".")
        if int(expires) < time.time():
            return None
        tenant = pybase64.urlsafe_b64decode(name + "=" * (-len(name) % 4))
        return Viewer("token", tenant[1:].decode() if tenant else None)

    def _mac(self, body: str) -> str:
        return _encoded(hmac.digest(self._signing, body.encode("latin-1", "replace"), "sha256"))

    def _why_not_loopback(self, scope: asgi.Scope) -> str | None:
        """Why a request does not count as one of this machine; None where it does."""
        if not self._allow_loopback:
            return "The dashboard needs a token here."
        if not _is_loopback(scope.get("client")):
            return "From another machine the dashboard needs a token."
        if any(asgi.header(scope, name) is not None for name in _PROXY_HEADERS):
            return "Through a proxy the dashboard needs a token."
        if not _is_local_host(asgi.header(scope, b"host") or ""):
            # A page of another site whose name was made to lead here could read everything otherwise.
            return "Under a name that is not this machine's own (localhost, 127.0.0.1) the dashboard needs a token."
        return None


def _cookie(scope: asgi.Scope) -> str:
    """The session's cookie; empty where there is none.

    Read by hand: the standard library's reader takes seconds for a long one with many backslashes, and drops all
    cookies where another program under the same name has set one that it cannot read.
    """
    for pair in (asgi.header(scope, b"cookie") or "").split(";"):
        name, _, value = pair.partition("=")
        if name.strip() == COOKIE:
            return value.strip()
    return ""


def check_same_site(scope: asgi.Scope) -> None:
    """Refuse what another site's page has made a browser ask for.

    Raises:
        RequestError: (403) it did.
    """
    site = asgi.header(scope, b"sec-fetch-site")
    if site not in (None, "same-origin", "none"):
        raise RequestError("Another site's page may not ask for this.", code="cross_site_request", status=403)


def is_https(scope: asgi.Scope) -> bool:
    """Whether the browser speaks TLS, to this process or to the proxy before it."""
    return "https" in (scope.get("scheme"), asgi.header(scope, b"x-forwarded-proto"))


def _is_loopback(client: object) -> bool:
    if not isinstance(client, tuple | list) or not client:
        return False
    return _is_loopback_address(str(client[0]))  # pyright: ignore[reportUnknownArgumentType]


def _is_loopback_address(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _is_local_host(host: str) -> bool:
    found = _HOST.fullmatch(host)
    name = "" if found is None else found["v6"] or found["name"]
    return name.lower().rstrip(".") == "localhost" or _is_loopback_address(name)


def _encoded(data: bytes) -> str:
    return pybase64.urlsafe_b64encode(data).decode().rstrip("=")
