"""`mcp-rl chat`: a conversation with a trained model that calls the tools of the live server.

Each question is played as a rollout plays a task. The speaker stays open for the next question, so the conversation
goes on token-exactly. A `ChatView` shows what happens and asks for the next question.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from mcp_rl.config import TINY, EngineConfig, PlacementConfig
from mcp_rl.errors import ConfigError
from mcp_rl.evaluation.models import ModelSpec, find_model
from mcp_rl.evaluation.run import with_model_limits
from mcp_rl.explore.known_server import known_server
from mcp_rl.inference.engine import Completion, Sampling
from mcp_rl.plugins.manager import load_plugins
from mcp_rl.plugins.resolve import resolve_servers
from mcp_rl.rollouts.player import limits_of
from mcp_rl.rollouts.rollout import derive_seed, play
from mcp_rl.rollouts.speaker import PolicySpeaker, SaidTurn
from mcp_rl.runs.settings import Origin, server_options
from mcp_rl.runs.trained_tools import Trained, turn_limit
from mcp_rl.scenario import SUBMIT_TOOL, McpScenario, Verifier
from mcp_rl.system.processes.leftovers import end_leftovers
from mcp_rl.toolserver.caller import calling_as
from mcp_rl.toolserver.connection.deadlines import Deadlines
from mcp_rl.trajectory import CallRecord, StopReason, Trajectory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from mcp_rl.config import RunConfig
    from mcp_rl.inference.chat.chat_format import ChatFormat
    from mcp_rl.inference.engine import Engine, Episode
    from mcp_rl.rollouts.speaker import Limits
    from mcp_rl.scenario import ServerParams
    from mcp_rl.toolserver.pool import Sessions
    from mcp_rl.toolserver.session import Session
    from mcp_rl.toolserver.tool_server import ToolServer

_SLICE = 4
"""Tokens sampled between two looks at a turn."""
_ENDS = (StopReason.FAULT, StopReason.TIMEOUT, StopReason.CONTEXT_FULL)
"""Reasons after which the conversation cannot go on."""


class ChatView(Protocol):
    """Shows a conversation and asks for its questions."""

    def note(self, sentence: str) -> None: ...

    def greet(self, job: ChatJob, session: Session) -> None:
        """Show what is talked to, once everything is open."""
        ...

    async def question(self) -> str | None:
        """Return the user's next question; None at the end."""
        ...

    def sampling(self, text: str) -> None:
        """Show a turn's text so far."""
        ...

    def said(self, turn: SaidTurn) -> None:
        """Show a whole turn: its text and its calls."""
        ...

    def results(self, calls: Sequence[CallRecord]) -> None:
        """Show the results of a turn's calls."""
        ...

    def ended(self, trajectory: Trajectory) -> None:
        """Show why an answer ended, where that is not the model's own end."""
        ...


@dataclass
class ChatJob:
    """A chat to hold, resolved and checked as far as possible without loading anything."""

    model: ModelSpec
    trained: Trained
    config: RunConfig
    server: ToolServer
    limits: Limits
    temperature: float
    seed: int
    folder: Path
    """Folder of the server's log."""
    remembers: bool = True
    """True if a question continues the conversation; False if each is an episode of its own, as in training."""
    talking: bool = False
    """True once the user can ask."""

    @property
    def system_prompt(self) -> str | None:
        """The system prompt of the training, else the server's."""
        kept = self.trained.tools
        return kept.system_prompt if kept else self.server.system_prompt


def prepare(
    name: str,
    options: dict[str, Any],
    *,
    project: Path,
    temperature: float = 0.0,
    seed: int = 0,
    remember: bool | None = None,
) -> ChatJob:
    """Resolve and check the words of the command; `options` are settings by dotted key.

    `remember` None: all models but the built-in one, which knows only conversations of one question. Raises UserError.
    """
    model = find_model(name, project / "models")
    if model.kind not in ("base", "checkpoint"):
        raise ConfigError(f"{name} has no weights to load: name a run, a folder or a base model.")
    trained = Trained.of(model)
    given = {key: value for key, value in options.items() if value is not None}
    if "server" not in given:
        given = {**_own_server(model, trained), **given}
    config = with_model_limits([model], None, (), given)
    server = resolve_servers(config.server, config.transport, plugins=load_plugins(config.plugins), tools=config.tools)
    limits = limits_of(config.rollout)
    if model.run is None:
        limits = replace(limits, max_turn_tokens=turn_limit(model, trained))
    remembers = TINY not in (model.name, trained.base_model) if remember is None else remember
    return ChatJob(model, trained, config, server, limits, temperature, seed, project / "chats", remembers)


def _own_server(model: ModelSpec, trained: Trained) -> dict[str, Any]:
    """Return the settings that name the server of the training. Raises ConfigError if it is not known."""
    if model.run is not None and model.identity is not None:
        if found := server_options(Origin.of(model.run.path)):
            return found
        raise ConfigError(
            f"{model.label} was trained on the server {trained.server}, whose command or URL the run does not record: "
            "add it with --server."
        )
    if trained.server:
        return {"server": tuple(trained.server.split("+"))}
    raise ConfigError(f"{model.label} tells of no server: add one, such as --server mcp_calculator.")


