"""Errors of a connection in words: one sentence that says what went wrong and holds no secret."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import httpx2
from mcp import MCPError
from mcp.types import CONNECTION_CLOSED

from mcp_rl.errors import ServerError
from mcp_rl.scenario import OneServer, SseServer, StdioServer
from mcp_rl.system.redaction import without_secrets
from mcp_rl.toolserver.connection.launch import exited, last_lines

if TYPE_CHECKING:
    from mcp_rl.system.processes.process_log import ProcessLog
    from mcp_rl.toolserver.connection.deadlines import Steps


_NO_LOGIN = "HTTP status 401"
_LISTENS = re.compile(
    r"(?i)\b(?:running|listening|started|serving|available) (?:on|at) (?:address )?"
    r"http://(?:0\.0\.0\.0|127\.0\.0\.1|localhost|\[::1?\]):(\d{2,5})(/\w{1,30})?"
)
"""A line of a server that listens at an address, such as uvicorn's."""


def in_words(error: BaseException | None) -> str:
    """Return the error in one line, without addresses and secrets."""
    if isinstance(error, httpx2.HTTPStatusError):
        return f"HTTP status {error.response.status_code}"
    return " ".join(without_secrets(str(error)).split()).rstrip(".") or type(error).__name__


def first_cause(error: BaseException | None) -> BaseException | None:
    """Return the first error inside nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _over_http(log: ProcessLog) -> str:
    """Return a sentence for a server that wrote that it listens at an address instead of reading its input."""
    found = _LISTENS.search(log.tail(30, 4000))
    if found is None:
        return ""
    address = f"http://127.0.0.1:{found[1]}{found[2] or '/mcp'}"
    return (
        f" It listens at an address instead of talking over stdio: start it yourself and pass --server {address}, or"
        " add its stdio flag to the command."
    )


def unusable(
    server: str, params: OneServer, steps: Steps, problem: BaseException | None, log: ProcessLog, url: str
) -> ServerError:
    """Return the error for a session that could not be opened.

    `server` begins the sentence, such as "The server NAME". `url` is the address to show for a server behind one.
    """
    cause = first_cause(problem)
    if isinstance(cause, ServerError):
        return cause
    if steps.scope.cancelled_caught:
        missed = "answer" if steps.name == "initialize" else "list its tools"
        advice = _over_http(log) if isinstance(params, StdioServer) else ""
        return ServerError(f"{server} did not {missed} within {steps.seconds:g} s.{advice}{last_lines(log)}")
    if isinstance(params, StdioServer):
        if isinstance(cause, MCPError) and cause.code == CONNECTION_CLOSED:
            return exited(server, log, params)
        return ServerError(f"{server} cannot be used: {in_words(cause)}.{last_lines(log)}")
    if in_words(cause) == _NO_LOGIN:
        return ServerError(
            f"{server} wants a login or a token ({_NO_LOGIN}) at {url}: run `mcp-rl servers login` with what --server "
            "takes, or put a token into its headers."
        )
    hint = "" if isinstance(params, SseServer) else " If it speaks SSE, choose the transport sse."
    return ServerError(f"{server} cannot be used at {url}: {in_words(cause)}.{hint}")
