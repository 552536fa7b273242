"""Names of one kind, what plugins offer under them, and who does."""

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from mcp_rl.errors import PluginError
from mcp_rl.plugins.server import nearest

T = TypeVar("T")


class Registry(dict[str, T]):
    """By name. `taken` holds names that no plugin can have, each with who has it."""

    def __init__(self, what: str, taken: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.what = what
        self.origins = dict(taken or {})

    def add(self, name: str, value: T, origin: str) -> None:
        """Raises PluginError for what is no name and for a name that is taken."""
        if not isinstance(name, str) or not re.fullmatch(r"[\w.+-]{1,100}", name):
            raise PluginError(f"a {self.what}'s name is letters, digits, '-', '_', '+' and '.', not {name!r:.80}.")
        if name in self.origins:
            raise PluginError(f"the {self.what} {name!r} is already offered by {self.origins[name]}.")
        self[name], self.origins[name] = value, origin

    def drop(self, name: str) -> None:
        del self[name], self.origins[name]

    def pick(self, name: str, problems: Sequence[str] = ()) -> T:
        """What is offered under this name. Raises PluginError with the nearest right one, and with `problems`."""
        if name in self:
            return self[name]
        sentence = f"There is no {self.what} named {name!r}; {nearest(name, list(self))}"
        raise PluginError(" ".join([sentence, *problems]))


@dataclass(frozen=True)
class Offer:
    """A hook through which functions are offered by name."""

    hook: str
    registry: str
    """Attribute of Plugins."""
    what: str
    called_with: tuple[str, ...]
    """Arguments that the function gets; those after "*" by name."""

    def check(self, name: object, function: object) -> None:
        """Raises PluginError for what is no function that can be called like that."""
        if not callable(function):
            raise PluginError(
                f"register() takes the {self.what}'s name and a function, not {name!r:.80} and {function!r:.80}."
            )
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):  # some that are written in C have none
            return
        if not self._fits(signature):
            called = ", ".join(self.called_with)
            raise PluginError(f"the {self.what} {name!r} is called with ({called}), and takes {signature}.")

    def _fits(self, signature: inspect.Signature) -> bool:
        star = self.called_with.index("*") if "*" in self.called_with else len(self.called_with)
        named: dict[str, Any] = dict.fromkeys(self.called_with[star + 1 :])
        try:
            signature.bind(*self.called_with[:star], **named)
        except TypeError:
            return False
        return True


OFFERS = (
    Offer(
        "register_scenario_sources",
        "scenario_sources",
        "scenario source",
        ("sessions", "*", "server", "params", "recipe"),
    ),
    Offer("register_verifiers", "verifiers", "verifier", ("trajectory", "scenario")),
    Offer("register_rewards", "rewards", "reward", ("trajectory", "scenario")),
    Offer("register_backends", "backends", "backend", ("config",)),
    Offer("register_trackers", "trackers", "tracker", ("folder", "config")),
)
