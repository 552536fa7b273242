"""Elicitation: what a server is told that asks its user for input.

The episode's user answers, if it has a simulated one. Otherwise a declared policy does: it declines, it takes the
defaults of the form, or a function of a plugin fills the form in. What was asked and answered is kept with the call's
result.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mcp_rl.errors import ElicitationError, EngineError
from mcp_rl.system.visible import shortened

if TYPE_CHECKING:
    from mcp_rl.config import Elicitation

MOST_QUESTIONS = 32
"""Questions of one call that are answered; a server that asks on is declined."""
_KEPT = 500
"""Characters of a question that are kept with the result."""


@dataclass(frozen=True)
class Question:
    """A form that a server wants filled in during a call."""

    message: str
    """The server's message to its user."""
    schema: dict[str, Any] = field(default_factory=dict)
    """JSON Schema of the form: an object with flat properties (MCP specification, client/elicitation)."""
    tool: str | None = None
    """The server's name of the tool that was called; None if that is unknown."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """The arguments of the call."""


Form = dict[str, Any]
FillIn = Callable[[Question], Form | Awaitable[Form | None] | None]
"""Returns the values of the form's properties; None declines. May be asynchronous."""


_user: ContextVar[FillIn | None] = ContextVar("user who answers questions of servers", default=None)


@contextmanager
def answered_by(user: FillIn | None) -> Iterator[None]:
    """Let this user answer what servers ask during the calls that are made inside; None: nobody does."""
    token = _user.set(user)
    try:
        yield
    finally:
        _user.reset(token)


def present_user() -> FillIn | None:
    """Return the user who answers in the current episode; None if it has none."""
    return _user.get()


async def answer(policy: Elicitation | FillIn, params: dict[str, Any], call: dict[str, Any] | None) -> dict[str, Any]:
    """Return the answer to a request `elicitation/create` with these parameters, as the protocol has it.

    `call` holds the `name` and the `arguments` of the tool call that it belongs to, if that is known. A request to open
    a web page is declined. Raises ElicitationError if a plugin's function fails, EngineError if a user cannot be asked.
    """
    if params.get("mode", "form") != "form":
        return {"action": "decline"}
    schema = params.get("requestedSchema")
    schema = schema if isinstance(schema, dict) else {}
    if policy == "defaults":
        form = defaults(schema)
    elif policy == "decline":
        form = None
    else:
        called = call or {}
        question = Question(
            str(params.get("message", "")), schema, called.get("name"), dict(called.get("arguments") or {})
        )
        form = await _filled_in(policy, question)
    return {"action": "decline"} if form is None else {"action": "accept", "content": form}


def defaults(schema: dict[str, Any]) -> Form | None:
    """Return the defaults of a form; None if a property that it requires has none."""
    properties, required = schema.get("properties"), schema.get("required")
    found = {
        name: below["default"]
        for name, below in (properties.items() if isinstance(properties, dict) else ())
        if isinstance(below, dict) and "default" in below
    }
    wanted = required if isinstance(required, list) else []
    missing = [name for name in wanted if not isinstance(name, str) or name not in found]
    return None if missing else found


def exchange(params: dict[str, Any], answered: dict[str, Any]) -> dict[str, Any]:
    """Return what is kept of a question and its answer."""
    return {"message": shortened(str(params.get("message", "")), _KEPT), **answered}


async def _filled_in(fill_in: FillIn, question: Question) -> Form | None:
    named = getattr(fill_in, "__name__", "elicitation")
    try:
        form = fill_in(question)
        if inspect.isawaitable(form):
            form = await form
    except EngineError:
        raise
    except Exception as error:
        raise ElicitationError(
            f"The function {named} could not answer {shortened(question.message, 100)!r}: {type(error).__name__}: "
            f"{error}."
        ) from error
    if form is not None and not is_form(form):
        raise ElicitationError(
            f"The function {named} must return the values of a form by their names, or None to decline, not {form!r}."
        )
    return form


def is_form(value: Any) -> bool:
    """Return whether the value is a flat object, as the protocol allows them for forms."""
    return isinstance(value, dict) and all(
        isinstance(name, str)
        and (
            isinstance(entry, str | int | float | bool)
            or (isinstance(entry, list) and all(isinstance(item, str) for item in entry))
        )
        for name, entry in value.items()
    )
