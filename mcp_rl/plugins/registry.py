"""Registries of the names that plugins offer, one for each kind, and the checks of what is registered."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from mcp_rl.errors import PluginError
from mcp_rl.toolserver.tool_server import nearest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

T = TypeVar("T")


class Registry(dict[str, T]):
    """Offers of one kind by name. `taken` maps names that are reserved to their owners."""

    def __init__(self, kind: str, taken: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.kind = kind
        self.origins = dict(taken or {})

    def add(self, name: str, value: T, origin: str) -> None:
        """Add an offer. Raises PluginError for an invalid or taken name."""
        if not isinstance(name, str) or not re.fullmatch(r"[\w.+-]{1,100}", name):
            raise PluginError(f"a {self.kind}'s name must be letters, digits, '-', '_', '+' and '.', not {name!r:.80}.")
        if name in self.origins:
            raise PluginError(f"the {self.kind} {name!r} is already offered by {self.origins[name]}.")
        self[name], self.origins[name] = value, origin

    def drop(self, name: str) -> None:
        del self[name], self.origins[name]

    def pick(self, name: str, problems: Sequence[str] = ()) -> T:
        """Return an offer by name. Raises PluginError with the nearest name and `problems` if there is none."""
        if name in self:
            return self[name]
        sentence = f"There is no {self.kind} named {name!r}; {nearest(name, list(self))}"
        raise PluginError(" ".join([sentence, *problems]))


@dataclass(frozen=True)
class Offer:
    """A hook that registers functions by name."""

    hook: str
    registry: str
    """The attribute of `Plugins`."""
    kind: str
    called_with: tuple[str, ...]
    """Arguments of the function; those after "*" are passed by name."""

    def check(self, name: object, function: object) -> None:
        """Raise PluginError if `function` cannot be called with these arguments."""
        if not callable(function):
            raise PluginError(
                f"register() takes the {self.kind}'s name and a function, not {name!r:.80} and {function!r:.80}."
            )
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):  # some functions written in C have no signature
            return
        if not self._fits(signature):
            called = ", ".join(self.called_with)
            raise PluginError(f"the {self.kind} {name!r} is called with ({called}), but takes {signature}.")

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
