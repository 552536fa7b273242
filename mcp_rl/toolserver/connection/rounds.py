"""A call that takes several requests: a server may ask for input first, or answer with a task that is done later.

Results of revision 2026-07-28 say what they are in `resultType`. With `input_required`, the request is sent again with
the answers (specification 2026-07-28, basic/patterns/mrtr). With `task`, the server is asked for the task until it is
done, and each answer that it is under way is a sign of life. Both are bounded: the rounds and the questions by a
number, a task by the limit of the call's deadline.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
from mcp import MCPError
from mcp.types import HEADER_MISMATCH, INTERNAL_ERROR, INVALID_REQUEST

from mcp_rl.toolserver.connection.era import EraError
from mcp_rl.toolserver.elicitation import MOST_QUESTIONS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mcp_rl.toolserver.connection.call import Call
    from mcp_rl.toolserver.connection.raw_session import RawSession

    Answer = Callable[[dict[str, Any], Call | None], Awaitable[dict[str, Any]]]

MOST_ROUNDS = 10
"""Times that a server may ask for more during one call; the same number as in the SDK."""
_PAUSE = 0.05
"""Seconds before a request is sent again without new answers, doubled each time."""
_LONGEST_PAUSE = 0.25
_POLL = 0.5
"""Seconds between two looks at a task, unless the server suggests others."""
_SHORTEST_POLL, _LONGEST_POLL = 0.01, 30.0
_GOODBYE = 1.0
"""Seconds for telling the server that a task is not wanted any more."""
_OTHERS = {"sampling/createMessage": "a model to sample from", "roots/list": "the user's folders"}


async def result_of(
    call: Call, session: RawSession, answer: Answer, relist: Callable[[], Awaitable[None]]
) -> dict[str, Any]:
    """Send a call and everything that follows from it; return its raw result.

    `answer` answers an elicitation, `relist` lists the tools again. Raises MCPError if the server reports an error or
    wants something that an episode does not have, EraError for a result of another revision.
    """
    extra: dict[str, Any] = {}
    pause = _PAUSE
    for _ in range(MOST_ROUNDS + 1):
        raw = await _sent(call, session, extra, relist)
        kind = raw.get("resultType", "complete")
        if kind == "complete" or not isinstance(kind, str):
            return raw
        if not session.modern or kind not in ("input_required", "task"):
            raise EraError(
                f"speaks the protocol revision {session.revision}, and answered a call of {call.name} with a result of "
                f"another one (resultType {kind[:40]!r})"
            )
        if kind == "task":
            return await _task_done(raw, call, session, answer)
        requests = raw.get("inputRequests")
        extra = {"requestState": raw["requestState"]} if isinstance(raw.get("requestState"), str) else {}
        if isinstance(requests, dict) and requests:
            extra["inputResponses"] = await _answers(requests, call, answer)
            pause = _PAUSE
        else:
            await anyio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
    raise MCPError(INVALID_REQUEST, f"The tool asked for more input {MOST_ROUNDS} times, and was given up.")


async def _sent(
    call: Call, session: RawSession, extra: dict[str, Any], relist: Callable[[], Awaitable[None]]
) -> dict[str, Any]:
    """Send the call; once more if the server wants other headers than its first listing said."""
    params = call.params | extra
    try:
        return await session.ask(call.method, params, call.sign_of_life)
    except MCPError as mismatch:
        if mismatch.code != HEADER_MISMATCH or not session.modern:
            raise
        try:
            await relist()
        except MCPError:
            raise mismatch from None
    return await session.ask(call.method, params, call.sign_of_life)


async def _answers(requests: dict[str, Any], call: Call, answer: Answer) -> dict[str, Any]:
    """Answer each question. Raises MCPError for a request of another kind, and for too many questions."""
    if len(call.asked) + len(requests) > MOST_QUESTIONS:
        raise MCPError(INVALID_REQUEST, f"The tool asked for more than {MOST_QUESTIONS} inputs, and was given up.")
    answers = {}
    for key, request in requests.items():
        method = request.get("method") if isinstance(request, dict) else None
        if method != "elicitation/create":
            wanted = _OTHERS.get(str(method), "something unknown")
            raise MCPError(INVALID_REQUEST, f"The tool asked for {wanted}, which is not provided.")
        params = request.get("params")
        answers[key] = await answer(params if isinstance(params, dict) else {}, call)
    return answers


async def _task_done(task: dict[str, Any], call: Call, session: RawSession, answer: Answer) -> dict[str, Any]:
    """Wait for a task and return the result of the call."""
    name = task.get("taskId")
    if not isinstance(name, str) or call.tool is None:
        raise EraError(f"answered {call.name} with a task that cannot be followed")
    answered: set[str] = set()
    done = False
    try:
        while True:
            status = task.get("status")
            if status == "completed" and isinstance(task.get("result"), dict):
                done = True
                return dict(task["result"])
            if status in ("failed", "cancelled"):
                done = True
                raise _ended(task)
            if status == "input_required":
                requests = task.get("inputRequests")
                new = (
                    {key: r for key, r in requests.items() if key not in answered} if isinstance(requests, dict) else {}
                )
                if new:
                    answers = await _answers(new, call, answer)
                    answered |= new.keys()
                    await session.ask("tasks/update", {"taskId": name, "inputResponses": answers})
            elif status not in ("working", "completed"):
                raise EraError(f"says that a task of {call.name} is {str(status)[:40]!r}, which is unknown")
            await anyio.sleep(_interval(task))
            task = await session.ask("tasks/get", {"taskId": name})
            call.sign_of_life()
    finally:
        if not done and not session.over:
            with anyio.move_on_after(_GOODBYE, shield=True):
                await _cancel(session, name)


async def _cancel(session: RawSession, task: str) -> None:
    with suppress(MCPError):  # the server may have forgotten it
        await session.ask("tasks/cancel", {"taskId": task}, notify_cancel=False)


def _ended(task: dict[str, Any]) -> MCPError:
    """Return the error of a task that has no result."""
    error = task.get("error")
    error = error if isinstance(error, dict) else {}
    code = error.get("code")
    words = error.get("message") or task.get("statusMessage") or f"The task is {task.get('status')}."
    return MCPError(code if isinstance(code, int) else INTERNAL_ERROR, str(words))


def _interval(task: dict[str, Any]) -> float:
    wanted = task.get("pollIntervalMs")
    if isinstance(wanted, bool) or not isinstance(wanted, int | float) or wanted != wanted:
        return _POLL
    return min(max(wanted, 1000 * _SHORTEST_POLL), 1000 * _LONGEST_POLL) / 1000
