"""Runs on a Ray cluster of real nodes on this machine: the same files as on one machine, whatever is killed meanwhile.

`python -m benchmarks.cluster_kills` kills fifty times.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ray_nodes import RayNodes, killed, left_of, ray_nodes
from mcp_rl.backends.cluster.files import read_folder, write_folder
from mcp_rl.config import RayConfig, RunConfig
from mcp_rl.errors import ClusterError, LearnersLost, PartLost
from mcp_rl.runs.train import _Losses
from tests.killing.ground import SETTINGS, differences, record, write_scenarios

ROOT = Path(__file__).parents[2]
STEPS = 6
SECONDS = 300.0
"""Time for anything to happen on a busy machine."""
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'mcp-rl[ray]'")


class Ground:
    """A folder with scenarios, runs in it, and a cluster."""

    def __init__(self, folder: Path, nodes: RayNodes) -> None:
        self.folder, self.nodes = folder, nodes
        write_scenarios(folder / "scenarios.jsonl")

    def command(self, name: str, *more: str, steps: int = STEPS) -> list[str]:
        given = ("--server", "mcp_calculator", "--transport", "stdio", "--steps", str(steps), "tools.max_servers=2")
        scenarios = ("--scenarios", str(self.folder / "scenarios.jsonl"))
        run = ("--output-dir", str(self.folder / "out"), "--name", name)
        return [sys.executable, "-m", "mcp_rl", "train", *given, *scenarios, *run, *SETTINGS, *more]

    def on_cluster(self, name: str, *more: str, steps: int = STEPS) -> list[str]:
        cluster = ("--backend", "ray", "--ray-address", self.nodes.address, "ray.patience=60")
        return self.command(name, *cluster, *more, steps=steps)

    @contextmanager
    def life(self, name: str, command: list[str]) -> "Iterator[subprocess.Popen[bytes]]":
        with (self.folder / f"{name}.log").open("ab") as output:
            process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, start_new_session=True)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def await_(self, what: Callable[[], object], process: "subprocess.Popen[bytes]", name: str) -> None:
        deadline = time.monotonic() + SECONDS
        while not what():
            assert process.poll() is None and time.monotonic() < deadline, self.said(name)
            time.sleep(0.05)

    def run(self, name: str) -> Path:
        return self.folder / "out" / "default" / "models" / name

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def learned(self, name: str) -> int:
        """Return the number of steps that the run has learned, saved or not."""
        history = self.run(name) / "history.jsonl"
        lines = history.read_text().splitlines() if history.exists() else []
        return sum('"split": "train"' in line for line in lines)

    def faults(self, name: str) -> list[dict[str, Any]]:
        log = self.run(name) / "logs" / "cluster.jsonl"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with ray_nodes(tools=2) as nodes:
        yield Ground(tmp_path_factory.mktemp("cluster"), nodes)


def refused(ground: Ground, *more: str, name: str = "refused", seconds: float = 60.0, **environment: str) -> str:
    """Run a command that must be refused; return its one sentence."""
    began = time.monotonic()
    done = subprocess.run(
        ground.command(name, "--backend", "ray", *more),
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert time.monotonic() - began < seconds
    assert done.returncode == 2, done.stdout + done.stderr
    sentence = done.stderr.strip().splitlines()
    assert len(sentence) == 1, done.stderr
    assert not left_of(ground.nodes)
    return sentence[0]


@needs_ray
def test_a_run_whose_parts_are_killed_ends_like_an_undisturbed_one_on_one_machine(ground: Ground) -> None:
    with ground.life("whole", ground.command("whole")) as process:
        assert process.wait(SECONDS) == 0, ground.said("whole")
    name, nodes = "killed", ground.nodes
    command = ground.on_cluster(name, "ray.tool_nodes=2", "ray.most_engines=2")
    with ground.life(name, command) as process:
        ground.await_(lambda: ground.learned(name) >= 1, process, name)
        killed(nodes.actors("tool node")[0])
        ground.await_(lambda: ground.learned(name) >= 2, process, name)
        killed(nodes.actors("learner")[0])
        ground.await_(lambda: any(e["who"] == "The learners" for e in ground.faults(name)), process, name)
        time.sleep(1.0)  # into the start of new learners, which shows nothing that could be waited for
        process.send_signal(signal.SIGKILL)
    assert left_of(nodes) == []
    with ground.life(name, command) as process:
        ground.await_(lambda: ground.learned(name) >= STEPS - 2, process, name)
        for engine in nodes.actors("engine"):
            killed(engine)
        nodes.kill(nodes.nodes[0])
        nodes.add()
        status = process.wait(SECONDS)
    if status != 0:  # it was the node that the driver had connected through
        with ground.life(name, command) as process:
            assert process.wait(SECONDS) == 0, ground.said(name)
    assert "Traceback" not in ground.said(name)
    assert differences(record(ground.run("whole")), record(ground.run(name))) == []
    assert {entry["who"].split()[0] for entry in ground.faults(name)} >= {"Tool", "The"}
    assert left_of(nodes) == []


@needs_ray
def test_whole_weights_are_broadcast_to_all_engines_and_one_is_lost(ground: Ground) -> None:
    full, name = ("train.method=full",), "broadcast"
    with ground.life("all", ground.command("all", *full)) as process:
        assert process.wait(SECONDS) == 0, ground.said("all")
    more = ("ray.engines=2", "ray.whole_weights=broadcast", "ray.tool_nodes=2")
    with ground.life(name, ground.on_cluster(name, *full, *more)) as process:
        ground.await_(lambda: ground.learned(name) >= 2, process, name)
        killed(ground.nodes.actors("engine")[0])
        assert process.wait(SECONDS) == 0, ground.said(name)
    told = [entry["what"] for entry in ground.faults(name) if entry["who"] == "All weights"]
    assert any("reached 2 of 2 engines by a broadcast (gloo)" in what for what in told), told
    assert any(entry["who"].startswith("Engine") for entry in ground.faults(name))
    assert differences(record(ground.run("all")), record(ground.run(name))) == []
    assert left_of(ground.nodes) == []


@needs_ray
def test_engines_and_tool_nodes_that_join_are_used(ground: Ground) -> None:
    name = "grown"
    with ground.life(name, ground.on_cluster(name, "ray.most_engines=2", steps=40)) as process:
        ground.await_(lambda: sum("joined" in entry["what"] for entry in ground.faults(name)) >= 2, process, name)
        before = ground.learned(name)
        ground.await_(lambda: ground.learned(name) >= before + 2, process, name)
        assert len(ground.nodes.actors("engine")) == len(ground.nodes.actors("tool node")) == 2
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 130
    assert left_of(ground.nodes) == []


@needs_ray
def test_what_cannot_work_is_one_sentence_and_leaves_nothing(ground: Ground) -> None:
    address = ("--ray-address", ground.nodes.address)
    assert "There is no Ray cluster at 127.0.0.1:1 (" in refused(ground, "--ray-address", "127.0.0.1:1")
    assert "is no address of a Ray cluster" in refused(ground, "--ray-address", "nowhere")
    assert "leave --ray-address out" in refused(ground, "--ray-address", "ray://127.0.0.1:10001")
    said = refused(ground, *address, "ray.engines=500")
    assert "can never hold 1 learner (1 CPU each), 500 engines" in said and "in all there are" in said
    assert "offer 2 of the resource mcp_rl_tools" in refused(ground, *address, "ray.tool_nodes=9")


@needs_ray
def test_a_node_without_the_servers_command_is_named(ground: Ground, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "calculate"
    program.parent.mkdir()
    server = ROOT / "servers" / "python" / "mcp_calculator" / "server.py"
    program.write_text(f"#!/bin/sh\nexec {sys.executable} {server} --transport stdio\n")
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    said = refused(ground, "--ray-address", ground.nodes.address, "--server", "calculate", "--yes", PATH=path)
    assert "Tool node 0 at 127.0.0.1 cannot be used" in said and "calculate" in said


def test_without_ray_the_command_to_install_it_is_told(tmp_path: Path) -> None:
    program = """
