"""The actors that learn. Rank 0 answers the driver; further ranks follow it as torchrun's do.

The run directory is the driver's: rank 0 is given the newest checkpoint as bytes, works in a folder of its own, and
gives back the files of each checkpoint that it writes.
"""

from __future__ import annotations

import functools
import os
import shutil
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio

from mcp_rl.backends.cluster.actor import ClusterActor
from mcp_rl.backends.cluster.asking import answering
from mcp_rl.backends.cluster.broadcast import Membership, in_group
from mcp_rl.backends.cluster.files import Files, read_folder, write_folder
from mcp_rl.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from mcp_rl.backends.hosts import CheckpointExtras, LearnerHost, LocalSettings, OpenedLearner
    from mcp_rl.backends.plan.choices import Choices
    from mcp_rl.config import TrainConfig
    from mcp_rl.trajectory import TrajectoryGroup

_BATCH = "tensors/batch.safetensors"


@dataclass(frozen=True)
class OpenedRemote:
    """The result of opening the learner in its actor."""

    opened: OpenedLearner
    chat: str | None
    """The tokenizer's Description as JSON; None if only transformers has exactly the same."""


@dataclass(frozen=True)
class SavedRemote:
    """The files of a checkpoint that the learner wrote."""

    step: int
    checkpoint: Files
    batch: bytes | None
    """The last batch as tensors; None if there was none."""


class LearnerActor(ClusterActor):
    """Rank 0: the learner that the driver asks."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        super().__init__(environment)
        self._host: LearnerHost | None = None
        self._run: Path | None = None
        self._membership = Membership()

    @property
    def _learner(self) -> Any:
        if self._host is None:
            raise ConfigError("The learner is not loaded yet.")
        return self._host

    @answering
    async def meeting_place(self) -> tuple[str, int]:
        """Return this node's address and a free port, where torch's processes meet."""
        address = (await self.about()).address
        with socket.socket() as free:
            free.bind((address, 0))
            return address, free.getsockname()[1]

    @answering
    async def join(self, variables: Mapping[str, str]) -> None:
        """Take a place among several learners; `variables` are torchrun's."""
        os.environ.update(variables)

    @answering
    async def resolve(self, settings: LocalSettings, files: Files) -> Choices:
        """Fill in what the settings leave open, for this machine. `files` are those of the run that it looks at."""
        from mcp_rl.backends.plan.choices import resolve

        run = self._folder(settings)
        await anyio.to_thread.run_sync(write_folder, run, files)
        return await anyio.to_thread.run_sync(resolve, settings.model_copy(update={"run": run}))

    @answering
    async def open(self, settings: LocalSettings, files: Files, init: Files | None, sampled: bool) -> OpenedRemote:
        """Load the base and continue from the checkpoint in `files`, those of the run, or begin with those of `init`.

        `sampled`: the in-process engine samples the policy, so the base is loaded as for it.
        """
        from mcp_rl.backends.base.plain_tokenizer import described
        from mcp_rl.backends.processes.distributed import make_learner_host

        run = self._folder(settings)
        await anyio.to_thread.run_sync(write_folder, run, files)
        changed: dict[str, Any] = {"run": run, "keep": 1}
        if init is not None:
            changed["init"] = self.scratch / "init"
            await anyio.to_thread.run_sync(write_folder, changed["init"], init)
        host = make_learner_host(settings.model_copy(update=changed), on_base=_not_sampled_here if sampled else None)
        self._host, self._run = host, run
        opened = await host.open()
        assert host.chat is not None
        description = await anyio.to_thread.run_sync(described, host.chat.tokenizer)
        return OpenedRemote(opened, None if description is None else description.model_dump_json())

    def _folder(self, settings: LocalSettings) -> Path:
        return self.scratch / settings.run.name

    @answering
    async def update(self, groups: Sequence[TrajectoryGroup], config: TrainConfig) -> dict[str, float]:
        metrics: dict[str, float] = await self._learner.update(groups, config)
        return metrics

    @answering
    async def save(self, extras: CheckpointExtras) -> SavedRemote:
        """Write the checkpoint of the current step here, and return its files."""
        assert self._run is not None
        folder = await self._learner.save(extras)
        batch = self._run / _BATCH
        return await anyio.to_thread.run_sync(
            lambda: SavedRemote(
                self._learner.step, read_folder(folder), batch.read_bytes() if batch.is_file() else None
            )
        )

    @answering
    async def write_policy(self, fingerprinted: bool) -> tuple[str | None, int]:
        """Write the current policy for `policy`; return its fingerprint, if it is to be compared, and its bytes."""
        place = self._policies
        folder = place / f"{self._learner.step:04d}"
        for older in sorted(place.glob("*"))[:-1]:  # the newest may still be read
            shutil.rmtree(older, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        await self._learner.write_policy(folder)
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        if not fingerprinted:
            return None, size
        from mcp_rl.backends.processes.in_process import in_thread

        return await in_thread(_fingerprint, await self._learner.in_one_piece()), size

    @answering
    async def policy(self, step: int) -> Files:
        """Return the files of the policy that `write_policy` wrote."""
        return await anyio.to_thread.run_sync(read_folder, self._policies / f"{step:04d}")

    @property
    def _policies(self) -> Path:
        return self.scratch / "policy"

    @answering
    async def invite(self, name: str, seconds: float) -> tuple[str, int]:
        """Open the place where a group for a broadcast meets; return its address and port."""
        address = (await self.about()).address
        return await anyio.to_thread.run_sync(self._membership.invite, name, address, seconds)

    @answering
    async def host(self, size: int, gpus: bool, seconds: float) -> None:
        """Join the group of so many that was invited. Raises PartLost if a member does not come."""
        address = (await self.about()).address
        await in_group(self._membership.host, size, address, gpus, seconds)

    @answering
    async def send(self, name: str, step: int) -> int:
        """Send the policy that `write_policy` wrote to the group; return its bytes. Raises PartLost."""
        group = self._membership.group(name)
        return int(await in_group(group.send, self._policies / f"{step:04d}"))

    async def leave(self) -> None:
        """End the group."""
        await anyio.to_thread.run_sync(self._membership.leave)

    @answering
    async def token_logprobs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        found: list[list[float]] = await self._learner.token_logprobs(sequences)
        return found

    @answering
    async def close(self) -> None:
        """Free the learner; the other ranks end with it."""
        await self.leave()
        host, self._host = self._host, None
        if host is not None:
            await host.close()
        self.tidy()


def _fingerprint(policy: Any) -> str:
    from mcp_rl.backends.samplers.weights import sampled_weights
    from mcp_rl.inference.policy import fingerprint_of

    return fingerprint_of(sampled_weights(policy.model, policy.reference))


def _not_sampled_here(base: object, chat: object) -> None:
    """Do nothing with the base: an engine in another actor samples its own."""


class LearnerRank(ClusterActor):
    """A further rank, which follows rank 0 until that ends."""

    @answering
    async def follow(self, variables: Mapping[str, str]) -> None:
        """Do what rank 0 asks. `variables` are torchrun's."""
        os.environ.update(variables)
        await anyio.to_thread.run_sync(functools.partial(_follow, int(variables["RANK"])), abandon_on_cancel=True)


def _follow(rank: int) -> None:
    from mcp_rl.backends.processes.follower import follow_rank

    follow_rank(rank)
