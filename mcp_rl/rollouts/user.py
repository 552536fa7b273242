"""The user of an episode, who answers when the model sends a message without a tool call.

A scenario's `user_turns` are said one after another. Its `user` is simulated: by a language model that is told what the
user wants and knows, by a function, or else by rules that answer questions about what the user knows. It also fills in
the forms of servers that ask their user for input.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Protocol

from anyio.lowlevel import checkpoint

from mcp_rl.rollouts.user_forms import told_by_facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_rl.scenario import McpScenario, SimulatedUser
    from mcp_rl.toolserver.elicitation import FillIn, Form, Question
    from mcp_rl.trajectory import Trajectory

USER_TURNS = "user_turns"
"""Metric of a trajectory: the number of times that its user answered."""
_QUESTION = re.compile(r"[^.!?\n]*\?")
_WORD = re.compile(r"\w+")
_UNKNOWN = "I don't know that."


class EpisodeUser(Protocol):
    """A simulated user in one episode. Its methods raise EngineError where the user could not be asked."""

    async def reply(self, messages: Sequence[dict[str, Any]]) -> str | None:
        """Return the user's next message after the model's newest one; None if the user has nothing more to say."""
        ...

    async def fill_in(self, question: Question, messages: Sequence[dict[str, Any]]) -> Form | None:
        """Return the values of a server's form, for which it asks during a call; None declines."""
        ...


class PlaysUsers(Protocol):
    """A language model or a function that plays simulated users."""

    def user(self, user: SimulatedUser, trajectory: Trajectory) -> EpisodeUser:
        """Return the user of one episode."""
        ...


class ScriptedUser:
    """Says its turns one after another, whatever the model says."""

    def __init__(self, turns: Sequence[str]) -> None:
        self._left = list(turns)

    async def reply(self, messages: Sequence[dict[str, Any]]) -> str | None:
        await checkpoint()
        return self._left.pop(0) if self._left else None


class KnowingUser(EpisodeUser):
    """Answers questions about what it knows, by rules: it has nothing to say to a message without a question mark.

    A question is about a fact if it holds all words of the fact's name. A second question in a row about nothing that
    it knows ends the conversation.
    """

    def __init__(self, knows: dict[str, str]) -> None:
        self._knows = {name: {word.casefold() for word in _WORD.findall(name)} for name in knows}
        self._values = dict(knows)
        self._lost = False

    async def reply(self, messages: Sequence[dict[str, Any]]) -> str | None:
        await checkpoint()
        questions = _QUESTION.findall(str(messages[-1].get("content") or ""))
        if not questions:
            return None
        asked = {word.casefold() for question in questions for word in _WORD.findall(question)}
        told = [f"The {name} is {self._values[name]}." for name, words in self._knows.items() if words <= asked]
        if not told and self._lost:
            return None
        self._lost = not told
        return " ".join(told) or _UNKNOWN

    async def fill_in(self, question: Question, messages: Sequence[dict[str, Any]]) -> Form | None:
        await checkpoint()
        return told_by_facts(self._values, question)


class TalkingUser:
    """The user of one episode: the scripted turns, then the simulated user, up to its limit of answers."""

    def __init__(self, scenario: McpScenario, trajectory: Trajectory, model: PlaysUsers | None) -> None:
        self._trajectory = trajectory
        self._scripted = ScriptedUser(scenario.user_turns)
        self._simulated: EpisodeUser | None = None
        self._left = 0
        if (user := scenario.user) is not None:
            self._left = user.max_turns
            self._simulated = KnowingUser(user.knows) if model is None else model.user(user, trajectory)

    async def reply(self, messages: Sequence[dict[str, Any]]) -> str | None:
        """Return the user's next message; None if there is none. Raises EngineError where it could not be asked."""
        text = await self._scripted.reply(messages)
        if text is None and self._simulated is not None and self._left:
            self._left -= 1
            text = await self._simulated.reply(messages)
        if text is not None:
            self._count()
        return text

    @property
    def forms(self) -> FillIn | None:
        """Answers servers that ask their user for input; None without a simulated user."""
        return None if self._simulated is None else self._fill_in

    async def _fill_in(self, question: Question) -> Form | None:
        if self._simulated is None or not self._left:
            return None
        self._left -= 1
        self._count()
        return await self._simulated.fill_in(question, self._trajectory.messages)

    def _count(self) -> None:
        metrics = self._trajectory.metrics
        metrics[USER_TURNS] = metrics.get(USER_TURNS, 0.0) + 1


def user_of(scenario: McpScenario, trajectory: Trajectory, model: PlaysUsers | None) -> TalkingUser | None:
    """Return the user of a scenario's episode; None if it has none. `model` plays simulated users; None: by rules."""
    return TalkingUser(scenario, trajectory, model) if scenario.has_user else None