import sys
from importlib.machinery import PathFinder
found = PathFinder.find_spec
PathFinder.find_spec = classmethod(lambda cls, name, *more: None if name == "ray" else found(name, *more))
from mcp_rl.cli import main
sys.exit(main(["train", "--server", "mcp_calculator", "--backend", "ray", "--output-dir", sys.argv[1]]))
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert done.stderr == "The backend ray needs the package Ray: pip install 'mcp-rl[ray]'.\n"
    assert not list(tmp_path.iterdir())


@needs_ray
def test_another_version_on_a_node_is_named() -> None:
    from mcp_rl.backends.cluster.about import About, versions
    from mcp_rl.backends.cluster.connection import check_about

    other = About(node="a", address="10.0.0.7", incarnation="x", versions={**versions(), "mcp_rl": "0.0.9 (abc)"})
    with pytest.raises(ClusterError, match=r"Engine 3 at 10\.0\.0\.7 runs mcp_rl 0\.0\.9 .*same version on all nodes"):
        check_about(other, "Engine 3")


@needs_ray
def test_a_shape_reserves_gpus_only_where_there_are_some() -> None:
    from mcp_rl.backends.cluster.connection import shape_of

    config = RayConfig(learners=2, engines=3, tool_nodes=1, engine_gpus=2)
    shape = shape_of(config, gpus=True)
    assert shape.learners == [{"CPU": 1.0, "GPU": 1.0}] * 2
    assert shape.engines == [{"CPU": 1.0, "GPU": 2.0}] * 3
    assert shape.tool_nodes == [{"CPU": 0.0, "mcp_rl_tools": 1.0}]
    assert shape_of(RayConfig(), gpus=False).bundles[0] == {"CPU": 1.0}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ray": {"address": "10.0.0.1:6379"}}, "add --backend ray"),
        (
            {"backend": "ray", "placement": {"learner_gpus": [0]}},
            "placement.learner_gpus is about",
        ),
        ({"backend": "ray", "engine": {"url": "http://127.0.0.1:8000/v1"}}, "each engine of a cluster starts its own"),
        ({"backend": "ray", "ray": {"engines": 3, "most_engines": 2}}, "is less than ray.engines = 3"),
        ({"backend": "ray", "ray": {"learners": 999}}, "have nothing to divide"),
    ],
)
def test_settings_that_contradict_a_cluster_are_named(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RunConfig(server=("any",), **given)


@needs_ray
@pytest.mark.parametrize(
    ("rollout", "why"),
    [
        ({}, None),
        ({"user_model": "openai/m", "max_user_cost": 1.0}, "users are played"),
        ({"agent": "python a.py"}, "an agent"),
    ],
)
def test_what_must_stay_on_the_drivers_machine_does(rollout: dict[str, Any], why: str | None) -> None:
    from mcp_rl.backends.cluster.backend import plays_here

    found = plays_here(RunConfig.model_validate({"server": "s", "backend": "ray", "rollout": rollout}))
    assert (found is None) if why is None else str(found).startswith(why)


def test_files_cross_machines_and_stay_in_their_folder(tmp_path: Path) -> None:
    write_folder(tmp_path / "a", {"x": b"1", "deep/y": b"2"})
    assert read_folder(tmp_path / "a") == {"x": b"1", "deep/y": b"2"}
    with pytest.raises(ValueError, match="leads out of"):
        write_folder(tmp_path / "a", {"../b": b"3"})


def test_learners_that_are_lost_again_and_again_end_the_run() -> None:
    losses, lost = _Losses(), LearnersLost("Learner 0 died.")
    for step in (0, 2, 2, 4, 4):
        losses.add(lost, step)
    with pytest.raises(LearnersLost):
        losses.add(lost, 4)


def test_an_error_of_a_lost_part_crosses_processes_whole() -> None:
    import pickle

    copy = pickle.loads(pickle.dumps(PartLost("Engine 1 died", gone=True)))
    assert (str(copy), copy.gone) == ("Engine 1 died", True)
