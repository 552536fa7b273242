"""The verifiers that come with the package, offered through the same hook as everyone's."""

from collections.abc import Callable

from mcp_rl.plugins.hookspecs import hookimpl
from mcp_rl.rewards.answers import number, text
from mcp_rl.rewards.calls import calls
from mcp_rl.rewards.verdict import VerifierFunction


@hookimpl
def register_verifiers(register: Callable[[str, VerifierFunction], None]) -> None:
    """Kinds "number", "text" and "calls"."""
    register("number", number)
    register("text", text)
    register("calls", calls)
