"""The MCP Inspector, installed once, and running bundled servers for it."""

import json
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
import pytest_asyncio

from mcp_rl.plugins.manager import load_plugins
from tests.inspector.npm_packages import installed, node_version
from tests.plugins.serving import served

VERSION = "2.12.0"
"""The newest version when these tests were written; `@latest` in the documentation is at least this."""
ROOT = Path(__file__).parents[2]
SERVERS = ("mcp_calculator", "mcp_notes")


class Inspector:
    """Runs the Inspector in the project's folder, as a user would."""

    def __init__(self, program: Path, home: Path) -> None:
        self.command = ["node", str(program)]
        self.environment = {
            **os.environ,
            "HOME": str(home),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "MCP_AUTO_OPEN_ENABLED": "false",
            "MCP_INSPECTOR_SECRET_STORE": "memory",
        }

    async def ask(self, *arguments: str | Path) -> Any:
        """Return its output as JSON; assert that it succeeds."""
        run = await self.run(*arguments)
        assert run.returncode == 0, run.stderr.decode()
        return json.loads(run.stdout)

    async def run(self, *arguments: str | Path) -> Any:
        command = [*self.command, "--cli", *map(str, arguments)]
        return await anyio.run_process(command, env=self.environment, cwd=ROOT, check=False)


@pytest.fixture(scope="session")
def inspector(tmp_path_factory: pytest.TempPathFactory) -> Inspector:
    if node_version(shutil.which("node") or "node") < (20,):
        pytest.skip("needs Node.js 20 or newer")
    modules = installed(f"@modelcontextprotocol/inspector@{VERSION}")
    return Inspector(modules / ".bin" / "mcp-inspector", tmp_path_factory.mktemp("home"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def addresses(inspector: Inspector) -> AsyncIterator[dict[tuple[str, str], str]]:
    """(server, transport) to the URL of a running server."""
    plugins = load_plugins()
    async with AsyncExitStack() as stack:
        found = {}
        for server in SERVERS:
            for transport in ("sse", "streamable-http"):
                _, url = await stack.enter_async_context(served(plugins.server(server), transport))
                found[server, transport] = url
        yield found
