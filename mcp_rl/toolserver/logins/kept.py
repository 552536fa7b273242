"""Logins that are kept: in the system's keyring if the package `keyring` finds one, else in a file of mode 0600.

They lie outside any run folder, one for each server's URL.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from mcp.shared.auth import OAuthClientInformationFull, OAuthMetadata, OAuthToken, ProtectedResourceMetadata
from pydantic import BaseModel, ValidationError

from mcp_rl.errors import ServerError
from mcp_rl.system.durable import sync_file
from mcp_rl.toolserver.client_files.variables import hold

if TYPE_CHECKING:
    from types import ModuleType

_SERVICE = "mcp-rl"


class Login(BaseModel):
    """A login at one server."""

    url: str
    """The server's URL without query, to which alone the token may be sent."""
    client: OAuthClientInformationFull
    """Our registration at the authorization server."""
    token: OAuthToken
    expires_at: float | None
    """When the access token expires, in seconds since 1970; None if the authorization server did not say."""
    authorization_server: OAuthMetadata
    resource: ProtectedResourceMetadata | None = None
    scope: str | None = None

    @property
    def renews(self) -> bool:
        """True if a new access token can be had without a person."""
        return bool(self.token.refresh_token) or self.client.grant_types == ["client_credentials"]

    def hidden(self) -> Login:
        """Return this login after telling everything that prints or writes to leave its secrets out."""
        for value in (self.token.access_token, self.token.refresh_token, self.client.client_secret):
            if value and len(value) >= _SHORTEST_SECRET:
                hold(value, f"login_token_{hashlib.sha256(value.encode()).hexdigest()[:8]}")
        return self


_SHORTEST_SECRET = 8


def resource_of(url: str) -> str:
    """Return a server's URL as logins are kept by it: without query, fragment, user and a slash at its end."""
    parts = urlsplit(url)
    return f"{parts.scheme.lower()}://{parts.netloc.rpartition('@')[2].lower()}{parts.path.rstrip('/')}"


def read_login(url: str) -> Login | None:
    """Return the login kept for a server's URL. Raises ServerError if it cannot be read."""
    if (text := _from_keyring(url)) is None:
        path = _path(url)
        try:
            mode = path.stat().st_mode
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ServerError(f"Cannot read the login in {path}: {error.strerror or error}.") from error
        if stat.S_IMODE(mode) & 0o077:
            raise ServerError(f"Other users can read the login in {path}; run `chmod 600 {path}`, or log in again.")
    try:
        return Login.model_validate_json(text).hidden()
    except ValidationError:
        raise ServerError(f"The login kept for {resource_of(url)} is damaged; log in again.") from None


def write_login(login: Login) -> str:
    """Keep a login; return where, in words."""
    login.hidden()
    text = json.dumps(login.model_dump(mode="json", exclude_none=True))
    if (keyring := _keyring()) is not None:
        with suppress(keyring.errors.KeyringError):
            keyring.set_password(_SERVICE, resource_of(login.url), text)
            _path(login.url).unlink(missing_ok=True)
            return "the system's keyring"
    path = _path(login.url)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        temporary.unlink(missing_ok=True)
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(text.encode())
            sync_file(file)
        temporary.replace(path)
    except OSError as error:
        raise ServerError(f"Cannot keep the login in {path}: {error.strerror or error}.") from error
    return str(path)


def forget_login(url: str) -> bool:
    """Remove the login of a server's URL; return whether there was one."""
    found = False
    if (keyring := _keyring()) is not None and _from_keyring(url) is not None:
        with suppress(keyring.errors.KeyringError):
            keyring.delete_password(_SERVICE, resource_of(url))
            found = True
    path = _path(url)
    if path.exists():
        path.unlink()
        found = True
    return found


def lock_path(url: str) -> Path:
    """Return the file whose lock the one process holds that renews a login."""
    return _path(url).with_suffix(".lock")


def _path(url: str) -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "mcp-rl" / "logins" / f"{hashlib.sha256(resource_of(url).encode()).hexdigest()[:32]}.json"


def _from_keyring(url: str) -> str | None:
    if (keyring := _keyring()) is None:
        return None
    with suppress(keyring.errors.KeyringError):
        found: Any = keyring.get_password(_SERVICE, resource_of(url))
        return found if isinstance(found, str) else None
    return None


def _keyring() -> ModuleType | None:
    """Return the package `keyring` if it is installed and the system has a keyring."""
    try:
        import keyring
        import keyring.errors
    except ImportError:
        return None
    try:
        return keyring if keyring.get_keyring().priority > 0 else None
    except Exception:  # a backend that cannot tell is none
        return None
