"""The commands `servers inspect` and `servers check`. What they need is imported when they run."""

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcp_rl.plugins.server import ToolServer
    from mcp_rl.scenario import OneServer


def inspect_server(server: "ToolServer", *, transport: str | None = None, as_json: bool = False) -> None:
    """Print what a server lists. Raises ServerError where it cannot be used."""
    import anyio

    from mcp_rl.servers.inspection import inspect
    from mcp_rl.servers.inspection_words import print_inspection
    from mcp_rl.servers.terminal import page

    found = [anyio.run(inspect, one, params) for one, params in _each(server, transport)]
    if as_json:
        print(json.dumps(asdict(found[0]) if len(found) == 1 else {"servers": [asdict(one) for one in found]}))
        return
    with page() as console:
        for number, inspection in enumerate(found):
            if number:
                console.print()
            print_inspection(inspection, console)


def check_server(
    server: "ToolServer",
    *,
    transport: str | None = None,
    calls: int = 3,
    seed: int = 0,
    call_all: bool = False,
    as_json: bool = False,
) -> int:
    """Print what training on a server would trip over; returns 1 where it would, else 0.

    `calls` is how often each tool is called with sampled arguments. Raises ServerError where it cannot be used.
    """
    import anyio

    from mcp_rl.servers.check import Wanted, check
    from mcp_rl.servers.check_words import print_report
    from mcp_rl.servers.terminal import page

    wanted = Wanted(calls=calls, seed=seed, call_all=call_all)
    reports = [anyio.run(check, one, params, wanted) for one, params in _each(server, transport)]
    if as_json:
        objects = [report.as_json() for report in reports]
        print(json.dumps(objects[0] if len(objects) == 1 else {"servers": objects}))
    else:
        with page() as console:
            for number, report in enumerate(reports):
                if number:
                    console.print()
                print_report(report, console)
    return 1 if any(report.problems for report in reports) else 0


def _each(server: "ToolServer", transport: str | None) -> Iterator[tuple["ToolServer", "OneServer"]]:
    """Every server on its own, however many were named."""
    from mcp_rl.scenario import ServerGroup

    for one in server.members or (server,):
        params = one.params(transport)
        if not isinstance(params, ServerGroup):
            yield replace(one, members=()), params
