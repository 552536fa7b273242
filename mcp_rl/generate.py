"""`mcp-rl generate`: scenarios for a server, written to a file, or a file of scenarios checked against the server."""

from pathlib import Path

from mcp_rl.durable import write_atomically
from mcp_rl.errors import ScenarioError
from mcp_rl.plugins.server import ToolServer
from mcp_rl.scenario import McpScenario, read_scenarios, scenario_lines
from mcp_rl.scenarios.check import Finding, check
from mcp_rl.scenarios.explore import explore
from mcp_rl.toolserver.connection import connect
from mcp_rl.toolserver.schema import ToolSchemas


async def generate(server: ToolServer, *, transport: str | None = None, count: int, seed: int) -> list[McpScenario]:
    """Start the server, explore it and stop it again: at most `count` scenarios.

    Raises ServerError where it cannot be used, ScenarioError where nothing can be made of it.
    """
    params = server.params(transport)
    async with connect(params, name=server.name) as connection:
        schemas = ToolSchemas(connection.tools)
        return await explore(connection, schemas, server=server, params=params, count=count, seed=seed)


async def generate_file(
    server: ToolServer, out: Path, *, transport: str | None = None, count: int, seed: int
) -> list[McpScenario]:
    """Generate and write as JSON Lines, whole or not at all. Raises ScenarioError where the file cannot be written."""
    if not out.parent.is_dir():
        raise ScenarioError(f"Cannot write {out}: there is no folder {out.parent}.")
    scenarios = await generate(server, transport=transport, count=count, seed=seed)
    try:
        write_atomically(out, scenario_lines(scenarios).encode())
    except OSError as error:
        raise ScenarioError(f"Cannot write {out}: {error.strerror}.") from error
    return scenarios


async def check_file(server: ToolServer, file: Path, *, transport: str | None = None) -> list[Finding]:
    """Execute the reference solutions of a scenarios file again; what no longer holds."""
    scenarios = read_scenarios(file)
    async with connect(server.params(transport), name=server.name) as connection:
        return await check(connection, ToolSchemas(connection.tools), scenarios)
