"""A served model: an engine, and the chat format that its policy speaks."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from mcp_rl.inference.openai_api.prompts import Prompts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from mcp_rl.inference.chat.chat_format import ChatFormat
    from mcp_rl.inference.engine import Engine
    from mcp_rl.inference.openai_api.requests import ChatRequest
    from mcp_rl.inference.openai_api.sampling import SampledTurn


@dataclass(eq=False)
class ServedModel:
    """A model under its names. Its parts are looked up for each request, since a policy in training changes."""

    names: Callable[[], Sequence[str]]
    """Returns its names: first its own, then those with the current step."""
    engine: Callable[[], Engine]
    chat: Callable[[], ChatFormat]
    base: str | None = None
    """Name of the base model."""
    created: int = field(default=0)
    """Unix time."""
    max_tokens: int | None = None
    """Most tokens of a chat's turn where a request sets no limit; None for as many as the context holds."""
    prompts_of: Callable[[ChatFormat], Prompts] = Prompts
    """Makes what renders its conversations."""
    asked: Callable[[ChatRequest, Sequence[int]], None] | None = None
    """Takes each request for a chat's turn before it is sampled, and the ids that the turn is forced to begin with."""
    said: Callable[[ChatRequest, SampledTurn, dict[str, Any]], None] | None = None
    """Takes each finished turn of a chat, as a message; None: nothing listens."""

    @cached_property
    def prompts(self) -> Prompts:
        return self.prompts_of(self.chat())


def fixed_model(
    names: Sequence[str],
    engine: Engine,
    chat: ChatFormat,
    base: str | None = None,
    created: int = 0,
    max_tokens: int | None = None,
) -> ServedModel:
    """Return a model whose parts never change."""
    return ServedModel(lambda: names, lambda: engine, lambda: chat, base, created, max_tokens)
