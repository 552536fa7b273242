"""Select the episodes that go into the page, and pack them as JSON.

Each source gets an equal part of the remaining room, so a page has some episodes of every moment of a run. Evaluations
put the same scenarios first, alternating those on which they differ and those on which they agree, so that an episode
can be compared with its counterpart. Of training, groups whose rewards differ come first: the others teach nothing.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any

from mcp_rl.evaluation.page.failures import Attempt
from mcp_rl.evaluation.page.tokens import Spelling, sampled_turns, texts
from mcp_rl.learning.advantage import advantages

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mcp_rl.evaluation.evaluate import EvaluationResult
    from mcp_rl.evaluation.page.findings import EpisodeSource, Findings
    from mcp_rl.scenario import McpScenario
    from mcp_rl.trajectory import CallRecord, Trajectory, TrajectoryGroup

_TEXT_LIMIT = 12_000
"""Characters of one text, since a tool that returns a book would leave room for nothing else."""

Json = dict[str, Any]


@dataclass
class Selection:
    """The selected episodes, with counts."""

    json: str
    """The page's data."""
    shown: int
    """Episodes in the page."""
    total: int
    """Episodes that were played."""
    by_source: list[tuple[str, int, int]] = field(default_factory=list)
    """For each source: label, episodes shown, episodes in the file."""
    attempts: list[Attempt] = field(default_factory=list)
    """The episodes with a verdict of the newest evaluated model: the greedy ones, if there are any."""


def select(findings: Findings, room: int) -> Selection:
    """Select episodes of all sources, about `room` bytes of JSON together, and at least one group of each source."""
    order = scenario_order([model.result for model in findings.measured.models])
    scenarios: dict[str, str] = {}
    vocabulary: dict[str, int] = {}
    groups: list[str] = []
    by_source: list[tuple[str, int, int]] = []
    attempts: list[Attempt] = []
    newest = newest_source(findings)
    for number, source in enumerate(findings.sources):
        share, shown, full = room // (len(findings.sources) - number), 0, False
        before = sum(count for _, count, _ in by_source)
        for group in _ordered(source, order):
            if full:
                attempts += _attempts(group, source, None)
                continue
            packed = dumps(_group(group, source, number, vocabulary))
            scenario = scenarios.get(group.scenario.id) or dumps(_scenario(group.scenario))
            size = len(packed) + (0 if group.scenario.id in scenarios else len(scenario))
            if shown and size > share:
                if source is not newest:
                    break
                attempts += _attempts(group, source, None)
                full = True
                continue
            if source is newest:
                attempts += _attempts(group, source, before + shown)
            share, room = share - size, room - size
            scenarios[group.scenario.id] = scenario
            groups.append(packed)
            shown += len(group)
        by_source.append((source.label, shown, source.episodes))
    return Selection(
        json=(
            f'{{"sources":{dumps([{"label": s.label, "split": s.split} for s in findings.sources])},'
            f'"scenarios":{{{",".join(f"{dumps(id)}:{scenario}" for id, scenario in scenarios.items())}}},'
            f'"vocabulary":{dumps(list(vocabulary))},"groups":[{",".join(groups)}]}}'
        ),
        shown=sum(shown for _, shown, _ in by_source),
        total=findings.unread + sum(total for _, _, total in by_source),
        by_source=by_source,
        attempts=attempts,
    )


def pack_unfinished(group: TrajectoryGroup) -> Json:
    """Pack a group that is still being played, with its scenario."""
    episodes = [_episode(trajectory, None, None, {}, greedy=False) for trajectory in group]
    return {
        "scenario": _scenario(group.scenario),
        "group": {"scenario": group.scenario.id, "episodes": episodes},
    }


def newest_source(findings: Findings) -> EpisodeSource | None:
    """Return the episodes of the last of the models that are compared; None if nothing was evaluated."""
    label = findings.measured.models[-1].model if findings.measured.models else None
    return next((source for source in findings.sources if source.split != "train" and source.label == label), None)


def _attempts(group: TrajectoryGroup, source: EpisodeSource, first: int | None) -> Iterator[Attempt]:
    """Yield the episodes of a group that have a verdict; `first` is the number of its first one in the page."""
    for place, trajectory in enumerate(group.trajectories[:1] if source.greedy else group.trajectories):
        if trajectory.stop_reason.trainable and trajectory.success is not None:
            yield Attempt(group.scenario, trajectory, None if first is None else first + place)


def scenario_order(results: Sequence[EvaluationResult]) -> dict[str, int]:
    """Rank the scenarios: in turn one that got better, one that got worse, one that never succeeded, one that always
    succeeded, and one of the rest."""
    kinds: dict[str, list[str]] = {"better": [], "worse": [], "never": [], "always": [], "rest": []}
    outcomes = [result.outcomes for result in results]
    for id in dict.fromkeys(chain.from_iterable(outcomes)):
        kinds[_kind([each.get(id, []) for each in outcomes])].append(id)
    turns = chain.from_iterable(zip_longest(*kinds.values()))
    return {id: rank for rank, id in enumerate(id for id in turns if id is not None)}


def _kind(outcomes: Sequence[Sequence[float]]) -> str:
    rates = [sum(found) / len(found) for found in outcomes if found]
    if not rates:
        return "rest"
    if rates[0] != rates[-1]:
        return "better" if rates[-1] > rates[0] else "worse"
    return {0.0: "never", 1.0: "always"}.get(rates[0], "rest")


