"""Serve an MCP application to this machine only, and refuse requests that are too large or arrive too slowly."""

import math

import anyio
from mcp.server.transport_security import DEFAULT_MAX_REQUEST_BODY_SIZE, RequestBodyLimitMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

HOSTS = ("127.0.0.1", "localhost", "::1")
"""The hosts for which the SDK also checks the headers Host and Origin, so that no foreign web page gets an answer."""
BODY_SECONDS = 5
IDLE_SECONDS = 75
"""Longer than clients keep idle connections, so that no request is sent into one that is being closed."""
MAX_CONNECTIONS = 512


class WholeBodies:
    """Passes a request on once its whole body has arrived."""

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
    import uvicorn  # not needed for stdio

    uvicorn.run(
        WholeBodies(app),
        host=host,
        port=port,
        log_level="warning",
        timeout_keep_alive=IDLE_SECONDS,
        limit_concurrency=MAX_CONNECTIONS,
    )
