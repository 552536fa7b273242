"""The calculator's scenarios for other trainers than ours: prompts, tools, rewards, success on val.

Everything that decides a result is the same as in our run: the token ids of the prompts, the server's own functions,
the scenario's verifier, and held-out success measured with our engine, whose time is not counted. Differences in speed
favour the contender: its tools are called in its own process, without a server in between.
"""

import argparse
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

from mcp_rl.backends.base.base_model import load_base
from mcp_rl.config import TINY, JudgeConfig, RolloutConfig, TrainConfig
from mcp_rl.evaluation.evaluate import EvaluationPlan, evaluate
from mcp_rl.inference.chat.chat_format import ChatFormat
from mcp_rl.inference.local import LocalEngine
from mcp_rl.plugins.manager import load_plugins
from mcp_rl.rewards.scoring import Scoring
from mcp_rl.rewards.verifier import verify
from mcp_rl.rollouts.player import Player, limits_of
from mcp_rl.scenario import McpScenario, read_scenarios
from mcp_rl.toolserver.bundled import bundled_root
from mcp_rl.toolserver.pool import Sessions
from mcp_rl.trajectory import CallRecord, StopReason, Trajectory

SERVER = bundled_root() / "servers/python/mcp_calculator/server.py"
ROLLOUT = RolloutConfig()
"""The limits of an episode, for every contender."""


def contender_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of the options that all other trainers take."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=Path, required=True, help="folder with train.jsonl and val.jsonl")
    parser.add_argument("--steps", type=int, default=8, help="batches of episodes")
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, default=TrainConfig().learning_rate)
    parser.add_argument("--evaluate-every", type=int, default=0)
    parser.add_argument("--target", type=float, default=1.1)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--seed", type=int, default=0)
    return parser


@functools.cache
def _server() -> Any:
    """Load the calculator's module from its file."""
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
    """The calculator in this process; it records which of its answers are errors."""

    errors: set[str] = field(default_factory=set)

    def __call__(self, name: str, arguments: Mapping[str, Any]) -> str:
        module = _server()
        try:
            return str(module.compute(name, dict(arguments)))
        except module.arithmetic.CalculatorError as error:
            self.errors.add(str(error))
            return str(error)


def reward(scenario: McpScenario, messages: Sequence[Mapping[str, Any]], errors: set[str]) -> float:
    """Return the verifier's score of an episode, given the messages after the request, tool results included."""
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
    """The scenarios of a run's folder, and success on the held-out ones. A context manager."""

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
        """Return the token ids that our rollouts begin with."""
        return self.chat.initial([{"role": "user", "content": scenario.task_description}], self.tools)

    def success(self, weights: Mapping[str, Tensor], version: int) -> float:
        """Return the greedy success on val, 0 to 1, of the base with these weights, as our run measures it."""
        return self._portal.call(self._success, weights, version)

    async def _success(self, weights: Mapping[str, Tensor], version: int) -> float:
        await self._engine.load_policy(weights, version)
        result, _ = await evaluate(self._player, self.val, EvaluationPlan(samples=0, seed=self.seed), step=version)
        return result.headline.success or 0.0


def fresh_base() -> PreTrainedModel:
    """Return the built-in model, to be trained."""
    return load_base(TINY)[0]
