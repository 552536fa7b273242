"""The packages that a run's servers came from: kept in model.json, and compared when the run continues."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from mcp_rl.toolserver.launchers.direct import packages
from mcp_rl.toolserver.launchers.package import Package

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp_rl.scenario import ServerParams

PACKAGES = "packages"
"""Key of model.json."""
_MOST_NAMED = 3


def kept_packages(params: ServerParams, server: str) -> dict[str, dict[str, str]]:
    """Return the packages that the servers were started from, for model.json: server to fields of `Package`."""
    return {name: asdict(package) for name, package in packages(params, name=server).items()}


def package_changes(about: Mapping[str, Any], params: ServerParams, server: str) -> list[str]:
    """Return a sentence for each server that comes from another package than when the run began.

    `about` is the content of the run's model.json.
    """
    before = about.get(PACKAGES)
    if not isinstance(before, dict):
        return []
    now = packages(params, name=server)
    return [
        sentence
        for name, kept in before.items()
        if name in now and isinstance(kept, dict) and (sentence := _change(name, Package.from_fields(kept), now[name]))
    ]


def _change(server: str, was: Package, now: Package) -> str:
    if was.label != now.label:
        return (
            f"The server {server} is {now.label} now and was {was.label} when the run began; name {was.pinned} in its "
            "command to go on with that one."
        )
    if was.integrity != now.integrity:
        return f"The server {server} is {now.label} as when the run began, but its hash is another: {now.integrity}."
    if was.dependencies != now.dependencies:
        return (
            f"The server {server} is {now.label} as when the run began, with other versions of what it depends on"
            f"{_differences(was.installed, now.installed)}."
        )
    return ""


def _differences(was: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Return the packages that differ, to end a sentence; empty if they are not known."""
    if not was or not now:
        return ""
    other = [name for name in sorted({*was, *now}) if was.get(name) != now.get(name)]
    said = [f"{name} {was.get(name, 'none')} → {now.get(name, 'none')}" for name in other[:_MOST_NAMED]]
    more = f" and {len(other) - _MOST_NAMED} more" if len(other) > _MOST_NAMED else ""
    return f": {', '.join(said)}{more}" if said else ""
