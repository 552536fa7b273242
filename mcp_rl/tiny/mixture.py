"""The mixture that the built-in model is pretrained on: arithmetic servers, and servers as strangers write them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from mcp_rl.tiny.corpus import conversation
from mcp_rl.tiny.errands import READ, strange_conversation
from mcp_rl.tiny.letters import in_strange_letters
from mcp_rl.tiny.strangers import strange_server
from mcp_rl.tiny.tools import random_toolset

if TYPE_CHECKING:
    import random

    from mcp_rl.tiny.corpus import TextPiece
    from mcp_rl.tiny.tools import RandomTool

STRANGERS = 0.55
"""Share of tool sets that are a stranger's server."""
STRANGE_LETTERS = 0.05
"""Share of conversations with letters and signs that English texts lack."""
ALSO_RECKON = 0.15
"""Share of strangers' servers that also have a tool or two for arithmetic."""


def toolset_and_conversations(
    rng: random.Random, count: int, strange_letters: float = STRANGE_LETTERS, read: float = READ
) -> tuple[list[RandomTool], list[list[TextPiece]]]:
    """Return a tool set and `count` separate conversations about it, a share of them with strange letters."""
    tools, conversations = _in_plain_letters(rng, count, read)
    listing = json.dumps([tool.schema for tool in tools], ensure_ascii=False)
    return tools, [
        in_strange_letters(rng, one, listing) if rng.random() < strange_letters else one for one in conversations
    ]


def _in_plain_letters(rng: random.Random, count: int, read: float) -> tuple[list[RandomTool], list[list[TextPiece]]]:
    if rng.random() < STRANGERS:
        server = strange_server(rng)
        tools = list(server.tools.values())
        if rng.random() > ALSO_RECKON:
            return tools, [strange_conversation(rng, server, read) for _ in range(count)]
        names = {tool.name for tool in tools}
        reckon = [tool for tool in random_toolset(rng) if tool.name not in names][: rng.choice((1, 2))]
        return rng.sample(tools + reckon, len(tools + reckon)), [
            conversation(rng, reckon) if rng.random() < 0.3 else strange_conversation(rng, server, read)
            for _ in range(count)
        ]
    tools = random_toolset(rng)
    return tools, [conversation(rng, tools) for _ in range(count)]
