"""Which path below `/dashboard` does what. All addresses in the page are relative: it works below any prefix."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from importlib import resources
from typing import Any
from urllib.parse import parse_qsl

from pydantic_core import from_json

from app import asgi, bodies
from app.dashboard.access import COOKIE, SESSION_SECONDS, Viewer, check_same_site, is_https
from app.dashboard.answers import VIEWS, WINDOWED, Asked, live_version, missing
from app.gateway import Gateway
from context.errors import RequestError, StillframeError
from context.images.thumbnails import MEDIA_TYPE
from metrics.dashboard.images import IMAGE_ID
from metrics.dashboard.window import RANGES

PREFIX = "/dashboard"
_TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_SAFE: asgi.Headers = (
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
_NO_STORE = (b"cache-control", b"no-store")
# Asked for again by its tag, so that a new version shows at once.
_CHECKED = (b"cache-control", b"no-cache")
_MOST_QUERY_BYTES, _MOST_FIELDS = 8192, 20
_LOGIN_BYTES, _LOGIN_SECONDS = 8192, 10.0
_TICK_SECONDS = 60
_THUMBNAIL_SECONDS = 3600


async def dashboard(gateway: Gateway, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
    """Everything at and below `/dashboard`."""
    if not gateway.settings.dashboard.enabled:
        raise RequestError(
            "The dashboard is off. Set dashboard.enabled to have it.", code="dashboard_disabled", status=404
        )
    path = asgi.path(scope).removeprefix(PREFIX)
    try:
        await _serve(gateway, path, scope, receive, send)
    except RequestError as error:
        await asgi.respond_error(send, error, [*_SAFE, _NO_STORE])


async def _serve(gateway: Gateway, path: str, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
    if path == "":
        # Relative: what stands before it is the proxy's affair.
        _check_method(scope, "GET", "HEAD")
        await asgi.respond(send, 307, b"", [(b"location", b"dashboard/"), _NO_STORE])
        return
    name = path.removeprefix("/api/")
    if name == path:
        _check_method(scope, "GET", "HEAD")
        await _static(path.removeprefix("/") or "index.html", scope, send)
        return
    check_same_site(scope)
    if name in ("login", "logout"):
        _check_method(scope, "POST")
        await _session(gateway, name, scope, receive, send)
        return
    viewer = await gateway.dashboard.access.viewer(scope)
    if name == "whatif":
        _check_method(scope, "GET", "HEAD", "POST")
        await _whatif(gateway, viewer, scope, send)
        return
    _check_method(scope, "GET", "HEAD")
    asked = Asked(viewer, _query(scope), time.time())
    if name == "thumbnail":
        await _thumbnail(gateway, asked, send)
    elif name in VIEWS:
        await _view(gateway, name, asked, scope, send)
    else:
        raise RequestError("There is nothing at this path of the dashboard.", code="unknown_path", status=404)


async def _view(gateway: Gateway, name: str, asked: Asked, scope: asgi.Scope, send: asgi.Send) -> None:
    source = gateway.dashboard.source
    tick = RANGES[asked.range][1] if name in WINDOWED else _TICK_SECONDS
    version = (await source.version(), *live_version(gateway, name), int(asked.now // tick))
    key = (name, asked.viewer.tenant, asked.viewer.by, tuple(sorted(asked.query.items())), version)
    tag = _tag(gateway.dashboard.boot, repr(key))
    headers = [*_SAFE, (b"etag", tag), (b"cache-control", b"private, no-cache"), (b"vary", b"cookie, authorization")]
    if asgi.header(scope, b"if-none-match") == tag.decode():
        await asgi.respond(send, 304, b"", headers)
        return
    body = await source.kept(key, lambda: _made(gateway, name, asked))
    await asgi.respond(send, 200, body, [asgi.JSON, *headers])


async def _made(gateway: Gateway, name: str, asked: Asked) -> dict[str, Any]:
    return await VIEWS[name](gateway, asked)


async def _thumbnail(gateway: Gateway, asked: Asked, send: asgi.Send) -> None:
    tenant, image_id = asked.tenant_of("image"), asked.query.get("id", "")
    shown = None
    if IMAGE_ID.fullmatch(image_id):
        try:
            shown = await gateway.images.thumbnail(image_id, tenant=tenant)
        except RequestError:
            raise
        except StillframeError:
            # A store that cannot be read now: a picture is missing, the figures are there.
            shown = None
    if shown is None:
        raise missing("image")
    cached = (b"cache-control", b"private, max-age=%d" % _THUMBNAIL_SECONDS)
    headers = [(b"content-type", MEDIA_TYPE.encode()), *_SAFE, cached, (b"vary", b"cookie, authorization")]
    await asgi.respond(send, 200, shown.data, headers)


async def _whatif(gateway: Gateway, viewer: Viewer, scope: asgi.Scope, send: asgi.Send) -> None:
    comparisons = gateway.dashboard.comparisons
    if scope["method"] == "POST":
        _check_json(scope)
        state = comparisons.start(viewer.tenant, gateway.engine.info(), gateway.policies.of_tenant(viewer.tenant))
    else:
        state = comparisons.state(viewer.tenant)
    await asgi.respond_json(send, 200, state, [*_SAFE, _NO_STORE])


async def _session(gateway: Gateway, name: str, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
    _check_json(scope)
    try:
        raw = await bodies.read_body(receive, limit_bytes=_LOGIN_BYTES, timeout_seconds=_LOGIN_SECONDS)
    except bodies.BodyTooLarge as error:
        raise _no_token(413) from error
    value, seconds = "", 0
    if name == "login":
        viewer = await gateway.dashboard.access.of_token(_token(bytes(raw)), scope)
        value, seconds = gateway.dashboard.access.session(viewer), SESSION_SECONDS
    # Without a path: the browser then takes the folder that it asked for, whatever a proxy put before it. The same for
    # both, so that one ends what the other began.
    secure = "; Secure" if is_https(scope) else ""
    cookie = f"{COOKIE}={value}; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"
    await asgi.respond(send, 204, b"", [(b"set-cookie", cookie.encode()), *_SAFE, _NO_STORE])


def _token(raw: bytes) -> bytes:
    try:
        given: Any = from_json(raw)
    except ValueError:
        given = None
    token: Any = given.get("token") if isinstance(given, dict) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    if not isinstance(token, str) or not token.strip():
        raise _no_token()
    return token.strip().encode("utf-8", "surrogatepass")


def _no_token(status: int = 400) -> RequestError:
    return RequestError('Send {"token": "..."} and nothing else.', code="invalid_value", param="token", status=status)


async def _static(name: str, scope: asgi.Scope, send: asgi.Send) -> None:
    found = _files().get(name)
    if found is None:
        raise RequestError("There is nothing at this path of the dashboard.", code="unknown_path", status=404)
    kind, body, tag = found
    headers = [(b"content-type", kind), *_SAFE, _CHECKED, (b"etag", tag)]
    if asgi.header(scope, b"if-none-match") == tag.decode():
        await asgi.respond(send, 304, b"", headers)
        return
    await asgi.respond(send, 200, body, headers)


@lru_cache(maxsize=1)
def _files() -> Mapping[str, tuple[bytes, bytes, bytes]]:
    """The page's files by name: type, bytes, tag. Read once; there is no other way to a file."""
    found: dict[str, tuple[bytes, bytes, bytes]] = {}
    for file in resources.files("app.dashboard").joinpath("static").iterdir():
        kind = _TYPES.get("." + file.name.rpartition(".")[2])
        if kind is not None:
            body = file.read_bytes()
            found[file.name] = (kind, body, _tag("", body.hex()))
    return found


def _tag(boot: str, text: str) -> bytes:
    return f'"{boot}{sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:20]}"'.encode()


def _query(scope: asgi.Scope) -> dict[str, str]:
    raw: bytes = scope["query_string"]
    try:
        if len(raw) > _MOST_QUERY_BYTES:
            raise ValueError
        return dict(parse_qsl(raw.decode("ascii"), max_num_fields=_MOST_FIELDS))
    except ValueError as error:
        raise RequestError(
            "The address holds too much, or what is no address.", code="invalid_value", param="query"
        ) from error


def _check_method(scope: asgi.Scope, *allowed: str) -> None:
    if scope["method"] not in allowed:
        raise asgi.MethodNotAllowed([one for one in allowed if one != "HEAD"], scope["method"])


def _check_json(scope: asgi.Scope) -> None:
    """A form of another site's page cannot send this type without asking first, and is never answered."""
    kind = (asgi.header(scope, b"content-type") or "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestError("Send Content-Type: application/json.", code="unsupported_media_type", status=415)
