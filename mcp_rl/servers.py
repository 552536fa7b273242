"""The command `servers`: which tool servers there are, and where each comes from."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mcp_rl.plugins.manager import Plugins, load_plugins


def describe_servers(plugins: Plugins) -> list[dict[str, Any]]:
    """One JSON object for each server, sorted by name."""
    return [
        {
            "name": server.name,
            "description": server.description,
            "transports": list(server.transports),
            "isolation": server.isolation,
            "origin": server.origin,
        }
        for _, server in sorted(plugins.servers.items())
    ]


def print_servers(*, plugins: Sequence[Path] = (), as_json: bool = False) -> None:
    """List the servers on stdout, as a table or as JSON. Plugins that were left out have been logged."""
    loaded = load_plugins(plugins)
    rows = describe_servers(loaded)
    if as_json:
        print(json.dumps({"servers": rows, "problems": loaded.problems}))
    elif rows:
        _print_table(rows)
    else:
        print("No plugin offers a tool server. `--server` also takes a URL or a quoted command.")


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "transports", "origin", "description", box=None, pad_edge=False)
    for row in rows:
        table.add_row(row["name"], ", ".join(row["transports"]), row["origin"], row["description"])
    Console(soft_wrap=not sys.stdout.isatty()).print(table)
