"""Play an episode with a user's agent program: it asks us as it would ask any model, and prints its answer.

The program is a process of its own under the watchdog, so that nothing of it is left. It ends the episode by exiting:

 1. A limit ends it earlier, as in our own loop: TIMEOUT by the clock; MAX_TURNS, MAX_TOKENS or MAX_TOOL_CALLS at the
    request that goes beyond it.
 2. A failure of our engine or of a tool server is a fault, whatever the program makes of it.
 3. A program that never asked for a turn, was killed, or exits with 75 (EX_TEMPFAIL: "not the model's mistake") is a
    fault too.
 4. Any other exit code but 0 is the model's score: no answer, PROGRAM_FAILED. Programs fail at what models say.
 5. A newest turn that a limit cut off is no answer: MAX_TURN_TOKENS, MAX_TOKENS or CONTEXT_FULL.
 6. Otherwise ANSWERED: with the last line that it printed, or the newest turn's text if it printed none.
"""

from __future__ import annotations

import contextvars
import json
import os
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast

import anyio

from mcp_rl.errors import ContextOverflow, McpRlError, ServerFault
from mcp_rl.inference.chat.calls import ParsedCall, read_object
from mcp_rl.inference.openai_api.refusals import Refusal
from mcp_rl.inference.openai_api.served import ServedModel
from mcp_rl.rewards.program import PROGRAM
from mcp_rl.rollouts.agents.demonstrating import ScriptEngine
from mcp_rl.rollouts.agents.recording import RecordedTurn, RecordingEngine
from mcp_rl.rollouts.agents.reward import GivenReward
from mcp_rl.rollouts.episode import EpisodeInProgress
from mcp_rl.rollouts.speaker import cut_to_tokens
from mcp_rl.system.activity import Activity, during
from mcp_rl.system.processes.inherited import MARKER
from mcp_rl.system.processes.spawn import spawned
from mcp_rl.system.redaction import without_secrets
from mcp_rl.trajectory import CallRecord, StopReason

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from anyio.abc import ByteReceiveStream

    from mcp_rl.inference.chat.chat_format import ChatFormat
    from mcp_rl.inference.engine import Engine
    from mcp_rl.inference.openai_api.prompts import Prompts
    from mcp_rl.inference.openai_api.requests import ChatRequest
    from mcp_rl.inference.openai_api.sampling import SampledTurn
    from mcp_rl.rollouts.agents.command import AgentCommand
    from mcp_rl.rollouts.agents.demonstrating import Script
    from mcp_rl.rollouts.agents.endpoint import AgentEndpoint
    from mcp_rl.rollouts.episode import EpisodePlan
    from mcp_rl.system.processes.spawn import Child
    from mcp_rl.toolserver.session import Session

NOT_THE_MODELS = 75
"""Exit code EX_TEMPFAIL of sysexits.h: the program failed for a reason that is not the model's."""
LONGEST_TASK = 100_000
"""Bytes of a task; Linux allows 128 KiB for a variable with its name."""
_OTHER_KEYS = ("ANTHROPIC_AUTH_TOKEN", "OPENAI_ADMIN_KEY")
"""Secrets that the clients would send to our address beside the episode's key."""
_KEPT = 2**20
"""Bytes kept of the end of what a program prints."""


@dataclass(frozen=True)
class Agent:
    """The agent program of a run, and what its episodes share."""

    command: AgentCommand
    endpoint: AgentEndpoint
    engine: Engine
    prompts: Prompts
    logs: Path
    """Folder of the programs' stderr, in a file for each that runs at the same time."""
    name: str = "policy"
    """The model's name for programs."""
    rewards: bool = False
    """True if each program must give a reward."""
    script: Script | None = None
    """Returns the turns that are said in place of the policy."""
    _logging: set[int] = field(default_factory=set, init=False)

    @contextmanager
    def log(self) -> Iterator[Path]:
        """Give the log of one program, which no other writes meanwhile."""
        number = next(number for number in count(1) if number not in self._logging)
        self._logging.add(number)
        try:
            yield self.logs / f"agent-{number}.log"
        finally:
            self._logging.discard(number)


@dataclass(frozen=True)
class AgentSetting:
    """The program and the tools of one episode."""

    agent: Agent
    session: Session
    system_prompt: str | None = None


