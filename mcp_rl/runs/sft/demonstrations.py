"""Demonstrations: token sequences to imitate, from a file of conversations or a run's own episodes.

Each has a mask of its learned tokens. Episodes are taken as they were sampled, token for token (rejection sampling:
Yuan et al., Scaling relationship on learning mathematical reasoning, 2023). Equal sequences count once.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import ValidationError

from mcp_rl.errors import ConfigError
from mcp_rl.inference.chat.conversation import Conversation, conversation, read_lines, render
from mcp_rl.run_directory import RunDirectory
from mcp_rl.trajectory import TrajectoryGroup

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from mcp_rl.inference.chat.chat_format import ChatFormat


@dataclass(frozen=True)
class Demonstration:
    """A token sequence to imitate."""

    tokens: tuple[int, ...]
    learned: tuple[bool, ...]
    """True for each token that is imitated."""
    where: str
    """File and line, for messages."""

    @property
    def opening(self) -> tuple[int, ...]:
        """The tokens before the first learned one."""
        return self.tokens[: self.learned.index(True)]


@dataclass(frozen=True)
class DemonstrationFile:
    """The content of a file: conversations, or groups of episodes."""

    path: Path
    conversations: Sequence[Conversation] = ()
    groups: Sequence[tuple[str, TrajectoryGroup]] = ()

    def demonstrations(self, chat: ChatFormat, min_reward: float) -> Iterator[Demonstration]:
        """Yield all conversations, and the trainable episodes with at least this reward. Raises ConfigError."""
        for said in self.conversations:
            tokens, learned = render(said, chat)
            yield Demonstration(tuple(tokens), tuple(learned), said.where)
        for where, group in self.groups:
            for trajectory in group:
                if not trajectory.trainable or trajectory.reward is None or trajectory.reward < min_reward:
                    continue
                for segment in trajectory.segments:
                    if any(segment.sampled[1:]):  # nothing predicts a sequence's first token
                        yield Demonstration(tuple(segment.tokens), tuple(segment.sampled), where)


def read_source(path: Path) -> DemonstrationFile:
    """Read a file of either kind, told apart by its first line. Raises ConfigError, which names file, line and
    problem."""
    lines = list(read_lines(path))
    if not lines:
        raise ConfigError(f"The file {path} is empty; it needs one JSON object with messages on each line.")
    if isinstance(lines[0][1], dict) and {"scenario", "trajectories"} <= lines[0][1].keys():
        return DemonstrationFile(path, groups=[(where, _group(fields, where)) for where, fields in lines])
    tools: dict[str, list[dict[str, object]]] = {}
    return DemonstrationFile(path, conversations=[conversation(fields, where, tools) for where, fields in lines])


def read_episodes(run: Path) -> list[DemonstrationFile]:
    """Read all training episodes of a run. Raises ConfigError if it has none."""
    recorded = RunDirectory(run).recorded_episodes()
    files = sorted((run / "trajectories" / "train").glob("*.jsonl"))
    if recorded is not None:
        files = [file for file in files if file.relative_to(run).as_posix() in recorded]
    if not files:
        raise ConfigError(f"The run in {run} has no training episodes yet: no trajectories/train/*.jsonl.")
    return [read_source(file) for file in files]


def distinct(demonstrations: Iterable[Demonstration]) -> list[Demonstration]:
    """Drop repetitions of equal demonstrations."""
    found: dict[tuple[tuple[int, ...], tuple[bool, ...]], Demonstration] = {}
    for one in demonstrations:
        found.setdefault((one.tokens, one.learned), one)
    return list(found.values())


def check_fit(demonstrations: Iterable[Demonstration], *, vocabulary: int, context: int) -> None:
    """Raise ConfigError for a sequence that the model cannot read: with another model's tokens, or too many of them."""
    for one in demonstrations:
        if max(one.tokens) >= vocabulary:
            raise ConfigError(
                f"{one.where}: the episode has the token {max(one.tokens)}, and the base model knows {vocabulary}: it "
                "was sampled from another model; name that model with --base-model."
            )
        if len(one.tokens) > context:
            raise ConfigError(
                f"{one.where}: the conversation has {len(one.tokens)} tokens, and the base model reads at most "
                f"{context}; shorten it or leave it out."
            )


def hold_out(
    demonstrations: Sequence[Demonstration], share: float, seed: int
) -> tuple[list[Demonstration], list[Demonstration]]:
    """Split demonstrations into those to train on and a held-out share; those with the same prompt stay together.

    The split depends on the seed and the prompts alone. At least one prompt of two or more is held out, unless `share`
    is 0, and at least one is trained on.
    """
    prompts = sorted({one.opening for one in demonstrations}, key=lambda opening: _digest([seed, opening]))
    count = min(len(prompts) - 1, max(1, round(share * len(prompts)))) if share else 0
    held = set(prompts[:count])
    return [one for one in demonstrations if one.opening not in held], [
        one for one in demonstrations if one.opening in held
    ]


def content_hash(demonstrations: Iterable[Demonstration]) -> str:
    """Return a hash of all demonstrations, in their order."""
    return _digest([(one.tokens, one.learned) for one in demonstrations])[:16]


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _group(fields: object, where: str) -> TrajectoryGroup:
    try:
        return TrajectoryGroup.model_validate(fields)
    except ValidationError as error:
        raise ConfigError(f"{where} is not a group of episodes: {error.errors()[0]['msg']}.") from error
