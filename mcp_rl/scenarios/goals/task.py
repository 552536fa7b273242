"""A proven goal task, before it becomes a scenario."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcp_rl.rewards.verifier import verify
from mcp_rl.scenario import McpScenario, StdioServer, ToolCall
from mcp_rl.trajectory import CallRecord, Trajectory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import JsonValue

    from mcp_rl.scenario import GoalProof, Level, Verifier
    from mcp_rl.scenarios.stage import Look

REFUSAL = "I cannot do this with the tools that I have."


@dataclass(frozen=True)
class GoalTask:
    """A request with a verifier, the calls of its shortest known solution, and the proof."""

    text: str
    level: Level
    calls: tuple[ToolCall, ...]
    answer: str
    verifier: Verifier
    proof: GoalProof
    tags: tuple[str, ...] = ()


def results_hash(texts: Sequence[str], *, as_written: bool = False) -> str:
    """Return a hash of the results of calls, in order.

    Lists of plain values in JSON count as sets unless the texts are taken `as_written`: a server that lists a set says
    it in another order in each process.
    """
    digest = hashlib.sha256()
    for text in texts if as_written else map(_unordered, texts):
        digest.update(f"{len(text)}:{text}".encode())
    return digest.hexdigest()[:16]


def _unordered(text: str) -> str:
    """Return a text; if it is JSON, with its lists of plain values sorted."""
    try:
        return json.dumps(_sorted(json.loads(text)), ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def _sorted(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {key: _sorted(inner) for key, inner in value.items()}
    if not isinstance(value, list):
        return value
    plain = all(inner is None or isinstance(inner, str | int | float) for inner in value)
    return sorted(value, key=repr) if plain else [_sorted(inner) for inner in value]


def longest(texts: Sequence[str]) -> int:
    """Return the characters of the longest text."""
    return max(map(len, texts), default=0)


def records_of(looks: Sequence[Look]) -> list[CallRecord]:
    """Convert looks at a final state to a verifier's form."""
    return [
        CallRecord(
            turn=0, name=look.tool, tool=look.tool, arguments=look.arguments, result=look.text, is_error=look.is_error
        )
        for look in looks
    ]


def accepted(
    verifier: Verifier,
    answer: str,
    calls: Sequence[ToolCall],
    final_state: Sequence[CallRecord] = (),
) -> bool:
    """Return whether a verifier accepts an episode with these calls and this last message."""
    scenario = McpScenario(task_description="x", server_params=_NO_SERVER, verifier=verifier)
    made = [
        CallRecord(turn=turn, name=call.tool, tool=call.tool, arguments=dict[str, Any](call.arguments))
        for turn, call in enumerate(calls)
    ]
    message = [{"role": "assistant", "content": answer}]
    played = Trajectory(scenario_id="x", messages=message, calls=made, final_state=list(final_state))
    verify(played, scenario)
    return bool(played.success)


def refutes(verifier: Verifier, index: int, look: Look) -> bool:
    """Return whether one look alone makes a verifier of a state refuse; `index` is that of the look it expects."""
    expected: list[JsonValue] = list(verifier.expected) if isinstance(verifier.expected, list) else []
    alone = verifier.model_copy(update={"expected": expected[index : index + 1]})
    return not accepted(alone, "Done.", (), records_of([look]))


_NO_SERVER = StdioServer(command="none")
