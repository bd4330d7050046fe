"""Who shares what with whom: nobody.

A tenant is named by a key of the configuration, or by the client's own bearer token, or is `default` when a request
carries none. Everything that reaches an engine or a store is derived from the tenant's own key.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

from context.errors import ConfigError
from context.files import UnusableFile, read_text

_SECRET_BYTES = 32
_MAX_FILE_BYTES = 4096
_REMEMBERED_TENANTS = 4096


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant. `name` is safe for logs, keys and folders: it never is a token or a part of one."""

    name: str
    key: bytes
    cache_salt: str = field(init=False)
    """What keeps this tenant's blocks apart in the engine's prefix cache: 64 hex digits."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "cache_salt", hmac.new(self.key, b"salt", hashlib.sha256).hexdigest())

    def image_uuid(self, image_id: str) -> str:
        """The name by which this tenant's engine requests call an image: 64 hex digits."""
        return hmac.new(self.key, b"image\0" + image_id.encode(), hashlib.sha256).hexdigest()


class Tenancy:
    """Finds the tenant of a request. Tenants of one secret are the same after a restart."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        # Of the latest tokens, by their digest: no secret of a client stays in memory.
        self._tenants: OrderedDict[bytes, Tenant] = OrderedDict()
        self._default = self.named("default")

    def named(self, name: str) -> Tenant:
        """The tenant that the configuration calls `name`."""
        return Tenant(name, self._derive(b"name\0" + name.encode()))

    def of_token(self, token: str | None) -> Tenant:
        """The tenant of a bearer token that the configuration does not know; `default` without one."""
        if not token:
            return self._default
        seen = hashlib.sha256(token.encode()).digest()
        tenant = self._tenants.get(seen)
        if tenant is None:
            tenant = self._tenants[seen] = self.named(
                f"token-{self._derive(b'token' + bytes(1) + token.encode()).hex()}"
            )
            if len(self._tenants) > _REMEMBERED_TENANTS:
                self._tenants.popitem(last=False)
        return tenant

    def _derive(self, what: bytes) -> bytes:
        return hmac.new(self._secret, what, hashlib.sha256).digest()


def load_secret(folder: Path) -> bytes:
    """The installation's own secret, made on first use, readable by its owner alone.

    Raises:
        ConfigError: the folder cannot be written or the file is damaged.
    """
    return bytes.fromhex(load_token(folder / "secret"))


def load_token(path: Path) -> str:
    """A random token of 64 hex digits that lives in a file, made on first use.

    Raises:
        ConfigError: the file cannot be made or read, or does not hold a token.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not path.exists():
            # Write elsewhere and link: two processes that start at once must end up with one and the same token.
            fresh = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_hex(_SECRET_BYTES))
            try:
                os.link(fresh, path)
            except FileExistsError:
                pass
            finally:
                fresh.unlink(missing_ok=True)
        token = read_text(path, _MAX_FILE_BYTES).strip()
    except OSError as error:
        reason = f"cannot keep {path.name} there ({error.strerror}); choose a folder that can be written with data_dir"
        raise ConfigError("settings", "data_dir", reason) from error
    except UnusableFile as error:
        remedy = "see to it that it can be read, or remove it to have a new one"
        raise ConfigError("settings", "data_dir", f"its file {path.name} {error.what}; {remedy}") from error
    if len(token) != 2 * _SECRET_BYTES or not all(digit in "0123456789abcdef" for digit in token):
        raise ConfigError(
            "settings", "data_dir", f"its file {path.name} does not hold 64 hex digits; remove it to have a new one"
        )
    return token
