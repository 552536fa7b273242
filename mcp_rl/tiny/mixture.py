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
ALSO_RECKON = 0.15
"""Share of strangers' servers that also have a tool or two for arithmetic."""


def toolset_and_conversations(rng: random.Random, count: int) -> tuple[list[RandomTool], list[list[TextPiece]]]:
    """Return a tool set and `count` separate conversations about it."""
    if rng.random() < STRANGERS:
        server = strange_server(rng)
        tools = list(server.tools.values())
        if rng.random() > ALSO_RECKON:
            return tools, [strange_conversation(rng, server) for _ in range(count)]
        names = {tool.name for tool in tools}
        reckon = [tool for tool in random_toolset(rng) if tool.name not in names][: rng.choice((1, 2))]
        return rng.sample(tools + reckon, len(tools + reckon)), [
            conversation(rng, reckon) if rng.random() < 0.3 else strange_conversation(rng, server) for _ in range(count)
        ]
    tools = random_toolset(rng)
    return tools, [conversation(rng, tools) for _ in range(count)]
