"""The built-in model's chat format, and a session with the real calculator."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from transformers import AutoTokenizer

from mcp_rl.inference.chat.chat_format import ChatFormat
from mcp_rl.scenario import StdioServer
from mcp_rl.tiny import weights_path
from mcp_rl.toolserver.pool import Sessions
from mcp_rl.toolserver.session import Session

CALCULATOR = StdioServer(
    command="{python}", args=("{bundled}/servers/python/mcp_calculator/server.py", "--transport", "stdio")
)


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    return ChatFormat(AutoTokenizer.from_pretrained(weights_path()))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def calculator() -> AsyncIterator[Session]:
    async with Sessions() as sessions:
        yield await sessions.get(CALCULATOR)
