"""Errors of a request, in the form that OpenAI's or Anthropic's clients read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

INVALID = "invalid_request_error"
MESSAGES = "/v1/messages"
"""The path of Anthropic's protocol."""
_ANTHROPIC = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""Anthropic's names of errors by their status."""


class Refusal(Exception):
    """A request that is answered with an error: a sentence, the HTTP status, and the field at fault."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        kind: str = INVALID,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.headers = status, dict(headers or {})
        self.body: dict[str, Any] = {"error": {"message": message, "type": kind, "param": param, "code": code}}

    def body_at(self, path: str) -> dict[str, Any]:
        """Return the body in the form of the protocol that is spoken at a path."""
        if not path.startswith(MESSAGES):
            return self.body
        kind = _ANTHROPIC.get(self.status, "api_error" if self.status >= 500 else INVALID)
        return {"type": "error", "error": {"type": kind, "message": str(self)}}


def no_such_path(method: str, path: str, known: Sequence[tuple[str, str]]) -> Refusal:
    """Return a 404, or a 405 where the path takes another method."""
    if others := [other for other, there in known if there == path]:
        return Refusal(f"{path} takes {' or '.join(others)}, not {method}.", status=405)
    meant = [there for _, there in known if there.endswith(path) and path.count("/") > 1]
    hint = f" did you mean {meant[0]}?" if meant else f" available: {', '.join(there for _, there in known)}."
    return Refusal(f"The path {path[:200]} does not exist here;{hint}", status=404)


def unknown_model(name: str, known: list[str]) -> Refusal:
    there = ", ".join(known)
    return Refusal(
        f"The model {name[:200]!r} is not served here; available: {there}.",
        status=404,
        param="model",
        code="model_not_found",
    )


def unknown_response(id: str) -> Refusal:
    return Refusal(
        f"The response {id[:200]!r} is not kept here (any longer); send the whole conversation as input.",
        param="previous_response_id",
        code="previous_response_not_found",
    )


def context_exceeded(room: int, asked: int) -> Refusal:
    """Return the error in the words by which clients, LiteLLM among them, recognise it."""
    return Refusal(
        f"This model's maximum context length is {room} tokens, and the request holds {asked}; shorten it.",
        param="messages",
        code="context_length_exceeded",
    )


def too_busy(limit: int, asked: int = 0) -> Refusal:
    if asked > limit:
        return Refusal(f"{asked} turns in one request are too many; at most {limit} may be in flight.", param="n")
    return Refusal(
        f"{limit} turns are in flight already; try again later.",
        status=429,
        code="rate_limit_exceeded",
        kind="rate_limit_error",
        headers={"retry-after": "1"},
    )


def failed(message: str, *, status: int = 500, again: bool = False) -> Refusal:
    """Return an error of the server. `again` invites the client to retry soon."""
    headers = {"retry-after": "5"} if again else {"x-should-retry": "false"}
    return Refusal(message, status=status, kind="server_error", headers=headers)
