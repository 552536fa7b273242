"""An engine that says a script through an agent program: what the policy would have sampled, had it said the same.

The program asks as ever, and each of its requests gets the script's next turn: a call, which the program must offer, or
the answer. Where the program insists on a call, the answer goes into its own tool for it: one that is not the server's,
with a single parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from anyio.lowlevel import checkpoint

from mcp_rl.errors import EngineError
from mcp_rl.inference.chat.calls import ParsedCall
from mcp_rl.inference.engine import Completion

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Sequence

    from mcp_rl.inference.chat.chat_format import ChatFormat
    from mcp_rl.inference.engine import Engine, Sampling
    from mcp_rl.inference.openai_api.requests import ChatRequest
    from mcp_rl.scenario import McpScenario
    from mcp_rl.toolserver.session import Session

Said = tuple[str, list[ParsedCall]]
"""A turn: its text and its calls."""
Script = Callable[["McpScenario", "Session"], list[Said]]
"""Returns the turns of an episode."""


class ScriptEngine:
    """The engine of one episode whose turns are given. Its tokens have the log-probability 0."""

    def __init__(self, engine: Engine, chat: ChatFormat, turns: Sequence[Said], ours: Collection[str]) -> None:
        """`ours` are the names of the server's own tools."""
        self._engine, self._chat = engine, chat
        self._turns, self._ours = list(turns), ours
        self._asked = 0
        self._turn: list[int] | EngineError = EngineError("The agent program asks for more than turns of a chat.")
        self._left: list[int] = []
        """The rest of a turn that is sampled in slices."""

    @property
    def version(self) -> int:
        return self._engine.version

    @property
    def max_context(self) -> int:
        return self._engine.max_context

    def ask(self, asked: ChatRequest, begun: Sequence[int]) -> None:
        """Take a request, whose turn is forced to begin with the ids `begun`. What cannot be said is raised as the turn
        is sampled, where it is the episode's failure."""
        turn = self._turns[min(self._asked, len(self._turns) - 1)]
        self._asked += 1
        try:
            self._turn = self._said(turn, asked)[len(begun) :]
        except EngineError as error:
            self._turn = error

    def _said(self, turn: Said, asked: ChatRequest) -> list[int]:
        (text, calls), offered = turn, asked.schemas
        if not calls and asked.tool_choice == "required":
            text, calls = "", [_answering(text, offered, self._ours)]
        missing = {call.name for call in calls} - {tool["function"]["name"] for tool in offered}
        if missing:
            raise EngineError(f"The agent program does not offer the tool {min(missing)!r} of the reference solution.")
        try:
            return self._chat.said(text, calls, offered)
        except ValueError as error:
            raise EngineError(f"The reference solution cannot be said by a model: {error}.") from error

    @asynccontextmanager
    async def episode(self, *, seed: int) -> AsyncIterator[ScriptEngine]:
        yield self

    async def generate(self, new_ids: Sequence[int], sampling: Sampling) -> Completion:
        """Return as much of the turn as is asked for, from its beginning where there are new ids.

        Raises EngineError for a turn that no policy could sample.
        """
        await checkpoint()
        if isinstance(self._turn, EngineError):
            raise self._turn
        left = self._turn if new_ids else self._left
        ids, self._left = left[: sampling.max_tokens], left[sampling.max_tokens :]
        return Completion(ids, [0.0] * len(ids), self.version, "length" if self._left else "stop")


def _answering(answer: str, offered: Sequence[dict[str, Any]], ours: Collection[str]) -> ParsedCall:
    """Return the call that hands an answer in. Raises EngineError where no tool is made for that."""
    for tool in (one["function"] for one in offered):
        parameters = list((tool.get("parameters") or {}).get("properties", {}))
        if tool["name"] not in ours and len(parameters) == 1:
            return ParsedCall(tool["name"], {parameters[0]: answer})
    raise EngineError("The agent program insists on a call, but offers no tool of its own for an answer.")
