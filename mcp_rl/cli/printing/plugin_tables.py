"""The output of `mcp-rl plugins`: the loaded plugins, what they offer, and those that were left out, with reasons."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mcp_rl.plugins.find import CHOICE
from mcp_rl.plugins.manager import Loaded, Plugins, load_plugins

_NEVER_WRAPPED = 100_000
"""Width of a table that a program reads."""


def describe_plugins(plugins: Plugins) -> dict[str, Any]:
    """Return the plugins as JSON: `plugins` in the order of loading, and `failed`."""
    return {
        "plugins": [asdict(loaded) for loaded in plugins.loaded],
        "failed": [asdict(failure) for failure in plugins.failed],
    }


def print_plugins(*, files: Sequence[Path] = (), as_json: bool = False) -> int:
    """List the plugins on stdout, as a table or as JSON. Returns the exit code: 1 if one was left out."""
    plugins = load_plugins(files, demand=False)
    if as_json:
        print(json.dumps(describe_plugins(plugins)))
    else:
        _print_table(plugins)
    return 1 if plugins.failed else 0


def _print_table(plugins: Plugins) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else _NEVER_WRAPPED)
    table = Table("plugin", "version", "origin", "offers", box=None, pad_edge=False)
    for loaded in plugins.loaded:
        table.add_row(*map(escape, (loaded.name, loaded.version, loaded.origin, _offers(loaded))))
    console.print(table)
    for problem in plugins.problems:
        console.print(problem, style="red", markup=False, highlight=False)
    if (choice := os.environ.get(CHOICE)) is not None:
        said = f"{CHOICE}={choice} selects the plugins that are loaded besides the built-in ones."
        console.print(said, markup=False, highlight=False)


def _offers(loaded: Loaded) -> str:
    """Return everything that a plugin offers: names by kind, and the hooks that it observes."""
    kinds = [f"{_plural(what, names)} {', '.join(names)}" for what, names in loaded.offers.items()]
    observed = [hook for hook in loaded.hooks if not hook.startswith("register_")]
    if observed:
        kinds.append(f"observes {', '.join(observed)}")
    return "; ".join(kinds) or "nothing"


def _plural(what: str, names: Sequence[str]) -> str:
    return what if len(names) == 1 else f"{what}s"