class AgentEpisode(EpisodeInProgress):
    """An episode that a program drives."""

    def __init__(self, plan: EpisodePlan) -> None:
        super().__init__(plan)
        self._agent: Agent = plan.setting.agent
        self._chat: ChatFormat = self._agent.prompts.chat
        self._script = self._scripted()
        self._engine = RecordingEngine(self._script or self._agent.engine, self._chat, self)
        self._scope = anyio.CancelScope()
        self._failure: McpRlError | None = None
        self._stopped: StopReason | None = None
        self._issued: dict[str, CallRecord] = {}
        """The calls that the model made, by the ids that the program was given for them."""
        self._reward = GivenReward()
        self._newest = ""
        """Text of the newest turn."""
        self._asked_for: set[str] = set()
        """Names of the tools that the program called at our address."""

    def _scripted(self) -> ScriptEngine | None:
        if self._agent.script is None:
            return None
        turns = self._agent.script(self.scenario, self.session)
        return ScriptEngine(self._agent.engine, self._chat, turns, set(self.session.schemas.to_openai.values()))

    @property
    def tools(self) -> Sequence[dict[str, Any]]:
        return self.session.schemas.openai

    async def _drive(self) -> StopReason:
        task = self.scenario.task_description
        if len(task.encode()) > LONGEST_TASK:
            raise ServerFault(
                f"The task has {len(task.encode())} bytes; an agent program takes {LONGEST_TASK} at most."
            )
        model = ServedModel(
            lambda: [self._agent.name],
            lambda: self._engine,
            lambda: self._chat,
            prompts_of=lambda _: self._agent.prompts.apart(),
            asked=None if self._script is None else self._script.ask,
            said=self._said,
        )
        async with AsyncExitStack() as stack:
            stack.callback(self._view)
            stack.push_async_callback(self._engine.aclose)
            variables = stack.enter_context(self._agent.endpoint.admit(model, self, self._reward.take))
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="mcp-rl-agent-", ignore_cleanup_errors=True)))
            variables |= {"MCP_RL_TASK": task, "MCP_RL_REWARD_FILE": str(folder / "reward")}
            with self._scope:
                async with anyio.create_task_group() as self._tasks:
                    self._context = contextvars.copy_context()
                    code, ending, printed = await self._run(_environment() | variables)
                    self._scope.cancel()
            if self._failure is not None:
                raise self._failure
            reason = self._stopped or self._ended(code, ending, printed)
            self._take_reward(folder / "reward", reason)
            return reason

    async def _run(self, environment: dict[str, str]) -> tuple[int, str, str | None]:
        """Run the program; return its exit code, how it ended, and the last line that it printed."""
        with self._agent.log() as log, during(Activity.TOOLS, "an agent program"):
            starting = spawned(
                self._agent.command.words, role="agent", run=None, log=log, environment=environment, pipes="out"
            )
            async with starting as child:
                assert child.process.stdout is not None
                printed = await _last_line(child.process.stdout)
                code = await child.wait()
                return code, _how_it_ended(child), printed

    def _ended(self, code: int, ending: str, printed: str | None) -> StopReason:
        """Return why the episode ended, by the rules above. Raises ServerFault."""
        if code and (not self.trajectory.turns or code < 0 or code == NOT_THE_MODELS):
            raise ServerFault(f"The agent program {ending}")
        if not self.trajectory.turns:
            raise ServerFault(
                "The agent program ended without asking the model; it must ask the address in OPENAI_BASE_URL with the "
                "key in OPENAI_API_KEY, which OpenAI's client does unless it is told otherwise."
            )
        if code:
            self._agent.endpoint.say_once("failed", f"An agent program {ending} It is scored as having no answer.")
            return StopReason.PROGRAM_FAILED
        if self._engine.cut_off is not None:
            return self._engine.cut_off
        if printed is not None and self._agent.command.is_function:
            printed = _returned(printed)
        if self.submit_tool is None:
            self.trajectory.submission = self._newest if printed is None else printed
        return StopReason.ANSWERED

    def _take_reward(self, file: Path, reason: StopReason) -> None:
        """Keep the reward that the program gave. Raises ServerFault for a wrong or a missing one."""
        reward = self._reward.of(file)
        if reward is not None:
            self.trajectory.metrics[PROGRAM] = reward
            if not self._agent.rewards:
                self._agent.endpoint.say_once(
                    "reward",
                    f"The agent program gives rewards, which do not count without reward.weights={{{PROGRAM}=1}}.",
                )
        elif self._agent.rewards and reason is StopReason.ANSWERED:
            raise ServerFault(
                "The agent program ended without a reward; it must write one into MCP_RL_REWARD_FILE or send it to "
                "OPENAI_BASE_URL/reward."
            )

    async def work(self, job: Callable[[], Awaitable[Any]]) -> Any:
        """Do a job of a request as part of the episode: under its clock, in its context, and ended with it.

        Raises ContextOverflow, which is the program's to handle, and Refusal once the episode is over.
        """
        done, scope = anyio.Event(), anyio.CancelScope()
        found: list[Any] = []

        async def run() -> None:
            try:
                with scope:
                    found.append(await job())
            except ContextOverflow as error:
                found.append(error)
            except McpRlError as error:
                self._failure = self._failure or error
                self._scope.cancel()
            finally:
                done.set()

        if self._scope.cancel_called:
            raise _over()
        self._context.run(self._tasks.start_soon, run)
        try:
            await done.wait()
        except BaseException:
            scope.cancel()
            raise
        if not found:
            raise _over()
        if isinstance(found[0], ContextOverflow):
            raise found[0]
        return found[0]

    def end(self, reason: StopReason) -> Refusal:
        self._stopped = self._stopped or reason
        self._scope.cancel()
        return _over()

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> CallRecord:
        """Call one of our tools for the program, with the rules of every rollout."""
        if len(self.trajectory.calls) >= self.limits.max_tool_calls:
            raise self.end(StopReason.MAX_TOOL_CALLS)
        record = self.check(ParsedCall(name, arguments))
        self._asked_for.add(name)
        self.trajectory.calls.append(record)
        if record.sent:
            await self.work(partial(self.call, partial(cut_to_tokens, self._chat), record))
        elif self.submit_tool is not None:
            self.record_submission([record])
        return record

    def _said(self, asked: ChatRequest, turn: SampledTurn, message: dict[str, Any]) -> None:
        """Take a finished turn: its conversation, its calls, and its thought, which no limit counts."""
        recorded = cast("RecordedTurn", turn.episode)
        assert recorded.conversation is not None
        self._newest = message["content"] or ""
        said = {name: value for name, value in message.items() if value is not None}
        recorded.conversation.asked, recorded.conversation.said = asked.messages, {**said, "content": self._newest}
        if thought := message.get("reasoning_content"):
            self._engine.sampled -= min(self._engine.thought, len(self._chat.encode(thought)), len(turn.ids))
        for call in message.get("tool_calls", ()):
            name, arguments = call["function"]["name"], read_object(call["function"]["arguments"])
            at = self.trajectory.turns - 1
            self._issued[call["id"]] = CallRecord(turn=at, name=name, tool=name, arguments=arguments)

    def _view(self) -> None:
        """Set what people and verifiers see: all conversations, and the calls of the program's own tools.

        A call that the program made itself is one of the model's that a tool message answers, by a name that it did not
        call at our address.
        """
        messages: list[dict[str, Any]] = []
        for conversation in self._engine.conversations:
            if conversation.said is not None:
                messages += [*(one.model_dump(exclude_none=True) for one in conversation.asked), conversation.said]
        if messages:
            self.trajectory.messages = messages
            self.trajectory.calls += list(self._own_calls())

    def _own_calls(self) -> Iterator[CallRecord]:
        for message in self.trajectory.messages:
            record = self._issued.pop(message.get("tool_call_id", ""), None)
            if record is not None and record.name not in self._asked_for:
                record.result, record.is_error = str(message["content"]), record.arguments is None
                yield record


