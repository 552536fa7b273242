"""The time of a run's steps by activity, from the lines of history.jsonl."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_rl.system.activity import Activity

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

KINDS_OF_WORK = (*map(str, Activity), "overhead")
"""The kinds of work in a step's time: `<kind>_seconds` and `<kind>_time_share` in history.jsonl."""
_ONCE_MEASURED = {"sampling": "rollout_seconds", "updating": "update_seconds", "saving": "save_seconds"}
"""For lines of earlier versions, which lack the shares: the metric that means nearly the same."""


def times(train: Sequence[Mapping[str, Any]]) -> tuple[list[int], dict[str, list[float]]]:
    """Return the steps, and for each kind of work its share of each step's time. Kinds overlap."""
    lines = [line for line in train if line.get("step_seconds")]
    shares: dict[str, list[float]] = {}
    for kind in KINDS_OF_WORK:
        known, once = f"{kind}_time_share", _ONCE_MEASURED.get(kind, "")
        if any(known in line for line in lines):
            shares[kind] = [float(line.get(known) or 0.0) for line in lines]
        elif any(once in line for line in lines):
            shares[kind] = [float(line.get(once) or 0.0) / float(line["step_seconds"]) for line in lines]
    return [line["step"] for line in lines], shares
