"""The driver's side of a broadcast of whole weights: who is in the group, and who has taken a policy by it."""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import TYPE_CHECKING, Any

from mcp_rl.backends.cluster.asking import ask
from mcp_rl.errors import PartLost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_rl.backends.cluster.crew import Member
    from mcp_rl.backends.cluster.engine_actor import ClusterPolicy, EngineState
    from mcp_rl.backends.cluster.learner_host import RayLearner
    from mcp_rl.config import RayConfig

log = logging.getLogger(__name__)
_JOIN_SECONDS = 120.0
"""Time for a group to come together, and for each chunk to cross."""
_MARGIN = 10.0


class WeightsCrossing:
    """A group of the learner and all engines, made anew whenever their number has changed."""

    def __init__(self, learner: RayLearner, config: RayConfig, *, gpus: bool) -> None:
        self._learner, self._config, self._gpus = learner, config, gpus
        self._numbers = itertools.count()
        self._name = ""
        self._members: list[tuple[Member, str]] = []
        """Members and incarnations of the group."""

    async def give(self, members: Sequence[Member], policy: ClusterPolicy) -> dict[Member, EngineState]:
        """Broadcast the policy that the learner wrote; return the members that sample it now. The others are to be
        given it in another way."""
        now = [(member, member.incarnation) for member in members]
        try:
            if now != self._members:
                await self._meet(now)
        except PartLost as lost:
            await self._part(lost)
            return {}
        seconds = self._config.update_seconds
        sending = ask("Learner 0", self._learner.remote("send", self._name, policy.step), seconds, "send its policy")
        taking = [
            ask(member.name, member.actor.take_sent.remote(policy, self._name), seconds, "take the new policy")
            for member in members
        ]
        done = await _all_or_first_loss([sending, *taking])
        for error in (one for one in done if isinstance(one, BaseException)):
            if not isinstance(error, PartLost):
                raise error
            await self._part(error)
        return {m: state for m, state in zip(members, done[1:], strict=True) if not isinstance(state, BaseException)}

    async def _meet(self, members: list[tuple[Member, str]]) -> None:
        """Make a group of the learner and these. Raises PartLost."""
        learner, size = self._learner, 1 + len(members)
        self._name, self._members = f"weights-{next(self._numbers)}", members
        wait = _JOIN_SECONDS + _MARGIN
        at = await ask("Learner 0", learner.remote("invite", self._name, _JOIN_SECONDS), wait, "open a meeting place")
        hosting = ask("Learner 0", learner.remote("host", size, self._gpus, _JOIN_SECONDS), wait, "meet the engines")
        joining = [
            ask(
                member.name,
                member.actor.join.remote(self._name, at, rank, size, self._gpus, _JOIN_SECONDS),
                wait,
                "meet the learner",
            )
            for rank, (member, _) in enumerate(members, 1)
        ]
        for one in await _all_or_first_loss([hosting, *joining]):
            if isinstance(one, BaseException):
                raise one

    async def _part(self, why: PartLost) -> None:
        """End the group, so that nobody in it waits for one that is gone."""
        log.info("A broadcast broke off: %s", why)
        members, self._members = self._members, []
        for actor in (self._learner.actor, *(member.actor for member, _ in members)):
            if actor is not None:
                actor.leave.remote()


async def _all_or_first_loss(jobs: list[Any]) -> list[Any]:
    """Await all jobs, and return their results and errors; after the first error the others have a little time, since
    they may wait for each other."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    _, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    if pending:
        _, pending = await asyncio.wait(pending, timeout=_MARGIN)
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending)
    return [PartLost("It was broken off") if task.cancelled() else task.exception() or task.result() for task in tasks]