def _environment() -> dict[str, str]:
    """Return our environment for a program, without our own marker; no proxy is asked for the way to us."""
    direct = ",".join(filter(None, [os.environ.get("NO_PROXY") or os.environ.get("no_proxy"), "127.0.0.1"]))
    ours = {name: value for name, value in os.environ.items() if name not in {*MARKER, *_OTHER_KEYS}}
    return ours | {"NO_PROXY": direct, "no_proxy": direct}


def _how_it_ended(child: Child) -> str:
    said = child.tail()
    return without_secrets(f"{child.ending}{f': {said}' if said else ''}.")


def _over() -> Refusal:
    return Refusal("The episode is over.", status=410, headers={"x-should-retry": "false"})


def _returned(line: str) -> str | None:
    """Return what a function returned, out of the line that its process printed. Raises ServerFault."""
    try:
        answer = json.loads(line)
    except ValueError:
        answer = 0
    if answer is None or isinstance(answer, str):
        return answer
    raise ServerFault(f"The agent function's process wrote {line[:100]!r} into the pipe that is for its answer alone.")


async def _last_line(output: ByteReceiveStream) -> str | None:
    """Read all that a program prints; return its last line with anything in it."""
    kept = bytearray()
    async for part in output:
        kept += part
        del kept[:-_KEPT]
    lines = [line.strip() for line in kept.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else None
