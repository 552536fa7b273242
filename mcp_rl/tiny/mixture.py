"""The mixture that the built-in model is pretrained on: arithmetic servers, and servers as strangers write them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_rl.tiny.corpus import conversation
from mcp_rl.tiny.errands import strange_conversation
from mcp_rl.tiny.strangers import strange_server
from mcp_rl.tiny.tools import random_toolset

if TYPE_CHECKING:
    import random

    from mcp_rl.tiny.corpus import TextPiece
    from mcp_rl.tiny.tools import RandomTool

STRANGERS = 0.55
"""Share of tool sets that are a stranger's server."""


def toolset_and_conversations(rng: random.Random, count: int) -> tuple[list[RandomTool], list[list[TextPiece]]]:
    """Return a tool set and `count` separate conversations about it."""
    if rng.random() < STRANGERS:
        server = strange_server(rng)
        return list(server.tools.values()), [strange_conversation(rng, server) for _ in range(count)]
    tools = random_toolset(rng)
    return tools, [conversation(rng, tools) for _ in range(count)]
