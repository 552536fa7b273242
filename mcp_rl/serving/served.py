"""What is served under a name: an engine, and the chat format that its policy speaks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from mcp_rl.chat.hermes import ChatFormat
from mcp_rl.inference.engine import Engine
from mcp_rl.serving.prompts import Prompts


@dataclass(eq=False)
class Served:
    """One model. What it is made of is asked for with each request, since a policy that is trained moves on."""

    names: Callable[[], Sequence[str]]
    """What it may be called; the first is its own name, others say which step it is at."""
    engine: Callable[[], Engine]
    chat: Callable[[], ChatFormat]
    base: str | None = None
    """The base model."""
    created: int = field(default=0)
    """Unix time."""

    @cached_property
    def prompts(self) -> Prompts:
        return Prompts(self.chat())


def fixed(names: Sequence[str], engine: Engine, chat: ChatFormat, base: str | None = None, created: int = 0) -> Served:
    """A model that stays what it is."""
    return Served(lambda: names, lambda: engine, lambda: chat, base, created)
