"""A tool server that wants a login, and its authorization server: the SDK's own, on loopback.

Arguments: two free ports, the tool server's and the authorization server's, and a kind of trouble, or "none".
"""

import secrets
import sys
import time

import anyio
import uvicorn
from mcp.server import MCPServer
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizeError,
    RefreshToken,
    TokenError,
    construct_redirect_uri,
)
from mcp.server.auth.routes import create_auth_routes
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.shared.auth import OAuthToken
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse
from starlette.routing import Route

PORT, AUTHORITY, TROUBLE = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
URL, ISSUER = f"http://127.0.0.1:{PORT}/mcp", f"http://127.0.0.1:{AUTHORITY}"
LIFE = 1 if TROUBLE in ("short", "withdrawn") else 3600
clients, codes, access, refresh = {}, {}, {}, {}
counts = {"refreshed": 0, "machine": 0, "elsewhere": 0}


def token(client, scopes, resource, *, renewable=True):
    issued = OAuthToken(access_token=secrets.token_urlsafe(24), expires_in=LIFE, scope=" ".join(scopes))
    audience = "https://elsewhere.example/mcp" if TROUBLE == "audience" else resource
    access[issued.access_token] = AccessToken(
        token=issued.access_token,
        client_id=client,
        scopes=scopes,
        expires_at=int(time.time()) + LIFE,
        resource=audience,
    )
    if renewable:
        issued.refresh_token = secrets.token_urlsafe(24)
        refresh[issued.refresh_token] = RefreshToken(token=issued.refresh_token, client_id=client, scopes=scopes)
    return issued


class Authority:
    async def get_client(self, client_id):
        return clients.get(client_id)

    async def register_client(self, client_info):
        clients[client_info.client_id] = client_info

    async def authorize(self, client, params):
        if TROUBLE == "refused":
            raise AuthorizeError("access_denied", "the user said no")
        code = secrets.token_urlsafe(24)
        codes[code] = AuthorizationCode(
            code=code,
            scopes=params.scopes or ["tools"],
            expires_at=time.time() + 60,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        return construct_redirect_uri(str(params.redirect_uri), code=code, state=params.state)

    async def load_authorization_code(self, client, authorization_code):
        return codes.get(authorization_code)

    async def exchange_authorization_code(self, client, authorization_code):
        del codes[authorization_code.code]
        return token(client.client_id, authorization_code.scopes, authorization_code.resource)

    async def load_refresh_token(self, client, refresh_token):
        return refresh.get(refresh_token)

    async def exchange_refresh_token(self, client, refresh_token, scopes):
        if TROUBLE == "withdrawn":
            raise TokenError("invalid_grant", "withdrawn")
        del refresh[refresh_token.token]  # used once, as the specification wants of public clients
        counts["refreshed"] += 1
        return token(client.client_id, scopes, URL)

    async def load_access_token(self, token):
        found = access.get(token)
        return found if found and (found.expires_at or 0) > time.time() else None

    async def verify_token(self, token):
        return await self.load_access_token(token)

    async def revoke_token(self, token):
        access.pop(token.token, None)


async def machine_token(request: Request):
    """Grant client credentials, which the SDK's server does not, and hand everything else on."""
    form = await request.form()
    if request.headers.get("authorization") != "Basic bWFjaGluZTptYWNoaW5lLXNlY3JldA==":  # machine:machine-secret
        return JSONResponse({"error": "invalid_client"}, 401)
    counts["machine"] += 1
    return JSONResponse(
        token("machine", ["tools"], form.get("resource"), renewable=False).model_dump(exclude_none=True)
    )


async def elsewhere(request: Request):
    counts["elsewhere"] += "authorization" in request.headers
    return JSONResponse({}, 404)


async def counted(request: Request):
    return JSONResponse(counts)


async def metadata(request: Request):
    issuer = "https://other.example" if TROUBLE == "issuer" else ISSUER
    places = {name: f"{ISSUER}/{place}" for name, place in (("authorization", "authorize"), ("token", "token"))}
    return JSONResponse(
        {
            "issuer": issuer,
            **{f"{name}_endpoint": place for name, place in places.items()},
            **({"token_endpoint": f"{ISSUER}/machine"} if TROUBLE == "machine" else {}),
            "registration_endpoint": f"{ISSUER}/register",
            "response_types_supported": ["code"],
            "grant_types_supported": ["authorization_code", "refresh_token", "client_credentials"],
            "code_challenge_methods_supported": ["S256"],
        }
    )


authority = Authority()
server = MCPServer(
    "guarded",
    token_verifier=authority,
    auth=AuthSettings(
        issuer_url=ISSUER,
        resource_server_url=URL,
        required_scopes=["tools"],
        validate_token_resource=True,
    ),
    log_level="ERROR",
)


@server.tool()
async def whoami(wait: float = 0) -> str:
    """Tell the client whose token was sent."""
    await anyio.sleep(wait)
    found = get_access_token()
    return found.client_id if found else "nobody"


async def main():
    options = ClientRegistrationOptions(enabled=TROUBLE != "closed", valid_scopes=["tools"], default_scopes=["tools"])
    routes = create_auth_routes(authority, AnyHttpUrl(ISSUER), client_registration_options=options)
    ours = [
        Route("/.well-known/oauth-authorization-server", metadata),
        Route("/machine", machine_token, methods=["POST"]),
        Route("/counts", counted),
        Route("/elsewhere", elsewhere, methods=["GET", "POST"]),
    ]
    authority_app = Starlette(routes=[*ours, *routes])
    tools_app = server.streamable_http_app()
    tools_app.router.routes.insert(
        0, Route("/moved", lambda _: RedirectResponse(f"{ISSUER}/elsewhere", 307), methods=["POST", "GET"])
    )
    apps = ((tools_app, PORT), (authority_app, AUTHORITY))
    async with anyio.create_task_group() as tasks:
        for app, port in apps:
            tasks.start_soon(uvicorn.Server(uvicorn.Config(app, "127.0.0.1", port, log_level="error")).serve)


anyio.run(main)
