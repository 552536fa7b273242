"""The output of `mcp-rl servers`: the known tool servers and their origin."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mcp_rl.cli.printing.terminal import add_row, page, table
from mcp_rl.plugins.manager import Plugins, load_plugins
from mcp_rl.toolserver.client_files.client_file import known_entries
from mcp_rl.toolserver.tool_server import ToolServer


def describe_servers(plugins: Plugins, server_config: Path | None = None) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a JSON object for each server of a plugin or a file of servers, sorted by name, and all problems.

    `isolation` is None if it is not declared: then the server's own listing decides.
    """
    servers: dict[str, ToolServer] = dict(plugins.servers)
    problems = list(plugins.problems)
    for name, entry in known_entries(server_config).items():
        if isinstance(entry, str):
            problems.append(entry)
        else:
            servers.setdefault(name, entry)
    rows = [
        {
            "name": name,
            "description": server.description,
            "transports": list(server.transports),
            "isolation": server.isolation,
            "origin": server.origin,
        }
        for name, server in sorted(servers.items())
    ]
    return rows, problems


def print_servers(*, plugins: Sequence[Path] = (), server_config: Path | None = None, as_json: bool = False) -> None:
    """List the servers on stdout, as a table or as JSON. Plugins that were left out have been logged."""
    loaded = load_plugins(plugins)
    rows, problems = describe_servers(loaded, server_config)
    if as_json:
        print(json.dumps({"servers": rows, "problems": problems}))
        return
    if not rows:
        print("No plugin offers a tool server. `--server` also takes a URL, a script or a quoted command.")
    with page() as console:
        if rows:
            shown = table("name", "transports", "isolation", "origin", "description")
            for row in rows:
                isolation = row["isolation"] or "undeclared"
                add_row(shown, row["name"], ", ".join(row["transports"]), isolation, row["origin"], row["description"])
            console.print(shown)
        for problem in problems[len(loaded.problems) :]:
            console.print(problem, markup=False, style="yellow")