def _ordered(source: EpisodeSource, order: Mapping[str, int]) -> list[TrajectoryGroup]:
    groups = list(source.groups())
    if source.advantage is None:
        return sorted(groups, key=lambda group: order.get(group.scenario.id, len(order)))
    telling, rest = [g for g in groups if g.has_variance], [g for g in groups if not g.has_variance]
    turns = chain.from_iterable(zip_longest(telling[::2], telling[1::2], rest))
    return [group for group in turns if group is not None]


def _group(group: TrajectoryGroup, source: EpisodeSource, number: int, vocabulary: dict[str, int]) -> Json:
    gains = _advantages(group, source.advantage)
    spelling = source.spelling() if any(t.segments for t in group) else None
    packed: Json = {
        "source": number,
        "scenario": group.scenario.id,
        "episodes": [
            _episode(trajectory, gain, spelling, vocabulary, greedy=source.greedy and place == 0)
            for place, (trajectory, gain) in enumerate(zip(group, gains, strict=True))
        ],
    }
    if group.exceptions:
        packed["exceptions"] = [_cut(sentence) for sentence in group.exceptions]
    if judge := group.metadata.get("judge"):
        packed["judge"] = {k: v for k, v in judge.items() if isinstance(v, str | int | float)}
    return packed


def _advantages(group: TrajectoryGroup, how: Mapping[str, bool] | None) -> list[float | None]:
    """Return the advantages as the update computed them; None for an episode that was not trained on."""
    if how is None:
        return [None] * len(group)
    gains = iter(advantages(group.rewards, **how).tolist())
    return [next(gains) if trajectory.trainable else None for trajectory in group]


def _episode(
    trajectory: Trajectory,
    gain: float | None,
    spelling: Spelling | None,
    vocabulary: dict[str, int],
    *,
    greedy: bool,
) -> Json:
    packed: Json = {
        "seed": trajectory.seed % 2**32,
        "stop": trajectory.stop_reason.value,
        "success": trajectory.success,
        "reward": _short(trajectory.reward),
        "advantage": _short(gain),
        "greedy": greedy,
        "turns": trajectory.turns,
        "seconds": round(trajectory.seconds, 2),
        "metrics": {name: _short(value) for name, value in trajectory.metrics.items()},
        "explanation": _cut(trajectory.explanation),
        "fault": _cut(trajectory.fault),
        "submission": _cut(trajectory.submission),
        "messages": [_message(message) for message in trajectory.messages],
        "calls": [_call(call) for call in trajectory.calls],
        "final_state": [_call(call, result=True) for call in trajectory.final_state],
        "tokens": [
            [
                [vocabulary.setdefault(text, len(vocabulary)) for text in texts(spelling, turn)],
                [round(logprob, 3) for _, logprob in turn],
            ]
            for turn in sampled_turns(trajectory)
        ],
    }
    return {name: value for name, value in packed.items() if value not in (None, [], {}, False) or name == "success"}


def _message(message: Mapping[str, Any]) -> Json:
    packed: Json = {"role": str(message.get("role", "")), "text": _cut(_text(message.get("content")))}
    if reasoning := message.get("reasoning_content"):
        packed["reasoning"] = _cut(_text(reasoning))
    functions = [call["function"] for call in message.get("tool_calls") or () if isinstance(call.get("function"), dict)]
    if functions:
        packed["calls"] = [[str(f.get("name", "")), _cut(_text(f.get("arguments")))] for f in functions]
    if name := message.get("name"):
        packed["name"] = str(name)
    return packed


def _call(call: CallRecord, *, result: bool = False) -> Json:
    """Pack a call. Its result is in the message that the model read; `result` adds it for calls it never saw."""
    packed: Json = {"turn": call.turn, "name": call.tool or call.name, "seconds": round(call.seconds, 3)}
    packed |= {"error": True} if call.is_error else {}
    packed |= {} if call.sent else {"unsent": True}
    packed |= {} if call.tool else {"unknown": True}
    if result:
        packed |= {"arguments": _cut(_text(call.arguments)), "result": _cut(call.result)}
    return packed


def _scenario(scenario: McpScenario) -> Json:
    verifier = scenario.verifier
    return {
        "task": _cut(scenario.task_description),
        "tools": [call.tool for call in scenario.reference],
        "reference": [[call.tool, _cut(_text(call.arguments))] for call in scenario.reference],
        "answer": _cut(scenario.reference_answer),
        "verifier": None if verifier is None else [verifier.kind, _cut(_text(verifier.expected))],
        "difficulty": scenario.difficulty,
        "tags": list(scenario.tags),
    }


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(part, dict) for part in value):  # the parts of a message
        return "\n".join(str(part.get("text", f"[{part.get('type', 'part')}]")) for part in value)
    return "" if value is None else json.dumps(value, ensure_ascii=False, default=str)


def _cut(text: str | None) -> str | None:
    if text is None or len(text) <= _TEXT_LIMIT:
        return text
    return f"{text[:_TEXT_LIMIT]}\n[… {len(text) - _TEXT_LIMIT:,} more characters are in the file …]"


def _short(value: float | None) -> float | None:
    return None if value is None else round(float(value), 4)


def dumps(value: Any) -> str:
    """Return compact JSON, with null for not-a-number, which JSON lacks."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), separators=(",", ":"))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    return [_finite(part) for part in value] if isinstance(value, list | tuple) else value
