"""Trajectories as a judge reads them: fenced, escaped, cut to a budget, under meaningless ids.

Everything in a trajectory, above all the results of tools, is untrusted data. It is rendered as JSON with `<`, `>` and
`&` as \\u escapes, so that no text can close its fence or open another one; and the ids of the fences are random, so
that no text can name its own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcp_rl.rewards.json_values import leaves

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from mcp_rl.trajectory import Trajectory

CHARACTERS_PER_TOKEN = 3
"""A low estimate: JSON and digits take more tokens than prose, and a budget must hold for any judge."""
_SHORTEST = 80
_ESCAPES = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"} | {
    code: f"\\u{code:04x}"
    for code in (0x7F, 0x85, *range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2060, 0x2070), 0xFEFF)
}
"""Characters that could close a fence, end a line, or disguise a text to a model or a person."""
Message = dict[str, Any]


@dataclass(frozen=True)
class Same:
    """Trajectories with identical messages and calls."""

    key: str
    messages: list[Message]
    trajectories: list[Trajectory]


@dataclass(frozen=True)
class Exhibit:
    """A distinct trajectory in a prompt, which stands for all identical ones."""

    id: str
    messages: list[Message]
    index: int
    """Position among the distinct trajectories before shuffling."""


def distinct(trajectories: Sequence[Trajectory]) -> list[Same]:
    """Group identical trajectories, in order of first occurrence."""
    found: dict[str, Same] = {}
    for trajectory in trajectories:
        record = _record(trajectory)
        key = json.dumps(record, sort_keys=True, default=str)
        found.setdefault(key, Same(key, record, [])).trajectories.append(trajectory)
    return list(found.values())


def exhibits(different: Sequence[Same], shuffle: random.Random) -> list[Exhibit]:
    """Return distinct trajectories in random order under random ids."""
    ids: dict[str, None] = {}
    while len(ids) < len(different):
        ids[f"{shuffle.getrandbits(32):08x}"] = None
    order = shuffle.sample(range(len(different)), len(different))
    return [Exhibit(id, different[index].messages, index) for id, index in zip(ids, order, strict=True)]


def render(shown: Sequence[Exhibit], token_budget: int) -> str:
    """Render all exhibits in fences, their common beginning first, in at most about `token_budget` tokens."""
    common = _common_prefix([exhibit.messages for exhibit in shown]) if len(shown) > 1 else 0
    budget = token_budget * CHARACTERS_PER_TOKEN // (len(shown) + 1)
    blocks = [f"<context>\n{_lines(shown[0].messages[:common], budget)}\n</context>"] if common else []
    blocks += [
        f'<trajectory id="{exhibit.id}">\n{_lines(exhibit.messages[common:], budget)}\n</trajectory>'
        for exhibit in shown
    ]
    return "\n\n".join(blocks)


def escaped(text: str) -> str:
    """Return the text escaped, so that it cannot open or close a fence."""
    return text.translate(_ESCAPES)


def without_middle(text: str, most: int) -> str:
    """Return the beginning and the end of a text, with a mark for the number of characters cut between them."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} [… {len(text) - 2 * half} characters cut …] {text[len(text) - half :]}"


def _record(trajectory: Trajectory) -> list[Message]:
    """Return the messages, the submission, the final state, and the stop reason if there is no final answer."""
    ending = trajectory.stop_reason
    end: list[Message] = (
        [] if trajectory.final_answer is not None else [{"role": "note", "content": f"ended: {ending}"}]
    )
    handed_in: list[Message] = (
        [] if trajectory.submission is None else [{"role": "note", "content": f"handed in: {trajectory.submission}"}]
    )
    state = [
        {"role": "note", "content": f"afterwards, {read.tool} with {json.dumps(read.arguments)} gives: {read.result}"}
        for read in trajectory.final_state
    ]
    return [*trajectory.messages, *handed_in, *state, *end]


def _lines(messages: Sequence[Message], budget: int) -> str:
    """Render one JSON line for each message; cut long texts first, then messages from the middle."""
    texts = [leaf for message in messages for leaf in leaves(message) if isinstance(leaf, str)]
    most = max([_SHORTEST, *map(len, texts)])
    lines = _rendered(messages, most)
    while most > _SHORTEST and _size(lines) > budget:
        most = max(_SHORTEST, most // 2)
        lines = _rendered(messages, most)
    cut = 0
    while len(lines) > 2 and _size(lines) > budget:
        del lines[len(lines) // 2]
        cut += 1
    if cut:
        lines.insert((len(lines) + 1) // 2, f"[… {cut} messages cut …]")
    return "\n".join(lines)


def _rendered(messages: Sequence[Message], most: int) -> list[str]:
    return [escaped(json.dumps(_cut(message, most), ensure_ascii=False, default=str)) for message in messages]


def _size(lines: list[str]) -> int:
    return sum(map(len, lines)) + len(lines)


def _cut(value: Any, most: int) -> Any:
    if isinstance(value, dict):
        return {key: _cut(inner, most) for key, inner in value.items()}
    if isinstance(value, list):
        return [_cut(inner, most) for inner in value]
    return without_middle(value, most) if isinstance(value, str) else value


def _common_prefix(records: Sequence[list[Message]]) -> int:
    shortest = min(map(len, records))
    return next((i for i in range(shortest) if any(r[i] != records[0][i] for r in records)), shortest)
