"""Puts a kept login on requests, and renews it while a run lasts.

The SDK's provider holds a lock while a request is under way, asks a person where a token is refused, and forgets when a
token expires and where it is renewed once the process ends. This one renews before a token expires and once after a
refusal, from what was kept at login, and lets requests overlap.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import httpx2
from mcp.client.auth import OAuthClientProvider
from mcp.shared.auth import OAuthClientMetadata

from mcp_rl.errors import LoginNeeded
from mcp_rl.toolserver.logins.kept import Login, lock_path, read_login, resource_of, write_login

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from mcp.shared.auth import OAuthToken

_EARLY = 30.0
"""Seconds before its end at which a token is renewed."""
_LOCK_POLL = 0.05


class _Kept:
    """Storage of a provider: it stores what the provider obtains together with what it needs after a restart."""

    def __init__(self, login: Login) -> None:
        self.login = login

    async def get_tokens(self) -> OAuthToken:
        return self.login.token

    async def set_tokens(self, tokens: OAuthToken) -> None:
        expires_at = None if tokens.expires_in is None else time.time() + tokens.expires_in
        self.login = self.login.model_copy(update={"token": tokens, "expires_at": expires_at})
        write_login(self.login)

    async def get_client_info(self) -> Any:
        return self.login.client

    async def set_client_info(self, client_info: Any) -> None:
        raise AssertionError("a kept login registers nothing")


class KeptLogin(OAuthClientProvider):
    """Authenticates requests by a kept login. `server` begins errors, such as "The server NAME"."""

    def __init__(self, login: Login, *, server: str) -> None:
        metadata = OAuthClientMetadata(redirect_uris=None, scope=login.scope)
        self._storage = _Kept(login)
        super().__init__(login.url, metadata, self._storage)
        self._server = server
        self._command = f"mcp-rl servers login {login.url}"
        self._renewing = anyio.Lock()
        self._take_over(login)

    @property
    def token(self) -> OAuthToken:
        """The token in use."""
        return self._storage.login.token

    def _take_over(self, login: Login) -> None:
        context = self.context
        self._storage.login = login
        context.current_tokens, context.client_info = login.token, login.client
        context.token_expiry_time = login.expires_at
        context.oauth_metadata, context.protected_resource_metadata = login.authorization_server, login.resource
        self._initialized = True

    async def _auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        if not _same_origin(request.url, httpx2.URL(self.context.server_url)):
            raise LoginNeeded(f"{self._server} sends us to {request.url.host}, which the login is not for.")
        for renewals in range(2):
            token = self._storage.login.token.access_token
            if renewals or self._ends_soon():
                async with self._renewed_once(token) as outdated:
                    if outdated:
                        response = yield await self._renewal()
                        await self._take(response)
            self._add_auth_header(request)
            response = yield request
            if response.status_code != 401:
                break
            if renewals or not self._storage.login.renews:
                raise self._refused(response)
        if response.status_code == 403 and 'error="insufficient_scope"' in response.headers.get("www-authenticate", ""):
            scope = self._storage.login.scope or "no scope"
            raise LoginNeeded(
                f"{self._server} wants a wider permission than its login has ({scope}); log in again with "
                f"`{self._command} --scope SCOPE`."
            )

    def _ends_soon(self) -> bool:
        login = self._storage.login
        return login.renews and login.expires_at is not None and time.time() > login.expires_at - _EARLY

    @asynccontextmanager
    async def _renewed_once(self, token: str) -> AsyncIterator[bool]:
        """Hold the right to renew; give False if this or another process has renewed the token meanwhile."""
        async with self._renewing, _locked(lock_path(self.context.server_url)):
            kept = read_login(self.context.server_url)
            if kept is not None and kept.token.access_token != self._storage.login.token.access_token:
                self._take_over(kept)
            yield self._storage.login.token.access_token == token

    async def _renewal(self) -> httpx2.Request:
        if self._storage.login.token.refresh_token:
            return await self._refresh_token()
        if not self._storage.login.renews:
            raise self._needed("has expired and cannot be renewed")
        data = {"grant_type": "client_credentials", "resource": self.context.get_resource_url()}
        if self._storage.login.scope:
            data["scope"] = self._storage.login.scope
        data, headers = self.context.prepare_token_auth(data, {})
        return httpx2.Request("POST", self._get_token_endpoint(), data=data, headers=headers)

    async def _take(self, response: httpx2.Response) -> None:
        before = self._storage.login
        if response.status_code in (400, 401, 403):
            raise self._needed("has expired or was withdrawn")
        if response.status_code != 200:
            raise httpx2.ConnectError(f"the authorization server answered HTTP status {response.status_code}")
        if not await self._handle_refresh_response(response):
            self._take_over(before)
            raise self._needed("could not be renewed: the authorization server's answer holds no token")

    def _refused(self, response: httpx2.Response) -> LoginNeeded:
        known = "invalid_token" in response.headers.get("www-authenticate", "")
        why = "is not accepted: it is for another server or another user" if known else "is not accepted"
        return self._needed(why)

    def _needed(self, why: str) -> LoginNeeded:
        return LoginNeeded(f"The login at {self._server[:1].lower()}{self._server[1:]} {why}; run `{self._command}`.")


def _same_origin(one: httpx2.URL, other: httpx2.URL) -> bool:
    return (one.scheme, one.host, one.port) == (other.scheme, other.host, other.port)


@asynccontextmanager
async def _locked(path: Any) -> AsyncIterator[None]:
    """Hold a lock among processes, which the kernel releases when this one ends."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await anyio.sleep(_LOCK_POLL)
        yield
    finally:
        os.close(descriptor)


_in_use: dict[str, KeptLogin] = {}
"""Logins by URL: connections of one process to one server share one, so that a token is renewed once."""


def kept_login(url: str, *, server: str) -> KeptLogin | None:
    """Return the authentication for a server's URL if a login is kept for it. Raises ServerError if it is damaged."""
    key = resource_of(url)
    login = read_login(url)
    if login is None:
        _in_use.pop(key, None)
        return None
    known = _in_use.get(key)
    if known is None or known.token != login.token:
        known = _in_use[key] = KeptLogin(login, server=server)
    return known
