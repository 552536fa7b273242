"""The connection to a Ray cluster, the room on it, and the actors that are placed there.

What a run begins with is reserved at once: one placement group packs the learners, and each engine and each tool node
has a group of its own, since Ray places what a group has lost only when all of it has room. Actors that join later have
none.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import socket
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import anyio
import ray
from ray._private import worker as ray_worker
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from mcp_rl.backends.cluster.about import About, versions
from mcp_rl.backends.cluster.actor import PULSE
from mcp_rl.errors import ClusterError, ConfigError, EngineStop, PartLost
from mcp_rl.system.boundary import first_line
from mcp_rl.system.threads import UPDATE_THREADS, cpu_limit

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp_rl.config import RayConfig

TOOLS = "mcp_rl_tools"
"""The resource of the nodes on which tool servers run."""
CONNECT_SECONDS = 40.0
"""Time for Ray to connect to a cluster whose port answers."""
START_SECONDS = 120.0
"""Time for a cluster of this machine alone to start."""
_PROBE_SECONDS = 5.0
_KILL_SECONDS = 10.0
_HEAD_SECONDS = 45.0
"""Most time for a head node to be back."""
_GLANCE = 0.05
_CALLS = 4096
"""Most calls of an actor at once: the episodes of a tool node, the turns of an engine."""
_PASSED_ON = ("OMP_NUM_THREADS", UPDATE_THREADS, "OMP_WAIT_POLICY", "HF_HUB_OFFLINE", "TOKENIZERS_PARALLELISM")
_ROOM = ("CPU", "GPU", TOOLS)
_LEAST_CPU = 0.001
"""CPUs of a part that asks for nothing, which Ray would not place."""

Resources = dict[str, float]


@dataclass(frozen=True)
class Shape:
    """What a run begins with, as resources."""

    learners: list[Resources]
    engines: list[Resources]
    tool_nodes: list[Resources]

    @property
    def bundles(self) -> list[Resources]:
        return [*self.learners, *self.engines, *self.tool_nodes]


def shape_of(config: RayConfig, *, gpus: bool) -> Shape:
    """Return the resources that a run begins with. `gpus`: the cluster has GPUs."""
    learner = _needs(config.learner_cpus, config.learner_gpus, gpus)
    engine = _needs(config.engine_cpus, config.engine_gpus, gpus)
    return Shape(
        [learner] * config.learners,
        [engine] * config.engines,
        [{"CPU": config.tool_cpus, TOOLS: 1.0}] * config.tool_nodes,
    )


def _needs(cpus: float, gpus: float | None, there: bool) -> Resources:
    number = float(there) if gpus is None else gpus
    return {name: amount for name, amount in (("CPU", cpus), ("GPU", number)) if amount} or {"CPU": _LEAST_CPU}


class RayCluster:
    """A connection, and the actors that this run has on the cluster."""

    def __init__(self, config: RayConfig) -> None:
        self.config = config
        self.gpus = False
        """True if the cluster has GPUs."""
        self.shape = Shape([], [], [])
        self._places: list[tuple[PlacementGroup, int]] = []
        """For each bundle of the shape its group, and its place there."""
        self._actors: list[Any] = []
        self._killing: list[threading.Thread] = []
        self._watching: asyncio.Task[None] | None = None
        self._head = ""
        """Address of the head node."""
        self._head_lost: EngineStop | None = None
        self.on_loss: Callable[[EngineStop], None] = lambda lost: None
        """Called once if the head node is lost."""

    async def connect(self) -> None:
        """Connect, or start a cluster of this machine alone. Raises ClusterError for an address that is none, for other
        versions, and for a cluster that is too small."""
        if ray.is_initialized():
            raise ConfigError("This process is connected to a Ray cluster already: call ray.shutdown() first.")
        address = await anyio.to_thread.run_sync(_checked_address, self.config.address)
        logging.getLogger("ray").setLevel(logging.ERROR)
        try:
            with anyio.fail_after(START_SECONDS if address is None else CONNECT_SECONDS):
                await anyio.to_thread.run_sync(self._connect, address, abandon_on_cancel=True)
        except TimeoutError:
            if address is None:
                raise ClusterError(f"Ray did not start on this machine within {START_SECONDS:.0f} s.") from None
            raise ClusterError(
                f"No Ray cluster answers at {address} within {CONNECT_SECONDS:.0f} s, though its port is open: is it "
                "the address of a head node (ray start --head)?"
            ) from None
        nodes = [node for node in ray.nodes() if node["Alive"]]
        there = {name: sum(node["Resources"].get(name, 0.0) for node in nodes) for name in _ROOM}
        self.gpus = there["GPU"] > 0
        self.shape = shape_of(self.config, gpus=self.gpus)
        _check_room(self.shape, [node["Resources"] for node in nodes], there, waits=self.config.waits_for_nodes)
        self._head = str(ray.get_runtime_context().gcs_address)
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        """Look every now and then if the head node still takes connections: it may be restarted, but Ray itself waits a
        minute for it, and then ends this process."""
        silence, patience, seen = self.config.silence, min(self.config.patience, _HEAD_SECONDS), time.monotonic()
        parts = urlsplit(f"//{self._head}")
        while self._head_lost is None:
            try:
                with anyio.fail_after(silence):
                    stream = await anyio.connect_tcp(parts.hostname or "", parts.port or 0)
                    await stream.aclose()
                seen = time.monotonic()
            except (OSError, TimeoutError):
                if time.monotonic() - seen >= patience:
                    self._head_lost = EngineStop(
                        f"The head node of the Ray cluster at {self._head} gave no sign of life within {patience:.0f} "
                        "s; the same command continues from the last whole step, on any cluster."
                    )
                    self.on_loss(self._head_lost)
            await asyncio.sleep(silence / 5)

    def _connect(self, address: str | None) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False, "configure_logging": False}
        if address is None:
            os.environ.setdefault("RAY_worker_niceness", "0")  # nothing else runs here that should come first
            own = shape_of(self.config, gpus=False)
            cpus = max(cpu_limit(), sum(bundle.get("CPU", 0.0) for bundle in own.bundles))
            options |= {
                "num_cpus": int(cpus) + 1,
                "resources": {TOOLS: float(max(1, self.config.tool_nodes))},
                "include_dashboard": False,
                "address": "local",
            }
        else:
            options["address"] = address
        try:
            ray.init(**options)
        except RuntimeError as error:
            if "ersion" in str(error):
                said = " ".join(str(error).split())
                raise ClusterError(f"The cluster at {address} runs other versions than this machine: {said}") from error
            raise ClusterError(f"Ray cannot connect to {address}: {first_line(error)}.") from error
        except (ConnectionError, OSError, ValueError) as error:
            raise ClusterError(f"Ray cannot connect to {address}: {first_line(error)}.") from error
        # Ray prints news of lost workers to stdout, which may be JSON; what matters of them is in our log of faults.
        vars(ray_worker)["print_to_stdstream"] = lambda *said, **how: None

    async def place(self) -> None:
        """Reserve the room that the run begins with. Raises ClusterError if it is not free within `ray.patience`."""
        shape, deadline = self.shape, time.monotonic() + self.config.patience
        learners = placement_group(shape.learners, strategy="PACK")
        self._places = [(learners, place) for place in range(len(shape.learners))]
        self._places += [(placement_group([one]), 0) for one in (*shape.engines, *shape.tool_nodes)]
        for group, _ in self._places[len(shape.learners) - 1 :]:
            left = max(0.0, deadline - time.monotonic())
            if not await anyio.to_thread.run_sync(group.wait, left):
                free = ray.available_resources()
                raise ClusterError(
                    f"The cluster has no room for {_in_words(shape)} within ray.patience = {self.config.patience:.0f} "
                    f"s: free are {_amounts(free)}, in all there are {_amounts(ray.cluster_resources())}; end what "
                    "else runs there, or ask for less."
                )

    def start(self, actor: type[Any], resources: Resources, bundle: int | None) -> Any:
        """Start an actor, in a bundle of the shape or where there is room, and return its handle."""
        strategy: Any = "DEFAULT"
        if bundle is not None:
            group, place = self._places[bundle]
            strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=place)
        restarts = actor.__name__ in ("EngineActor", "ToolNode")
        options: dict[str, Any] = {
            "num_cpus": resources.get("CPU", 0),
            "num_gpus": resources.get("GPU", 0),
            "resources": {name: amount for name, amount in resources.items() if name not in ("CPU", "GPU")},
            "max_restarts": -1 if restarts else 0,
            "max_concurrency": _CALLS,
            "scheduling_strategy": strategy,
        }
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        handle = ray.remote(concurrency_groups={PULSE: 4})(_with_pulse(actor)).options(**options).remote(environment)
        self._actors.append(handle)
        return handle

    def end(self, actor: Any) -> None:
        """End an actor for good, without waiting for it: Ray asks the head node, which may be gone."""
        if actor in self._actors:
            self._actors.remove(actor)
        if ray.is_initialized() and self._head_lost is None:
            killing = threading.Thread(target=ray.kill, args=(actor,), daemon=True)
            killing.start()
            self._killing.append(killing)

    def has_room(self, resources: Resources) -> bool:
        """Return whether a further actor with these resources might find room."""
        free = ray.available_resources()
        return all(free.get(name, 0.0) >= amount for name, amount in resources.items())

    async def close(self) -> None:
        """End all actors and the connection. Without a head node they end by themselves. Raises EngineStop if it is
        lost meanwhile."""
        told = self._head_lost is not None
        with anyio.CancelScope(shield=True):
            closing = threading.Thread(target=self._close, daemon=True)
            closing.start()
            while self._head_lost is None:
                await anyio.sleep(_GLANCE)  # a thread cannot be awaited without its end
                if not closing.is_alive():
                    break
        if self._watching is not None:
            self._watching.cancel()
        if self._head_lost is not None:
            atexit.unregister(ray.shutdown)  # it would wait for the head node
            if not told:
                raise self._head_lost

    def _close(self) -> None:
        if not ray.is_initialized() or self._head_lost is not None:
            return
        try:
            for killing in self._killing:
                killing.join(_KILL_SECONDS)
            for actor in self._actors:
                ray.kill(actor)
            for group in dict.fromkeys(group for group, _ in self._places):
                remove_placement_group(group)
        finally:
            self._actors, self._places = [], []
            ray.shutdown()


def check_about(about: About, who: str) -> None:
    """Raise ClusterError if an actor's machine runs other versions than this one."""
    for name, ours in versions().items():
        if (theirs := about.versions.get(name)) != ours:
            raise ClusterError(
                f"{who} at {about.address} runs {name} {theirs}, and this machine {ours}: install the same version on "
                "all nodes, such as with one container image."
            )