async def run_chat(job: ChatJob, view: ChatView) -> bool:
    """Talk until there is no further question; return whether nothing outside of the model failed.

    Raises UserError, ServerFault, EngineError.
    """
    from mcp_rl.backends.samplers.opened import opened_models  # imports torch

    config = job.config
    await anyio.to_thread.run_sync(end_leftovers, view.note)
    for sentence in job.model.unchecked:
        view.note(sentence)
    here = EngineConfig(kind="local")
    deadlines = Deadlines(call=config.rollout.tool_deadline)
    log_dir = job.folder / "logs"
    async with (
        known_server(job.server, config.transport, config.tools, deadlines=deadlines, log_dir=log_dir) as known,
        opened_models([job.model], here, PlacementConfig(), job.folder, view.note) as opened,
    ):
        [(engine, chat)] = opened.models
        session = await known.session()
        job.server, sessions = known.server, known.sessions
        params = job.server.params(config.transport)
        view.greet(job, _with_submission(job, session)[0])
        job.talking = True
        talk = partial(_converse, job, view, engine, chat, sessions, params)
        whole, number, question = True, 0, await view.question()
        while question is not None:
            fine, question = await talk(question, derive_seed("chat", job.seed, number))
            whole, number = whole and fine, number + 1
        return whole


async def _converse(
    job: ChatJob,
    view: ChatView,
    engine: Engine,
    chat: ChatFormat,
    sessions: Sessions,
    params: ServerParams,
    question: str | None,
    seed: int,
) -> tuple[bool, str | None]:
    """Hold one conversation from its first question on.

    Return whether nothing outside of the model failed, and the question that begins another conversation, if any.
    """
    stop = None
    with calling_as("chat"):
        async with sessions.lease(params) as lease, engine.episode(seed=seed) as episode:
            session, verifier = _with_submission(job, lease.session)
            speaker = WatchedSpeaker(episode, chat, session, job, view)
            prompt = job.system_prompt
            while question is not None and stop not in _ENDS:
                scenario = McpScenario(
                    task_description=question,
                    server_params=params,
                    max_turns=job.config.rollout.max_turns,
                    verifier=verifier,
                )
                trajectory = await play(
                    _Going(session, speaker, prompt),
                    scenario,
                    seed=seed,
                    temperature=job.temperature,
                    limits=job.limits,
                )
                view.ended(trajectory)
                stop, prompt = trajectory.stop_reason, None
                lease.spoilt = not stop.trainable
                question = await view.question()
                if not job.remembers:
                    break
    return stop is not StopReason.FAULT, question


def _with_submission(job: ChatJob, session: Session) -> tuple[Session, Verifier | None]:
    """Offer the tool that takes the answer, if the model was trained with it."""
    kept = job.trained.tools.tools if job.trained.tools else []
    if SUBMIT_TOOL not in [tool["function"]["name"] for tool in kept]:
        return session, None
    return session.offering(SUBMIT_TOOL), Verifier(kind="contains", options={"submit": True})


class WatchedSpeaker(PolicySpeaker):
    """A policy's side of a conversation of several questions, which a view watches."""

    def __init__(self, episode: Episode, chat: ChatFormat, session: Session, job: ChatJob, view: ChatView) -> None:
        whole = Trajectory(scenario_id="chat", seed=job.seed)
        super().__init__(episode, chat, session, whole, job.temperature, job.limits)
        self._view = view
        self._answering, self._shown = whole, 0

    def begin(self, trajectory: Trajectory) -> None:
        """Begin to answer another question, with the limits of a rollout."""
        self.sampled, self._answering, self._shown = 0, trajectory, 0

    async def turn(self, new: Sequence[dict[str, Any]]) -> SaidTurn:
        self.show_results()
        said = await super().turn(new)
        self._view.said(said)
        return said

    def show_results(self) -> None:
        """Show the results of calls that were not shown yet."""
        calls = self._answering.calls[self._shown :]
        self._shown += len(calls)
        if calls:
            self._view.results(calls)

    async def _sample(self, new_ids: Sequence[int], sampling: Sampling) -> Completion:
        """Sample in slices, which gives the same turn, and show each."""
        ids: list[int] = []
        logprobs: list[float] = []
        while True:
            wanted = min(_SLICE, sampling.max_tokens - len(ids))
            part = await self._episode.generate([] if ids else new_ids, replace(sampling, max_tokens=wanted))
            ids += part.token_ids
            logprobs += part.logprobs
            if part.finish == "stop" or len(part.token_ids) < wanted or len(ids) == sampling.max_tokens:
                return Completion(ids, logprobs, part.version, part.finish)
            self._view.sampling(self._chat.decode(ids))


@dataclass(frozen=True)
class _Going:
    """The setting of a question: the speaker of the conversation, and its tools."""

    session: Session
    current: WatchedSpeaker
    system_prompt: str | None

    @asynccontextmanager
    async def speaker(
        self, scenario: McpScenario, trajectory: Trajectory, temperature: float, limits: Limits
    ) -> AsyncIterator[WatchedSpeaker]:
        self.current.begin(trajectory)
        yield self.current
        self.current.show_results()
