"""The learner of a cluster, as the backend sees it; its run directory is here, and the learner is not.

Checkpoints cross as bytes: the newest one to the learner when it is opened, each new one back when it is saved. If any
learner is lost, all of them end, and `LearnersLost` says that the run can go on from its last whole step.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
from ray.exceptions import RayError

from mcp_rl.backends.cluster.asking import ask
from mcp_rl.backends.cluster.connection import first_word
from mcp_rl.backends.cluster.engine_actor import ChatRecipe
from mcp_rl.backends.cluster.files import Files, read_folder
from mcp_rl.backends.cluster.learner_actor import LearnerActor, LearnerRank, OpenedRemote, SavedRemote
from mcp_rl.backends.hosts import CheckpointExtras, LearnerHost, LocalSettings, OpenedLearner
from mcp_rl.backends.initial import find_initial
from mcp_rl.errors import ClusterError, ConfigError, EngineStop, LearnersLost, PartLost
from mcp_rl.learning.disk.checkpoint import MANIFEST, newest_checkpoint, write_checkpoint
from mcp_rl.run_directory import typed_errors
from mcp_rl.system.durable import write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from mcp_rl.backends.cluster.connection import RayCluster
    from mcp_rl.backends.cluster.faults import FaultLog
    from mcp_rl.backends.plan.choices import Choices
    from mcp_rl.config import TrainConfig
    from mcp_rl.inference.chat.chat_format import ChatFormat
    from mcp_rl.trajectory import TrajectoryGroup

_CLOSE_SECONDS = 10.0
_PATIENT = 4.0
"""A learner may be silent for so many times `ray.silence`: it computes with all that its machine has."""


class RayLearner(LearnerHost):
    """The learner in its actor, rank 0, with the further ranks beside it."""

    def __init__(self, cluster: RayCluster, faults: FaultLog) -> None:
        self._cluster, self._faults, self._config = cluster, faults, cluster.config
        self.settings: LocalSettings | None = None
        self.chat: ChatFormat | None = None
        self.recipe: ChatRecipe | None = None
        """The chat format for other processes, once the learner is open."""
        self.sampled = True
        """True if the in-process engine samples the policy."""
        self._step = 0
        self._lost: EngineStop | None = None
        self._asked: set[asyncio.Future[Any]] = set()
        self.actor: Any = None
        self._ranks: list[Any] = []
        self._following: list[asyncio.Task[None]] = []
        """Tasks that notice the end, or the silence, of a learner."""
        self.on_loss: Callable[[EngineStop], None] = lambda lost: None
        """Called once if the learners are lost."""

    @property
    def step(self) -> int:
        return self._step

    def begin(self) -> None:
        """Start the actors, in the first bundles of the shape."""
        learners = self._cluster.shape.learners
        self.actor = self._cluster.start(LearnerActor, learners[0], 0)
        self._ranks = [self._cluster.start(LearnerRank, needs, rank + 1) for rank, needs in enumerate(learners[1:])]

    async def started(self) -> None:
        """Wait until all learners have started, and give them their places."""
        named = [("Learner 0", self.actor), *((f"Learner {n + 1}", rank) for n, rank in enumerate(self._ranks))]
        try:
            about = [await first_word(actor, name, self._config.patience) for name, actor in named]
        except PartLost as lost:
            if lost.gone:
                raise LearnersLost(f"{lost}; the same command starts again.") from lost
            raise ClusterError(f"{lost}.") from lost
        if not self._ranks:
            return
        address, port = await self._ask("meeting_place", seconds=self._config.patience, what="find a free port")
        nodes = [one.node for one in about]
        size = len(nodes)
        for rank, node in enumerate(nodes):
            variables = {
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
                "LOCAL_RANK": str(nodes[:rank].count(node)),
                "LOCAL_WORLD_SIZE": str(nodes.count(node)),
                "MASTER_ADDR": address,
                "MASTER_PORT": str(port),
            }
            if address.startswith("127."):
                variables |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
            if rank == 0:
                await self._ask("join", variables, seconds=self._config.patience, what="take its place")
            else:
                follow = self._ranks[rank - 1].follow.remote(variables)
                self._following.append(asyncio.create_task(self._watch_rank(rank, follow)))

    async def _watch_rank(self, rank: int, answer: Any) -> None:
        """Note a further rank that ends before the learner is closed."""
        why: object = "it ended"
        try:
            (await answer).get()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            why = f"{type(error).__name__}"
        if self.actor is not None:
            self._give_up(f"Learner {rank} is lost ({why})")

    async def _watch(self) -> None:
        """Look every now and then if rank 0 still answers; a silent one is ended, which breaks off all waiting."""
        silence = _PATIENT * self._config.silence
        while (actor := self.actor) is not None:
            try:
                with anyio.fail_after(silence):
                    await actor.pulse.remote()
            except TimeoutError:
                self._give_up(f"Learner 0 gave no sign of life within {silence:.0f} s")
            except RayError as error:
                self._give_up(f"Learner 0 is gone ({type(error).__name__})")
            await asyncio.sleep(self._config.silence / 3)

    async def resolve(self, settings: LocalSettings) -> Choices:
        """Fill in what the settings leave open, for the learner's machine."""
        about = settings.run / "model.json"
        files: Files = {about.name: about.read_bytes()} if about.is_file() else {}
        found: Choices = await self._ask(
            "resolve", settings, files, seconds=self._config.patience, what="look at its machine"
        )
        return found

    async def open(self) -> OpenedLearner:
        settings = self.settings
        assert settings is not None
        checkpoint = await anyio.to_thread.run_sync(newest_checkpoint, settings.checkpoints)
        files: Files = {}
        about = settings.run / "model.json"
        if checkpoint is not None:
            name = f"checkpoints/{checkpoint.step:04d}"
            content = await anyio.to_thread.run_sync(read_folder, checkpoint.path)
            files = {f"{name}/{path}": data for path, data in content.items()}
            if about.is_file():
                files[about.name] = about.read_bytes()
        init: Files | None = None
        notes: list[str] = []
        if settings.init is not None and checkpoint is None:
            initial = await anyio.to_thread.run_sync(find_initial, settings.init)
            init, notes = await anyio.to_thread.run_sync(read_folder, initial.folder), list(initial.skipped)
        opened: OpenedRemote = await self._ask(
            "open", settings, files, init, self.sampled, seconds=self._config.start_seconds, what="load the base model"
        )
        self._step = 0 if checkpoint is None else checkpoint.step
        skipped = [*notes, *([] if checkpoint is None else checkpoint.skipped), *opened.opened.skipped]
        self.recipe = ChatRecipe(settings, opened.opened.loaded, opened.chat)
        self.chat = await anyio.to_thread.run_sync(self.recipe.make)
        self._following.append(asyncio.create_task(self._watch()))
        path = None if checkpoint is None else checkpoint.path
        return opened.opened.model_copy(update={"checkpoint": path, "skipped": skipped})

    async def update(self, groups: Sequence[TrajectoryGroup], config: TrainConfig) -> dict[str, float]:
        seconds = self._config.update_seconds
        metrics: dict[str, float] = await self._ask("update", list(groups), config, seconds=seconds, what="take a step")
        self._step += 1
        return metrics

    async def save(self, extras: CheckpointExtras) -> Path:
        settings = self.settings
        assert settings is not None
        saved: SavedRemote = await self._ask("save", extras, seconds=self._config.update_seconds, what="save its step")
        files = {name: content for name, content in saved.checkpoint.items() if name != MANIFEST}
        if saved.batch is not None:
            batch = settings.run / "tensors" / "batch.safetensors"
            with typed_errors(batch):
                await anyio.to_thread.run_sync(write_atomically, batch, saved.batch)
        written = await anyio.to_thread.run_sync(
            lambda: write_checkpoint(
                settings.checkpoints, saved.step, files, keep=settings.kept_checkpoints, protect=extras.protect
            )
        )
        return written.path

    async def write_policy(self, folder: Path) -> None:
        raise ConfigError("The policy of a cluster's learner goes to its engines, not to a folder here.")

    async def publish(self) -> tuple[str | None, int]:
        """Let the learner write its policy; return the fingerprint, if engines compare it, and its bytes."""
        seconds = self._config.update_seconds
        found: tuple[str | None, int] = await self._ask(
            "write_policy", self.sampled, seconds=seconds, what="write its policy"
        )
        return found

    def policy(self, step: int) -> Any:
        """Return a reference to the files that `publish` wrote, which go from node to node and never come here."""
        return self.remote("policy", step)

    def remote(self, call: str, *arguments: Any) -> Any:
        """Call rank 0 and return the reference to its answer. Raises LearnersLost."""
        if self._lost is not None:
            raise self._lost
        return getattr(self.actor, call).remote(*arguments)

    async def token_logprobs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        found: list[list[float]] = await self._ask(
            "token_logprobs", sequences, seconds=self._config.update_seconds, what="compute log-probabilities"
        )
        return found

    async def _ask(self, call: str, *arguments: Any, seconds: float, what: str) -> Any:
        """Ask rank 0. A cancelled caller still waits, as in one process. Raises LearnersLost."""
        with anyio.CancelScope(shield=True):
            asked = asyncio.ensure_future(ask("Learner 0", self.remote(call, *arguments), seconds, what))
            self._asked.add(asked)
            asked.add_done_callback(self._asked.discard)
            try:
                return await asked
            except asyncio.CancelledError:
                if self._lost is None:
                    raise
                raise self._lost from None
            except PartLost as lost:
                self._give_up(str(lost))
                assert self._lost is not None
                raise self._lost from lost

    def _give_up(self, why: str) -> None:
        """End all learners, since one is lost."""
        if self._lost is None:
            self._faults.add("The learners", f"ended ({why})", told=False)
            self._lost = LearnersLost(f"{why}; the same command continues from the last whole step.")
            self._end()
            self.on_loss(self._lost)

    def break_off(self, why: EngineStop) -> None:
        """End all waiting for learners, with this error."""
        self._lost = self._lost or why
        for asked in list(self._asked):
            asked.cancel()

    def _end(self) -> None:
        actor, self.actor = self.actor, None
        for one in [*([] if actor is None else [actor]), *self._ranks]:
            self._cluster.end(one)
        self._ranks = []

    async def close(self) -> None:
        with anyio.CancelScope(shield=True):
            if self.actor is not None and self._lost is None:
                self._lost = LearnersLost("The learner was closed.")
                with suppress(Exception):
                    await ask("Learner 0", self.actor.close.remote(), _CLOSE_SECONDS, "close")
            for task in self._following:
                task.cancel()
            self._end()