def _with_pulse(actor: type[Any]) -> type[Any]:
    """Return the class with `pulse` in its concurrency group, which Ray reads from a mark on the method."""
    if not hasattr(actor.pulse, "__ray_concurrency_group__"):
        actor.pulse = ray.method(concurrency_group=PULSE)(actor.pulse)
    return actor


def _checked_address(given: str) -> str | None:
    """Return the address to connect to; None to start a cluster here. Raises ClusterError for one that is none."""
    if given == "local":
        return None
    if given == "auto":
        known = os.environ.get("RAY_ADDRESS") or _running_here()
        if known is None:
            return None
        return _checked_address(known)
    if given.startswith("ray://"):
        raise ClusterError(
            f"{given} is an address of the Ray client, which cannot hold a run: start the command on a node of the "
            "cluster, or with ray job submit, and leave --ray-address out."
        )
    parts = urlsplit(f"//{given}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or not port:
        raise ClusterError(
            f"{given!r} is no address of a Ray cluster: give HOST:PORT of its head node, such as 10.0.0.1:6379."
        )
    try:
        socket.create_connection((host, port), _PROBE_SECONDS).close()
    except OSError as error:
        why = "it does not answer" if isinstance(error, TimeoutError) else error.strerror or error
        raise ClusterError(
            f"There is no Ray cluster at {given} ({why}): start one with ray start --head, or correct --ray-address."
        ) from error
    return given


def _running_here() -> str | None:
    """Return the address of a cluster that was started on this machine and answers; None without one."""
    from ray._private.utils import read_ray_address

    known = read_ray_address()
    if not known:
        return None
    parts = urlsplit(f"//{known}")
    try:
        socket.create_connection((parts.hostname or "", parts.port or 0), _PROBE_SECONDS).close()
    except OSError:
        return None
    return str(known)


def _check_room(shape: Shape, nodes: list[Resources], there: Resources, *, waits: bool) -> None:
    """Raise ClusterError if the cluster, were it empty, could never hold the shape."""
    if waits:
        return
    tool_hosts = sum(int(node.get(TOOLS, 0.0)) for node in nodes)
    if tool_hosts < len(shape.tool_nodes):
        raise ClusterError(
            f"The run wants {len(shape.tool_nodes)} tool nodes (ray.tool_nodes), and the nodes of the cluster offer "
            f"{tool_hosts} of the resource {TOOLS}: start nodes with --resources '{{\"{TOOLS}\": 1}}', or lower "
            "ray.tool_nodes."
        )
    wanted = {name: sum(bundle.get(name, 0.0) for bundle in shape.bundles) for name in _ROOM}
    short = [name for name in _ROOM if wanted[name] > there[name]]
    biggest = next((b for b in shape.bundles if not any(_holds(node, b) for node in nodes)), None)
    if short or biggest is not None:
        what = ", ".join(f"{wanted[name]:g} {name}" for name in short) or f"{_amounts(biggest or {})} on one node"
        raise ClusterError(
            f"The cluster can never hold {_in_words(shape)}: that takes {what}, and in all there are {_amounts(there)} "
            f"on {len(nodes)} nodes; add nodes, ask for less, or set ray.waits_for_nodes=true if nodes will join."
        )


def _holds(node: Resources, bundle: Resources) -> bool:
    return all(node.get(name, 0.0) >= amount for name, amount in bundle.items())


def _in_words(shape: Shape) -> str:
    kinds = (("learner", shape.learners), ("engine", shape.engines), ("tool node", shape.tool_nodes))
    return ", ".join(f"{len(b)} {name}{'' if len(b) == 1 else 's'} ({_amounts(b[0])} each)" for name, b in kinds if b)


def _amounts(resources: Resources) -> str:
    return " and ".join(f"{resources.get(name, 0.0):g} {name}" for name in _ROOM if resources.get(name)) or "none"


async def first_word(actor: Any, who: str, seconds: float) -> About:
    """Wait until an actor has started. Raises PartLost if it does not in time or dies, ClusterError if its machine has
    other versions."""
    answer = actor.about.remote()
    try:
        with anyio.fail_after(seconds):
            about: About = await answer
    except TimeoutError:
        raise PartLost(f"{who} did not start within {seconds:.0f} s") from None
    except asyncio.CancelledError:
        raise
    except ray.exceptions.RayActorError as error:
        said = " ".join(str(error).split())
        if "ModuleNotFoundError" in said or "ImportError" in said:
            raise ClusterError(
                f"{who} cannot be started, since a node of the cluster has no mcp_rl, or another one: install the same "
                "version on all nodes."
            ) from error
        gone = isinstance(error, ray.exceptions.ActorDiedError)
        raise PartLost(f"{who} did not start, since it died", gone=gone) from error
    except ray.exceptions.RayError as error:
        raise ClusterError(f"{who} cannot be started: {first_line(error)}.") from error
    check_about(about, who)
    return about
