"""Samples: the token sequences, sampled tokens and advantages that a learner takes from scored groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mcp_rl.learning.advantage import advantages

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from mcp_rl.trajectory import Segment, Trajectory, TrajectoryGroup


@dataclass
class Sample:
    """A segment of a trajectory with S sampled tokens; every array is [S].

    A learner that corrects the sampler sets `weights` and `old`, and one that needs the KL sets `reference`; nothing
    else changes.
    """

    tokens: list[int]
    """The tokens before the last sampled one, which only has to be predicted."""
    at: npt.NDArray[np.int64]
    """Indices into `tokens` of the token before each sampled one."""
    targets: npt.NDArray[np.int64]
    logprobs: npt.NDArray[np.float32]
    """The sampler's, at its temperature."""
    weights: npt.NDArray[np.float32]
    """Weight of each token in the loss: 1, or the correction of an inexact sampler."""
    advantage: float
    group: int
    """Index of its group in the step."""
    old: npt.NDArray[np.float32] | None = None
    """Log-probabilities that the ratio is taken against; None for the sampler's."""
    reference: npt.NDArray[np.float32] | None = None
    """Log-probabilities of the reference model, once computed."""
    versions: npt.NDArray[np.int64] | None = None
    """Policy versions that sampled the tokens; None for the learner's own."""


@dataclass(frozen=True)
class Intake:
    """The samples of a step, and counts of what was used and left out."""

    samples: list[Sample]
    groups: int
    groups_without_variance: int
    trajectories: int
    trained: int
    """Trajectories that gave at least one sample."""
    masked: int
    """Trajectories left out: faults, timeouts, no score, nothing sampled, too old, a group without variance."""
    stale: int = 0
    """Trajectories left out because a token was too old."""
    truncated: int = 0
    """Trajectories that a limit on tokens cut off, and that only count in their group's mean."""


def take_in(
    groups: Iterable[TrajectoryGroup],
    *,
    scale_by_std: bool = False,
    leave_one_out: bool = False,
    oldest: int | None = None,
    mask_truncated: bool = False,
) -> Intake:
    """Return the samples of all groups whose rewards differ. Trajectories that may not be trained on, or that have a
    token sampled by a policy version before `oldest`, are left out, also of their group's mean. With `mask_truncated`
    those that a limit on tokens cut off count in the mean and give no samples (Yu et al., DAPO, 2025, section 3.4)."""
    samples: list[Sample] = []
    count = dropped = total = trained = stale = truncated = 0
    for count, group in enumerate(groups, 1):
        total += len(group.trajectories)
        usable = [trajectory for trajectory in group.trajectories if trajectory.trainable]
        if oldest is not None:
            fresh = [trajectory for trajectory in usable if not _is_older(trajectory, oldest)]
            stale += len(usable) - len(fresh)
            usable = fresh
        rewards = [trajectory.reward for trajectory in usable if trajectory.reward is not None]
        gains = advantages(rewards, scale_by_std=scale_by_std, leave_one_out=leave_one_out)
        if not gains.any():
            dropped += 1
            continue
        for trajectory, gain in zip(usable, gains, strict=True):
            if mask_truncated and trajectory.stop_reason.truncated:
                truncated += 1
                continue
            found = list(_samples(trajectory.segments, float(gain), count - 1))
            trained += bool(found)
            samples += found
    return Intake(samples, count, dropped, total, trained, total - trained, stale, truncated)


def demonstrated(groups: Iterable[TrajectoryGroup]) -> list[Sample]:
    """Return the samples of all trajectories that may be trained on, each with its own tokens to be imitated."""
    found: list[Sample] = []
    for number, group in enumerate(groups):
        for trajectory in group.trajectories:
            if trajectory.trainable:
                found += _samples(trajectory.segments, 1.0, number)
    for sample in found:
        sample.old = sample.logprobs  # no policy sampled them, so there is nothing to compare
    return found


def _is_older(trajectory: Trajectory, oldest: int) -> bool:
    """Return whether a version before `oldest` sampled a token; tokens that were not sampled have version -1."""
    return any(0 <= version < oldest for segment in trajectory.segments for version in set(segment.versions))


def _samples(segments: Sequence[Segment], advantage: float, group: int) -> Iterator[Sample]:
    for segment in segments:
        where = np.flatnonzero(segment.sampled)
        where = where[where > 0]  # nothing predicts a sequence's first token
        if len(where):
            yield Sample(
                tokens=segment.tokens[: int(where[-1])],
                at=where - 1,
                targets=np.asarray(segment.tokens, np.int64)[where],
                logprobs=np.asarray(segment.logprobs, np.float32)[where],
                weights=np.ones(len(where), np.float32),
                advantage=advantage,
                group=group,
                versions=np.asarray(segment.versions, np.int64)[where],
            )
