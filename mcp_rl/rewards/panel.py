"""The judges of a run: one prompt for a group, one verdict from each judge, averaged; some groups are judged twice.

Verdicts of several judges on one group measure their agreement; verdicts of one judge on the same group in another
order measure its noise.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any

from mcp_rl.inference.apis.language_model import Message, ModelRequest
from mcp_rl.rewards.judge import Judge, JudgeVerdict, Score, read_cached, usage, write_cached
from mcp_rl.rewards.transcript import Exhibit, distinct, exhibits
from mcp_rl.system.tasks import run_all
from mcp_rl.trajectory import Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    from pathlib import Path

Prompt = Callable[[TrajectoryGroup, Sequence[Exhibit]], list[Message]]


@dataclass(frozen=True)
class Panel:
    """Judges that score groups together. `prompt` makes the question from a group and its exhibits."""

    judges: Sequence[Judge]
    prompt: Prompt
    seed: int = 0
    """Decides the order of trajectories, together with their content, so that no text in them can predict it."""
    repeat: float = 0.0
    """Share of groups that every judge scores twice, 0 to 1."""
    cache_dir: Path | None = None
    recall: Callable[[ModelRequest], None] | None = None
    """Receives each request of a verdict that these same rollouts got before a kill; None treats it as cached."""

    async def score(self, group: TrajectoryGroup) -> TrajectoryGroup:
        """Set reward, metrics["ruler"] and explanation; return the same group, unchanged unless every verdict has come.

        Raises JudgeError where a judge gives no usable verdict.
        """
        judged = distinct([trajectory for trajectory in group if trajectory.stop_reason.trainable])
        if not judged:
            return group
        digest = hashlib.sha256(repr((self.seed, [same.key for same in judged])).encode()).hexdigest()
        rounds = 2 if random.Random(f"{digest} again").random() < self.repeat else 1
        asked = [
            _Asked(judge, exhibits(judged, random.Random(f"{digest} {number}")))
            for number in range(rounds)
            for judge in self.judges
        ]
        await run_all([partial(self._ask, group, question) for question in asked])
        for index, same in enumerate(judged):
            _set(same.trajectories, [question.score(index) for question in asked], self.judges)
        group.metadata["judge"] = self._about(asked, rounds)
        return group

    async def _ask(self, group: TrajectoryGroup, question: _Asked) -> None:
        messages = self.prompt(group, question.shown)
        ids = [exhibit.id for exhibit in question.shown]
        path, asker = None, _identity(group)
        if self.cache_dir is not None:
            key = json.dumps([question.judge.model, question.judge.base_url, messages], sort_keys=True)
            path = self.cache_dir / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
            if (stored := read_cached(path, ids, asker if self.recall else None)) is not None:
                question.verdict = stored
                if self.recall is not None:
                    for call in stored.calls:
                        self.recall(call)
                return
        question.verdict = await question.judge.scores(messages, ids)
        if path is not None:
            write_cached(path, question.verdict, asker)

    def _about(self, asked: Sequence[_Asked], rounds: int) -> dict[str, Any]:
        count = len(self.judges)
        tables = [question.values for question in asked]
        about: dict[str, Any] = {
            "model": " + ".join(judge.model for judge in self.judges),
            "cached": all(question.verdict.cached for question in asked),
            "distinct": len(tables[0]),
            **usage([call for question in asked for call in question.verdict.calls]),
            "requests": [_request(call) for question in asked for call in question.verdict.calls],
        }
        if count > 1:
            first = tables[:count]
            about["agreement"] = fmean(agreement(a, b) for a, b in itertools.combinations(first, 2))
        if rounds > 1:
            pairs = zip(tables[:count], tables[count:], strict=True)
            about["noise"] = fmean(abs(a - b) for one, other in pairs for a, b in zip(one, other, strict=True))
        return about


def _request(call: ModelRequest) -> dict[str, Any]:
    return {
        "model": call.model,
        "refused": call.problem is not None,
        "prompt_tokens": call.prompt_tokens,
        "completion_tokens": call.completion_tokens,
        "cost_usd": call.cost_usd,
        "unix_seconds": call.unix_seconds,
    }


def _identity(group: TrajectoryGroup) -> str:
    """Return a key of these very rollouts: their seeds, and the policy versions that played them."""
    played = [(t.seed, max((max(s.versions, default=-1) for s in t.segments), default=-1)) for t in group]
    return hashlib.sha256(repr(played).encode()).hexdigest()[:32]


def agreement(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the share of pairs in the same order in both, 0 to 1; a pair tied in only one counts half.

    The share is 1 where there is no pair.
    """
    marks = [
        1 - abs(_sign(one[i] - one[j]) - _sign(other[i] - other[j])) / 2
        for i, j in itertools.combinations(range(len(one)), 2)
    ]
    return fmean(marks) if marks else 1.0


def _sign(value: float) -> int:
    return (value > 1e-9) - (value < -1e-9)


@dataclass
class _Asked:
    """A question to one judge, and its verdict once it has come."""

    judge: Judge
    shown: Sequence[Exhibit]
    verdict: JudgeVerdict = field(default_factory=lambda: JudgeVerdict({}))

    def score(self, index: int) -> Score:
        return self.verdict.scores[next(exhibit.id for exhibit in self.shown if exhibit.index == index)]

    @property
    def values(self) -> list[float]:
        return [self.score(index).value for index in range(len(self.shown))]


def _set(trajectories: Sequence[Trajectory], scores: Sequence[Score], judges: Sequence[Judge]) -> None:
    """Set rewards to the mean of all `scores`; of several judges, keep each one's first score and words too."""
    words, metrics = scores[0].explanation, {"ruler": fmean(score.value for score in scores)}
    if len(judges) > 1:
        first = list(zip((judge.model for judge in judges), scores, strict=False))
        words = " ".join(f"[{model}: {score.value:g}] {score.explanation}" for model, score in first)
        metrics |= {f"ruler_{model}": score.value for model, score in first}
    for trajectory in trajectories:
        trajectory.reward, trajectory.explanation = metrics["ruler"], words
        trajectory.metrics |= metrics
