"""Logging in at a remote server: in a browser, or by client credentials on a machine without a person."""

from __future__ import annotations

import time
import webbrowser
from contextlib import asynccontextmanager
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import anyio
import anyio.to_thread
import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError, OAuthRegistrationError, OAuthTokenError
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
)  # fmt: skip
from mcp.types import CLIENT_CAPABILITIES_META_KEY, CLIENT_INFO_META_KEY, PROTOCOL_VERSION_META_KEY
from pydantic import AnyHttpUrl, AnyUrl, ValidationError

from mcp_rl.errors import ServerError
from mcp_rl.system.notices import notice
from mcp_rl.toolserver.connection.bodies import UNCOMPRESSED, limit_body
from mcp_rl.toolserver.logins.kept import Login, resource_of, write_login

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from anyio.abc import SocketStream

_PERSON_SECONDS = 300.0
"""Time for a person to log in."""
_REQUEST_SECONDS = 30.0
_LONGEST_REQUEST = 65536
_CLIENT = {"name": "mcp-rl", "version": "0"}
_HANDSHAKE: tuple[str, str, dict[str, Any]] = (
    "initialize",
    "2025-11-25",
    {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": _CLIENT},
)
_QUESTION: tuple[str, str, dict[str, Any]] = (
    "server/discover",
    "2026-07-28",
    {
        "_meta": {
            PROTOCOL_VERSION_META_KEY: "2026-07-28",
            CLIENT_INFO_META_KEY: _CLIENT,
            CLIENT_CAPABILITIES_META_KEY: {},
        }
    },
)
"""The first messages of the two eras: a method, its revision, and its parameters."""
_METHODS = ("client_secret_basic", "client_secret_post")


@dataclass(frozen=True)
class LoginWishes:
    """How to log in."""

    client_id: str | None = None
    """The id of a client that is registered at the authorization server already; None to register."""
    client_secret: str | None = None
    issuer: str | None = None
    """The authorization server that gave the client its secret, for a login as the client itself, without a person:
    the secret is sent nowhere else."""
    scope: str | None = None
    browser: bool = True
    """Open the browser; the address is printed in any case."""


async def log_in(url: str, *, server: str, wishes: LoginWishes, seconds: float = _PERSON_SECONDS) -> str:
    """Log in at the server with this URL, and return a sentence on where the login is kept.

    `server` begins errors. Raises ServerError if the server wants no login, or does not offer OAuth, or the login is
    refused or not finished within `seconds`.
    """
    async with _callback(seconds) as callback:
        provider = _provider(url, wishes, callback)
        response = await _tried(url, server, provider)
    if isinstance(response, ServerError):
        raise response
    if response.status_code in (401, 403):
        raise ServerError(
            f"{server} does not accept the token that its authorization server gave for it (HTTP status "
            f"{response.status_code}): it may be for another audience, or the user may lack a permission."
        )
    context = provider.context
    if context.current_tokens is None or context.client_info is None:
        raise ServerError(_no_oauth(server))
    login = Login(
        url=resource_of(url),
        client=context.client_info,
        token=context.current_tokens,
        expires_at=context.token_expiry_time,
        authorization_server=context.oauth_metadata or _endpoints_at(url),
        resource=context.protected_resource_metadata,
        scope=context.current_tokens.scope or context.client_metadata.scope,
    )
    where = write_login(login)
    minutes = "" if login.expires_at is None else f", for {max(0, login.expires_at - time.time()) / 60:.0f} minutes"
    renewed = "and is renewed by itself" if login.renews else "and cannot be renewed without you"
    return f"Logged in at {login.url}{minutes} {renewed}; the login is kept in {where}."


async def _tried(url: str, server: str, provider: OAuthClientProvider) -> httpx2.Response | ServerError:
    """Log in; return the server's answer after that, or what went wrong, since a task group would wrap an error."""
    try:
        hooks: dict[str, Any] = {"response": [limit_body]}
        seconds = httpx2.Timeout(_REQUEST_SECONDS)
        async with httpx2.AsyncClient(timeout=seconds, headers=UNCOMPRESSED, event_hooks=hooks) as client:
            plain, first = await _asked(client, url, _HANDSHAKE), _HANDSHAKE
            if plain.status_code not in (200, 401):  # it may refuse the handshake, as servers of the newer era do
                plain, first = await _asked(client, url, _QUESTION), _QUESTION
            if plain.status_code != 401:
                status = f"without one, it answers HTTP status {plain.status_code} at {resource_of(url)}"
                return ServerError(f"{server} wants no login: {status}.")
            return await _asked(client, url, first, auth=provider)
    except (OAuthFlowError, OAuthTokenError, OAuthRegistrationError, ValidationError) as error:
        return ServerError(_failure(error, provider, server))
    except httpx2.HTTPError as error:
        return ServerError(f"The login at {_lower(server)} failed: {error or type(error).__name__}.")


class _Memory:
    """Storage of a login that is not finished. `client` is a registration that exists already."""

    def __init__(self) -> None:
        self.client: OAuthClientInformationFull | None = None
        self.tokens: OAuthToken | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


class _Callback:
    """The address on loopback to which the browser returns with the authorization code."""

    def __init__(self, port: int, seconds: float) -> None:
        self.url = f"http://127.0.0.1:{port}/callback"
        self._seconds = seconds
        self._come = anyio.Event()
        self._fields: dict[str, str] = {}

    async def serve(self, stream: SocketStream) -> None:
        """Answer one request of the browser."""
        async with stream:
            head = b""
            while b"\r\n\r\n" not in head and len(head) < _LONGEST_REQUEST:
                try:
                    head += await stream.receive()
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    return
            words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
            parts = urlsplit(words[1]) if len(words) > 1 else urlsplit("/")
            if parts.path != "/callback" or self._come.is_set():
                await stream.send(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                return
            self._fields = {name: values[0] for name, values in parse_qs(parts.query).items()}
            refused = f"No login: {self._fields.get('error', 'no code')}."
            said = "You are logged in." if "code" in self._fields else refused
            body = f"<!doctype html><title>mcp-rl</title><p>{escape(said)} You can close this page.".encode()
            answer = (
                "HTTP/1.1 200 OK",
                "Content-Type: text/html; charset=utf-8",
                f"Content-Length: {len(body)}",
                "Referrer-Policy: no-referrer",
                "Connection: close",
            )
            await stream.send("\r\n".join([*answer, "", ""]).encode() + body)
            self._come.set()

    async def result(self) -> AuthorizationCodeResult:
        """Wait for the browser. Raises OAuthFlowError if the login was refused or did not come in time."""
        with anyio.move_on_after(self._seconds):
            await self._come.wait()
        if not self._come.is_set():
            raise OAuthFlowError(f"no login came within {self._seconds:g} s")
        if "code" not in self._fields:
            why = " ".join(filter(None, (self._fields.get("error"), self._fields.get("error_description"))))
            raise OAuthFlowError(f"it was refused ({why or 'no reason given'})")
        return AuthorizationCodeResult(
            code=self._fields["code"], state=self._fields.get("state"), iss=self._fields.get("iss")
        )


@asynccontextmanager
async def _callback(seconds: float) -> AsyncIterator[_Callback]:
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        callback = _Callback(listener.extra(anyio.abc.SocketAttribute.local_port), seconds)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, callback.serve)
            yield callback
            tasks.cancel_scope.cancel()


def _provider(url: str, wishes: LoginWishes, callback: _Callback) -> OAuthClientProvider:
    address, memory = resource_of(url), _Memory()
    if wishes.issuer:
        return ClientCredentialsOAuthProvider(
            address,
            memory,
            wishes.client_id or "",
            wishes.client_secret or "",
            scope=wishes.scope,
            issuer=wishes.issuer,
        )
    redirects = [AnyUrl(callback.url)]
    if wishes.client_id:
        memory.client = OAuthClientInformationFull(
            client_id=wishes.client_id,
            client_secret=wishes.client_secret,
            redirect_uris=redirects,
            token_endpoint_auth_method=_METHODS[0] if wishes.client_secret else "none",
        )
    metadata = OAuthClientMetadata(client_name="mcp-rl", redirect_uris=redirects, scope=wishes.scope)

    async def show(address: str) -> None:
        notice(f"Open this address to log in: {address}")
        if wishes.browser:
            await anyio.to_thread.run_sync(webbrowser.open, address, abandon_on_cancel=True)

    return OAuthClientProvider(address, metadata, memory, show, callback.result)


def _endpoints_at(url: str) -> OAuthMetadata:
    """Return the endpoints of an authorization server that describes itself nowhere (MCP specification 2025-03-26,
    fallbacks for servers without metadata discovery)."""
    parts = urlsplit(url)
    base = f"{parts.scheme}://{parts.netloc}"
    return OAuthMetadata(
        issuer=AnyHttpUrl(base),
        authorization_endpoint=AnyHttpUrl(f"{base}/authorize"),
        token_endpoint=AnyHttpUrl(f"{base}/token"),
    )


async def _asked(
    client: httpx2.AsyncClient, url: str, first: tuple[str, str, dict[str, Any]], **options: Any
) -> httpx2.Response:
    """Send a first message of the protocol; return the answer, whose body is not read."""
    method, revision, params = first
    headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": revision, "Mcp-Method": method}
    message = {"jsonrpc": "2.0", "id": 0, "method": method, "params": params}
    request = client.build_request("POST", url, json=message, headers=headers)
    response = await client.send(request, stream=True, **options)
    await response.aclose()
    return response


def _failure(error: Exception, provider: OAuthClientProvider, server: str) -> str:
    """Return the sentence for a login that failed."""
    said = " ".join(str(error).split()).rstrip(".")
    context = provider.context
    if isinstance(error, ValidationError):
        return f"The login at {_lower(server)} failed: the authorization server's answer is malformed."
    if context.oauth_metadata is None and context.protected_resource_metadata is None:
        return _no_oauth(server)
    if isinstance(error, OAuthRegistrationError):
        return (
            f"The login at {_lower(server)} failed: its authorization server registers no clients by itself; register "
            "one there and give it with --client-id."
        )
    return f"The login at {_lower(server)} failed: {said[:300]}."


def _no_oauth(server: str) -> str:
    return (
        f"{server} wants authorization, but not by OAuth: it names no authorization server; put its token into the "
        "headers of its entry in a file of servers."
    )


def _lower(server: str) -> str:
    return server[:1].lower() + server[1:]
