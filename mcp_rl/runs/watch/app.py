"""Serve the pages on loopback.

A run's folder is readable for its owner alone, and the pages hold the same episodes, so their address has a random part
that only the terminal shows. Only requests that name this machine by its loopback address are answered, so that no
other page in the browser can ask.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from typing import TYPE_CHECKING

import anyio
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from mcp_rl.inference.openai_api.running import bind, running
from mcp_rl.run_directory import RunDirectory
from mcp_rl.runs.watch.pages import NOT_DRAWN, RunPage, ServedPage, SeveralRunsPage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from starlette.requests import Request

    from mcp_rl.runs.watch.pages import Describe

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_LOOKED_AT = 10.0
"""Seconds since a reader last asked in which a page is made anew."""
_PERIOD = 0.5
"""Seconds between two looks for pages to make."""


class _Served:
    """A page and the requests for it."""

    def __init__(self, page: ServedPage) -> None:
        self.page = page
        self._asked = -_LOOKED_AT

    @property
    def routes(self) -> list[Route]:
        parts = {"/": self._html, "/new": self._new, "/status": self._status, "/episodes": self._episodes}
        return [Route(path, answer) for path, answer in parts.items()]

    async def draw(self) -> None:
        """Make the page anew if somebody looks at it and that is due."""
        if time.monotonic() - self._asked < _LOOKED_AT and self.page.due:
            await anyio.to_thread.run_sync(self.page.make, abandon_on_cancel=True)

    async def _html(self, request: Request) -> Response:
        self._asked = time.monotonic()
        html = self.page.html or await anyio.to_thread.run_sync(self.page.empty, NOT_DRAWN)
        return Response(html, headers=_HEADERS, media_type="text/html")

    async def _new(self, request: Request) -> Response:
        """Answer with the page for a script that reads it: as a page of its own, it would complain of its style."""
        html = self.page.html.replace(b"<style>", b'<style type="text/plain">', 1)
        return Response(html, headers=_HEADERS, media_type="text/html")

    async def _status(self, request: Request) -> Response:
        self._asked = time.monotonic()
        return JSONResponse(await anyio.to_thread.run_sync(self.page.status), headers=_HEADERS)

    async def _episodes(self, request: Request) -> Response:
        since = request.query_params.get("since", "")
        number = int(since) if since.isascii() and since.isdigit() and len(since) < 16 else 0
        return JSONResponse(await anyio.to_thread.run_sync(self.page.episodes, number), headers=_HEADERS)


def make_pages(folders: Sequence[Path], names: Sequence[str], describe: Describe) -> list[ServedPage]:
    """Return the pages: that of the one run, or one about all runs and then that of each."""
    each = [
        SeveralRunsPage([folder], [name], describe) if _has_no_episodes(folder) else RunPage(folder, name)
        for folder, name in zip(folders, names, strict=True)
    ]
    return [*each] if len(each) == 1 else [SeveralRunsPage(folders, names, describe), *each]


def _has_no_episodes(folder: Path) -> bool:
    return "sft" in (RunDirectory(folder).read_json("model.json") or {})


async def watch(pages: Sequence[ServedPage], port: int, say: Callable[[str], None]) -> None:
    """Serve the pages until the task is cancelled. Raises ConfigError if the port is taken."""
    key, served = secrets.token_urlsafe(12), [_Served(page) for page in pages]
    mounts = [Mount(f"/{key}/{number}", routes=one.routes) for number, one in enumerate(served) if number]
    app = Starlette(
        routes=[*mounts, Mount(f"/{key}", routes=served[0].routes)],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"], www_redirect=False)],
    )
    with contextlib.closing(bind("127.0.0.1", port)) as bound:
        async with running(app, bound) as taken:
            say(f"{', '.join(pages[0].names)}: http://127.0.0.1:{taken}/{key}/")
            say("Open the address in a browser; press Ctrl-C to stop.")
            while True:
                for one in served:  # one at a time: Matplotlib's settings are the whole process's
                    await one.draw()
                await anyio.sleep(_PERIOD)
