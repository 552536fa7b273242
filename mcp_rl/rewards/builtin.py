"""The verifiers and the reward that come with the package, offered through the same hook as everyone's."""

from collections.abc import Callable

from mcp_rl.plugins.hookspecs import hookimpl
from mcp_rl.rewards.answers import number, text
from mcp_rl.rewards.calls import calls
from mcp_rl.rewards.clean_calls import clean_calls
from mcp_rl.rewards.outcome import none, state
from mcp_rl.rewards.structured import json_answer, regex, set_answer
from mcp_rl.rewards.verdict import RewardFunction, VerifierFunction


@hookimpl
def register_verifiers(register: Callable[[str, VerifierFunction], None]) -> None:
    """The kinds that docs/rewards.md lists."""
    register("number", number)
    register("text", text)
    register("json", json_answer)
    register("set", set_answer)
    register("regex", regex)
    register("calls", calls)
    register("state", state)
    register("none", none)


@hookimpl
def register_rewards(register: Callable[[str, RewardFunction], None]) -> None:
    """The one that docs/rewards.md names; `verifier` and `ruler` are the run's own parts."""
    register("clean_calls", clean_calls)
