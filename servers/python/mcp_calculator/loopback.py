"""Serves an MCP application to this machine alone, and to no request that is too large or takes too long to arrive."""

import math

import anyio
from mcp.server.transport_security import DEFAULT_MAX_REQUEST_BODY_SIZE, RequestBodyLimitMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

HOSTS = ("127.0.0.1", "localhost", "::1")
"""The hosts for which the SDK also checks the headers Host and Origin, so that no web page elsewhere can ask."""
BODY_SECONDS = 5
IDLE_SECONDS = 75
"""Longer than clients keep an idle connection, so that none sends a request into one that we are closing."""
MAX_CONNECTIONS = 512


class WholeBodies:
    """Hands a request on when all of its body has come."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with anyio.move_on_after(BODY_SECONDS) as arriving:

            async def arrived(scope: Scope, receive: Receive, send: Send) -> None:
                arriving.deadline = math.inf
                await self.app(scope, receive, send)

            await RequestBodyLimitMiddleware(arrived, DEFAULT_MAX_REQUEST_BODY_SIZE)(scope, receive, send)
        if arriving.cancelled_caught:
            late = Response("The request took too long to arrive.", status_code=408, headers={"connection": "close"})
            await late(scope, receive, send)


def serve(app: ASGIApp, host: str, port: int) -> None:
    import uvicorn  # not where there is only standard input

    uvicorn.run(
        WholeBodies(app),
        host=host,
        port=port,
        log_level="warning",
        timeout_keep_alive=IDLE_SECONDS,
        limit_concurrency=MAX_CONNECTIONS,
    )
