"""A crew: all actors of one kind, of which any may be lost, come back, join or leave while the run goes on.

A member is ready once it has been made ready in its present incarnation. Whoever needs one takes the ready member with
the fewest episodes, or waits for one, with a deadline that names who is waited for.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
from ray.exceptions import ActorDiedError

from mcp_rl.backends.cluster.asking import ask
from mcp_rl.backends.cluster.connection import first_word
from mcp_rl.errors import ClusterError, EngineStop, McpRlError, PartLost, RunStop, UserError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from mcp_rl.backends.cluster.connection import RayCluster, Resources
    from mcp_rl.backends.cluster.faults import FaultLog

_GLANCE = 1.0
"""Seconds between two looks at the members."""
_BEATS = 5
"""Looks from one pulse of a ready member to the next."""


@dataclass(eq=False)
class Member:
    """An actor of a crew."""

    name: str
    actor: Any
    incarnation: str = ""
    ready: bool = False
    in_flight: int = 0
    """Episodes that it has now."""
    played: int = 0
    """Episodes that it was given so far."""
    address: str = ""
    lost_at: float | None = None
    """When it was last seen to be gone; None while it is there."""
    _scopes: set[anyio.CancelScope] = field(default_factory=set)

    @contextmanager
    def episode(self) -> Iterator[anyio.CancelScope]:
        """Count an episode, which is broken off when the member is lost, even if it only went silent."""
        self.in_flight += 1
        self.played += 1
        scope = anyio.CancelScope()
        self._scopes.add(scope)
        try:
            with scope:
                yield scope
        finally:
            self._scopes.discard(scope)
            self.in_flight -= 1

    def break_off(self) -> None:
        """End the waiting of all its episodes."""
        for scope in list(self._scopes):
            scope.cancel()


@dataclass(frozen=True)
class CrewKind:
    """A kind of actor, and the number of them."""

    name: str
    """Such as "tool node"."""
    actor: type[Any]
    resources: Resources
    most: int
    """Most members; more than the run begins with may join."""


class Crew:
    """The members of a kind."""

    def __init__(self, cluster: RayCluster, kind: CrewKind, faults: FaultLog) -> None:
        self.kind, self.members = kind, list[Member]()
        self._cluster, self._faults, self._config = cluster, faults, cluster.config
        self._prepare: Callable[[Member], Awaitable[None]] | None = None
        self._check: Callable[[Member], Awaitable[None]] | None = None
        self._changed = asyncio.Event()
        self._nudge = asyncio.Event()
        """Set when a member was lost, so that it is looked at now."""
        self._watching: asyncio.Task[None] | None = None
        self._stop: RunStop | None = None
        self._number = 0
        self._candidate: Member | None = None

    def begin(self, number: int, first_bundle: int) -> None:
        """Start the members that the run begins with, in their bundles; they come up by themselves."""
        for index in range(number):
            self.members.append(self._start(first_bundle + index))

    def _start(self, bundle: int | None) -> Member:
        name = f"{self.kind.name[0].upper()}{self.kind.name[1:]} {self._number}"
        self._number += 1
        return Member(name, self._cluster.start(self.kind.actor, self.kind.resources, bundle))

    async def started(self, check: Callable[[Member], Awaitable[None]] | None = None) -> None:
        """Wait until all members have started, and `check` each. Raises what it raises, ClusterError for other versions
        or one that does not start within `ray.patience`."""
        self._check = check

        deadline = time.monotonic() + self._config.patience

        async def start(member: Member) -> None:
            while True:
                left = deadline - time.monotonic()
                try:
                    about = await first_word(member.actor, member.name, max(left, _GLANCE))
                    member.address = about.address
                    await self._checked(member)
                    return
                except PartLost as lost:  # Ray starts it anew
                    if lost.gone or left < _GLANCE:
                        raise ClusterError(f"{lost}.") from lost
                    await asyncio.sleep(_GLANCE)

        await _side_by_side([start(member) for member in self.members])

    async def _checked(self, member: Member) -> None:
        if self._check is None:
            return
        try:
            await self._check(member)
        except UserError as error:
            raise ClusterError(f"{member.name} at {member.address} cannot be used: {_uncapped(error)}") from error

    async def make_ready(self, prepare: Callable[[Member], Awaitable[None]]) -> None:
        """Prepare all members, and from now on also those that come back or join; return when one at least is ready.
        Raises what `prepare` raises for the first members, apart from PartLost: these have time to come back."""
        self._prepare = prepare

        async def ready(member: Member) -> None:
            try:
                await self._make_ready(member)
            except PartLost as lost:
                self._faults.add(member.name, f"lost while it was made ready ({_uncapped(lost)})")
                self.lost(member, lost)

        await _side_by_side([ready(member) for member in self.members])
        self._watching = asyncio.create_task(self._watch())
        await self.wait_for_one()

    async def _make_ready(self, member: Member) -> None:
        assert self._prepare is not None
        incarnation = await self._pulse(member)
        await self._prepare(member)
        member.incarnation, member.ready, member.lost_at = incarnation, True, None
        self._changed.set()

    async def _pulse(self, member: Member) -> str:
        answer = member.actor.pulse.remote()
        try:
            with anyio.fail_after(self._config.silence):
                found: str = await answer
                return found
        except TimeoutError:
            raise PartLost(f"{member.name} gave no sign of life within {self._config.silence:.0f} s") from None
        except Exception as error:
            gone = isinstance(error, ActorDiedError)
            raise PartLost(f"{member.name} is gone ({type(error).__name__})", gone=gone) from error

    def lost(self, member: Member, why: object) -> None:
        """Note that a member is lost, until it has come back and was made ready."""
        if member.ready:
            self._faults.add(
                member.name, f"lost, its episodes are played again elsewhere ({_uncapped(why).rstrip('.')})"
            )
            self._nudge.set()
        member.ready = False
        member.break_off()
        member.lost_at = member.lost_at or time.monotonic()
        self._changed.set()

    @property
    def ready(self) -> list[Member]:
        return [member for member in self.members if member.ready]

    async def pick(self) -> Member:
        """Return the ready member with the fewest episodes; wait for one while there is none. Raises EngineStop if none
        is ready within `ray.patience`, and what `stop` was given."""
        await self.wait_for_one()
        return min(self.ready, key=lambda member: (member.in_flight, member.played))

    async def wait_for_one(self) -> None:
        """Wait until a member is ready."""
        try:
            with anyio.fail_after(self._config.patience):
                while not self.ready:
                    self._raise_stop()
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            who = ", ".join(member.name for member in self.members) or f"a {self.kind.name}"
            raise EngineStop(
                f"No {self.kind.name} of the cluster came back within ray.patience = {self._config.patience:.0f} s "
                f"(waited for: {who}); the same command continues from the last whole step."
            ) from None
        self._raise_stop()

    def stop(self, why: RunStop) -> None:
        """End all waiting for members, and all episodes of theirs, with this error."""
        self._stop = self._stop or why
        self._changed.set()
        for member in self.members:
            member.break_off()

    def _raise_stop(self) -> None:
        if self._stop is not None:
            raise self._stop

    async def _watch(self) -> None:
        """Look after the members until cancelled: make those ready that came back, and take in those that join."""
        beat = 0
        while True:
            with anyio.move_on_after(_GLANCE):
                await self._nudge.wait()
            self._nudge.clear()
            beat += 1
            await _side_by_side([self._look(member, pulse=beat % _BEATS == 0) for member in list(self.members)])
            await self._take_in()

    async def _look(self, member: Member, *, pulse: bool) -> None:
        try:
            if not member.ready:
                await self._make_ready(member)
                self._faults.add(member.name, "back again")
            elif pulse and await self._pulse(member) != member.incarnation:
                raise PartLost(f"{member.name} has started anew")
        except PartLost as lost:
            self.lost(member, lost)
            if lost.gone:
                self._leave(member)
        except RunStop as stop:
            self.stop(stop)
        except McpRlError as error:
            self.lost(member, error)

    def _leave(self, member: Member) -> None:
        """Take a member out that will not come back; another one may join in its place."""
        if member in self.members:
            self.members.remove(member)
            self._cluster.end(member.actor)
            self._faults.add(member.name, "gone for good")

    async def _take_in(self) -> None:
        """Start a further member where there is room, and take it in once it has started."""
        candidate = self._candidate
        if candidate is None:
            overdue = time.monotonic() - 2 * self._config.silence  # until then it may come back
            missed = sum(one.lost_at is not None and one.lost_at < overdue for one in self.members)
            if len(self.members) - missed >= self.kind.most:
                return
            if await anyio.to_thread.run_sync(self._cluster.has_room, self.kind.resources, abandon_on_cancel=True):
                self._candidate = self._start(None)
            return
        try:
            about = await first_word(candidate.actor, candidate.name, _GLANCE)
            candidate.address = about.address
            await self._checked(candidate)
            await self._make_ready(candidate)
        except PartLost:  # not placed yet, or lost again
            return
        except McpRlError as error:
            self._faults.add(candidate.name, f"cannot join: {_uncapped(error)}")
            self._cluster.end(candidate.actor)
            self.kind = CrewKind(self.kind.name, self.kind.actor, self.kind.resources, len(self.members))
            self._candidate = None
            return
        self.members.append(candidate)
        self._candidate = None
        self._faults.add(candidate.name, f"joined, at {candidate.address}")

    async def close(self, seconds: float) -> None:
        """Let all members close, and end them."""
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            await asyncio.wait([watching])
        members, self.members = self.members, []

        async def shut(member: Member) -> None:
            with suppress(McpRlError):
                await ask(member.name, member.actor.close.remote(), seconds, "close")
            self._cluster.end(member.actor)

        with anyio.CancelScope(shield=True):
            await _side_by_side([shut(member) for member in members])


async def _side_by_side(jobs: list[Any]) -> None:
    """Await all jobs; raise the first error when all are done."""
    for result in await asyncio.gather(*jobs, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


def _uncapped(sentence: object) -> str:
    text = str(sentence)
    return text if text[:2].isupper() else text[:1].lower() + text[1:]
