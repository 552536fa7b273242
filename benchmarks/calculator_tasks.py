"""The calculator's scenarios as trainers that are not ours meet them: prompts, tools, rewards, success on val.

Everything that decides a result is what a run of ours has: the token ids of the prompts, the server's own functions,
the scenario's verifier, and held-out success measured with our engine, whose time counts for nobody. What could make a
difference in speed is in the contender's favour: its tools are called in its own process, with no server between.
"""

import functools
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from anyio.from_thread import start_blocking_portal
from torch import Tensor
from transformers import PreTrainedModel

from mcp_rl.backends.base_model import load_base
from mcp_rl.chat.hermes import ChatFormat
from mcp_rl.config import TINY, JudgeConfig, RolloutConfig
from mcp_rl.evaluate import evaluate
from mcp_rl.inference.local import LocalEngine
from mcp_rl.player import Player, limits_of
from mcp_rl.plugins.bundled import bundled_root
from mcp_rl.plugins.manager import load_plugins
from mcp_rl.rewards.scoring import Scoring
from mcp_rl.rewards.verifier import verify
from mcp_rl.scenario import McpScenario, read_scenarios
from mcp_rl.toolserver.pool import Sessions
from mcp_rl.trajectory import CallRecord, StopReason, Trajectory

SERVER = bundled_root() / "servers/python/mcp_calculator/server.py"
ROLLOUT = RolloutConfig()
"""The limits of an episode, for every contender."""


@functools.cache
def _server() -> Any:
    """The calculator's module, from its file."""
    sys.path.insert(0, str(SERVER.parent))
    try:
        spec = importlib.util.spec_from_file_location("mcp_calculator_server", SERVER)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(SERVER.parent))
    return module


@dataclass
class Calls:
    """The calculator in this process; remembers which of its texts were errors."""

    errors: set[str] = field(default_factory=set)

    def __call__(self, name: str, arguments: Mapping[str, Any]) -> str:
        module = _server()
        try:
            return str(module.compute(name, dict(arguments)))
        except module.arithmetic.CalculatorError as error:
            self.errors.add(str(error))
            return str(error)


def reward(scenario: McpScenario, messages: Sequence[Mapping[str, Any]], errors: set[str]) -> float:
    """What the scenario's verifier says of an episode: the messages that followed the request, tools' included."""
    said = [dict(message) for message in messages]
    calls = [
        CallRecord(turn=0, name=m["name"], tool=m["name"], result=m["content"], is_error=m["content"] in errors)
        for m in said
        if m["role"] == "tool"
    ]
    ended = said and said[-1]["role"] == "assistant" and not said[-1].get("tool_calls")
    trajectory = Trajectory(
        scenario_id=scenario.id,
        messages=said,
        calls=calls,
        stop_reason=StopReason.ANSWERED if ended else StopReason.MAX_TURNS,
    )
    verify(trajectory, scenario, load_plugins(()).verifiers)
    return trajectory.reward or 0.0


class Tasks:
    """The scenarios of a run's folder, and a way to measure success on the held-out ones. A context manager."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self.train, self.val = read_scenarios(folder / "train.jsonl"), read_scenarios(folder / "val.jsonl")
        self.seed = seed
        self.base, self.tokenizer = load_base(TINY)
        self.chat = ChatFormat(self.tokenizer)

    def __enter__(self) -> "Tasks":
        self._stack = AsyncExitStack()
        self._portal_context = start_blocking_portal()
        self._portal = self._portal_context.__enter__()
        self._portal.call(self._open)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal.call(self._stack.aclose)
        self._portal_context.__exit__(kind, error, trace)

    async def _open(self) -> None:
        engine_model, _ = load_base(TINY)
        self._engine = await self._stack.enter_async_context(
            LocalEngine(engine_model, stop_token_ids=self.chat.stop_token_ids)
        )
        sessions = await self._stack.enter_async_context(Sessions())
        self.tools: list[dict[str, Any]] = (await sessions.get(self.val[0].server_params)).schemas.openai
        self._player = Player(
            self._engine,
            self.chat,
            sessions,
            limits=limits_of(ROLLOUT),
            finish=Scoring(JudgeConfig(), load_plugins(()).verifiers).rollout,
        )

    def prompt(self, scenario: McpScenario) -> list[int]:
        """The token ids that our rollouts begin with."""
        return self.chat.initial([{"role": "user", "content": scenario.task_description}], self.tools)

    def success(self, weights: Mapping[str, Tensor], version: int) -> float:
        """Greedy success on val of the base with these weights, 0 to 1, as a run of ours measures it."""
        return self._portal.call(self._success, weights, version)

    async def _success(self, weights: Mapping[str, Tensor], version: int) -> float:
        await self._engine.load_policy(weights, version)
        result, _ = await evaluate(self._player, self.val, step=version, samples=0, seed=self.seed)
        return result.headline.success or 0.0


def fresh_base() -> PreTrainedModel:
    """The built-in model, to be trained."""
    return load_base(TINY)[0]
