"""Ray nodes on this machine, on loopback, for tests and measurements: real raylets, which can be killed.

with ray_nodes(tools=2) as nodes:
    subprocess.run([..., "--ray-address", nodes.address], env=nodes.environment)
"""

import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

TOOLS = {"mcp_rl_tools": 1}
STORE = 80 * 2**20
"""Bytes of a node's object store."""
ACTORS = {"learner": "ray::Learner", "engine": "ray::EngineActor", "tool node": "ray::ToolNode"}
"""Beginnings of the titles that Ray gives to the actors' processes."""


class RayNodes:
    """A head node and further ones, each with its own raylet and object store."""

    def __init__(self, temporary: Path) -> None:
        from ray.cluster_utils import Cluster

        self.environment = dict(os.environ)
        self._temporary = temporary
        head = {"num_cpus": 4, "object_store_memory": STORE, "include_dashboard": False}
        self._cluster: Any = Cluster(initialize_head=True, head_node_args=head)
        self.nodes: list[Any] = []

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add(self, resources: dict[str, float] | None = None, *, cpus: int = 2, **more: Any) -> Any:
        """Start another node; by default a tool node."""
        given = TOOLS if resources is None else resources
        options = {"num_cpus": cpus, "object_store_memory": STORE, "resources": given, **more}
        try:
            node = self._cluster.add_node(**options)
        except Exception:  # Ray gives a node 30 s to start, which a busy machine may take
            node = self._cluster.add_node(**options)
        self.nodes.append(node)
        return node

    def kill(self, node: Any) -> None:
        """Kill a node's raylet, as a machine that loses power would end it."""
        self.nodes.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)

    def kill_head(self) -> None:
        """Kill the head node, and with it the cluster."""
        self._cluster.remove_node(self._cluster.head_node, allow_graceful=False)

    def family(self) -> list[psutil.Process]:
        """Return all processes of the cluster."""
        return psutil.Process().children(recursive=True)

    def actors(self, kind: str) -> list[psutil.Process]:
        """Return the processes of the actors of a kind, of all that descend from this process."""
        return [process for process in self.family() if _title(process).startswith(ACTORS[kind])]

    def close(self) -> None:
        family = self.family()
        self._cluster.shutdown()
        for process in family:
            with suppress(psutil.Error):
                if "ray" in _title(process):
                    process.kill()


def _title(process: psutil.Process) -> str:
    with suppress(psutil.Error, IndexError):
        return " ".join(process.cmdline())
    return ""


@contextmanager
def ray_nodes(tools: int = 2) -> Iterator[RayNodes]:
    """Start a head and some tool nodes. Must be called before anything else imports Ray in this process."""
    temporary = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))
    given = {
        "RAY_TMPDIR": str(temporary),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # the switch that makes Ray take loopback addresses
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_worker_niceness": "0",  # Ray's own 15 starves the actors on a busy machine
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")))),
    }
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        nodes = RayNodes(temporary)
        try:
            for _ in range(tools):
                nodes.add()
            yield nodes
        finally:
            nodes.close()
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)
        shutil.rmtree(temporary, ignore_errors=True)


def gone(processes: list[psutil.Process], seconds: float) -> list[str]:
    """Wait for processes to end; return the command lines of those that have not."""
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return [_title(one) for one in alive]


def killed(process: psutil.Process) -> None:
    """Kill a process and wait until it is gone."""
    with suppress(psutil.Error):
        process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while process.is_running() and time.monotonic() < deadline:
        with suppress(psutil.Error):
            if process.status() == psutil.STATUS_ZOMBIE:
                return
        time.sleep(0.02)


def left_of(nodes: RayNodes, seconds: float = 30.0) -> list[str]:
    """Return what is left of a run after its driver ended, once it had time to end: actors and tool servers."""
    deadline = time.monotonic() + seconds
    while True:
        found = [_title(one) for one in _safe(nodes.family()) if _is_ours(one)]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.25)


def _safe(processes: list[psutil.Process]) -> list[psutil.Process]:
    found = []
    for one in processes:
        with suppress(psutil.Error):
            if one.is_running() and one.status() != psutil.STATUS_ZOMBIE:
                found.append(one)
    return found


def _is_ours(process: psutil.Process) -> bool:
    return any(part in _title(process) for part in (*ACTORS.values(), "mcp_calculator"))
