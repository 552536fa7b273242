import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from benchmarks.loopback import serving


def test_an_application_answers_within_the_block_only() -> None:
    app = Starlette(routes=[Route("/", lambda request: PlainTextResponse("here"))])
    with serving(app) as address:
        assert address.startswith("http://127.0.0.1:")
        assert httpx.get(address).text == "here"
    with pytest.raises(httpx.ConnectError):
        httpx.get(address)


def test_a_server_that_cannot_start_raises_at_once() -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no"})

    with pytest.raises(RuntimeError, match="did not start"), serving(broken):
        raise AssertionError("it started")
