"""Trajectories as a judge reads them: fenced, escaped, cut to a budget, under meaningless ids.

Everything in a trajectory, above all the results of tools, is untrusted data. It is rendered as JSON with `<`, `>`,
`&`, their lookalikes and all that is invisible as \\u escapes, so that no text can close its fence or open another one.
The names of the fences end with random numbers: a judge that reads the escapes as what they stand for finds no end of
a fence either, and no text can name its own trajectory or another one.
"""

from __future__ import annotations

import hashlib
import json
import re
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
_ESCAPED = re.compile(
    "[<>&\uff1c\uff1e\uff06\ufe64\ufe65\ufe60\u2039\u203a\u3008\u3009\u276e\u276f"
    "\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202f\u205f-\u206f"
    "\u3164\ud800-\udfff\ue000-\uf8ff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\uffff\U000e0000-\U0010ffff]"
)
"""Characters that could close a fence or look like it, end a line, or hide a text from people alone."""
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
    blocks = [fence("context", nonce(shown), _lines(shown[0].messages[:common], budget))] if common else []
    blocks += [fence("trajectory", exhibit.id, _lines(exhibit.messages[common:], budget)) for exhibit in shown]
    return "\n\n".join(blocks)


def fence(name: str, number: str, records: str) -> str:
    """Return escaped records in a fence of this name and number."""
    return f"<{name}-{number}>\n{records}\n</{name}-{number}>"


def nonce(shown: Sequence[Exhibit]) -> str:
    """Return the number of the fences that are no trajectory's; like the ids, it follows from all that is shown."""
    return hashlib.sha256(" ".join(exhibit.id for exhibit in shown).encode()).hexdigest()[:8]


def escaped(text: str) -> str:
    """Return JSON with escapes, so that it cannot open or close a fence."""
    return _ESCAPED.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


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
    said = [{key: part for key, part in m.items() if key != "reasoning_content"} for m in trajectory.messages]
    return [*said, *handed_in, *state, *end]


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
